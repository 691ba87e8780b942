"""What all tests share: one thread for torch, and no CPU feature that a virtual machine may only claim to have."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
