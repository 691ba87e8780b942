"""A CPU that advertises more than it can do: found out once in a process of its own, and then kept from being used.

Some virtual machines show AMX without the state that it needs; the first bf16 product kills the process then.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

from referee import files

CAP = "ONEDNN_MAX_CPU_ISA"
CAPPED = "AVX512_CORE_FP16"
"""The most that is used where AMX kills: everything below it."""
PROBE = "import torch; torch.set_num_threads(1); x = torch.ones(64, 64, dtype=torch.bfloat16); float((x @ x).sum())"
_DEATHS = {-signal.SIGILL, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGABRT}


def cap_if_needed() -> bool:
    """Cap the CPU's features for this process and its children where they would kill it; whether they are capped.

    To be called before torch computes anything. A cap that somebody has set stays as it is.
    """
    if CAP not in os.environ and amx_kills():
        os.environ[CAP] = CAPPED
    return CAP in os.environ


def amx_kills() -> bool:
    """Whether a bf16 product kills a process here; tried once per machine and version of torch, then remembered."""
    if not advertises_amx():
        return False
    path = _answer_file()
    try:
        return bool(json.loads(path.read_text())["kills"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    answer = probe()
    if answer is None:
        return False
    with contextlib.suppress(OSError):  # asked again next time
        files.write_json(path, {"kills": answer})
    return answer


def advertises_amx() -> bool:
    """Whether the CPU says that it has AMX."""
    return "amx_tile" in _cpu_text("flags").split()


def has_vnni() -> bool:
    """Whether int8 products are summed in 32 bits at once; without it they can overflow 16 bits."""
    flags = _cpu_text("flags").split()
    return not flags or "avx512_vnni" in flags or "avx_vnni" in flags


def probe(code: str = PROBE, timeout: float = 120) -> bool | None:
    """Whether `code` dies of a signal in a process without a cap; None where it failed in another way."""
    free = {name: value for name, value in os.environ.items() if name != CAP}
    try:
        done = subprocess.run([sys.executable, "-c", code], env=free, capture_output=True, timeout=timeout, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode == 0:
        return False
    return True if done.returncode in _DEATHS else None


def status() -> str:
    """One line for `referee doctor`."""
    if CAP in os.environ:
        return f"capped by {CAP}={os.environ[CAP]}"
    if not advertises_amx():
        return "no AMX, nothing to cap"
    return f"AMX kills processes here: capped to {CAPPED}" if amx_kills() else "AMX works"


def _answer_file() -> Path:
    """The answer is about this CPU, this kernel and this torch."""
    import importlib.metadata

    said = [_cpu_text("model name"), _cpu_text("flags"), platform.release(), importlib.metadata.version("torch")]
    key = hashlib.sha256("\n".join(said).encode()).hexdigest()[:16]
    return files.cache_dir() / f"cpu-{key}.json"


def _cpu_text(name: str) -> str:
    """What /proc/cpuinfo says under a name, of the first core; nothing where there is no such file."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name), "")
