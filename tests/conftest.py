"""What all tests share: no cap on what is asserted, but one on the CPU features that some machines only claim."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
