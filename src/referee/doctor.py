"""Checks of the machine: what works, what does not, and the line that mends it."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from referee import cpu
from referee.envs.maniskill import vulkan
from referee.errors import MissingDependency
from referee.files import cache_dir
from referee.sim import engine, gl
from referee.sim.assets import FULL_FACES, panda_folder, visual_meshes

State = Literal["ok", "note", "fail"]


@dataclass(frozen=True)
class Finding:
    """One line of the report; only `fail` means that Referee will not work."""

    what: str
    state: State
    detail: str
    fix: str = ""


EXTRAS = {
    "tensorboard": ("tensorboard", "curves of a run in TensorBoard"),
    "sb3": ("stable_baselines3", "learned rewards in Stable-Baselines3"),
    "maniskill": ("mani_skill", "ManiSkill environments"),
    "ray": ("ray", "workers on a Ray cluster"),
    "vlm": ("transformers", "vision-language rewards"),
    "text": ("math_verify", "mathematics in text answers"),
    "franka": ("franky", "the real arm"),
    "lerobot": ("pyarrow", "LeRobot data sets"),
    "hdf5": ("h5py", "robomimic-style data"),
    "rerun": ("rerun", "3-D recordings"),
    "fast": ("openvino", "faster scoring, int8"),
}
"""Extra of the package → the module that it brings, and what for."""
TORCH = "pip install torch; on Linux without a GPU: pip install torch --index-url https://download.pytorch.org/whl/cpu"


def findings() -> Iterator[Finding]:
    """All checks, each a line as soon as it is known."""
    checks: list[Callable[[], Iterator[Finding]]] = [
        _python,
        _torch,
        _cpu,
        _simulation,
        _disk,
        _extras,
        _vulkan,
    ]
    for check in checks:
        yield from check()


def _python() -> Iterator[Finding]:
    version = platform.python_version()
    good = sys.version_info >= (3, 11)
    yield Finding("Python", "ok" if good else "fail", version, "" if good else "install Python 3.11 or newer")


def _torch() -> Iterator[Finding]:
    if importlib.util.find_spec("torch") is None:
        yield Finding("PyTorch", "fail", "not installed", TORCH)
        return
    import torch

    device = "CUDA " + torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    yield Finding("PyTorch", "ok", f"{torch.__version__}, {device}, {torch.get_num_threads()} threads")


def _cpu() -> Iterator[Finding]:
    flags = _cpu_flags()
    wanted = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_tile") if name in flags]
    yield Finding("CPU", "ok", f"{os.cpu_count()} cores, {', '.join(wanted) or 'no vector extensions known'}")
    yield Finding("bf16", "ok", cpu.status())


def _cpu_flags() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return set()
    return set(next((line.split(":")[1].split() for line in text.splitlines() if line.startswith("flags")), []))


def _simulation() -> Iterator[Finding]:
    """The extra `sim`: what draws it, and its meshes."""
    try:
        engine.load_mujoco()
        panda_folder()
    except MissingDependency as error:
        what, _, fix = str(error).partition(": ")
        yield Finding("extra sim", "note", what, fix)
        return
    yield Finding("extra sim", "ok", f"the embedded simulation, MuJoCo {engine.load_mujoco().__version__}")
    yield from _rendering()
    yield from _meshes()


def _rendering() -> Iterator[Finding]:
    probes = gl.probe_all()
    for probe in probes:
        if probe.works:
            yield Finding(
                f"OpenGL {probe.backend}",
                "ok",
                f"{probe.milliseconds:.2f} ms per 64 px frame, {probe.renderer}",
            )
        else:
            state: State = "note" if any(each.works for each in probes) else "fail"
            yield Finding(f"OpenGL {probe.backend}", state, probe.error, gl.APT_LINE)
    if any(probe.works for probe in probes):
        gl.choose.cache_clear()
        why = "set by MUJOCO_GL" if os.environ.get("MUJOCO_GL") else "the faster one that works"
        yield Finding("drawing with", "ok", f"{gl.choose()} ({why})")


def _meshes() -> Iterator[Finding]:
    folder = visual_meshes(FULL_FACES).palette.parent
    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    yield Finding("Panda meshes", "ok", f"{size:.1f} MB in {folder}")


def _disk() -> Iterator[Finding]:
    for what, folder in (("disk, here", Path.cwd()), ("disk, cache", cache_dir())):
        free = shutil.disk_usage(folder).free / 1e9
        fix = f"free some space on the disk of {folder}"
        yield Finding(what, "ok" if free > 2 else "note", f"{free:.0f} GB free", "" if free > 2 else fix)


def _extras() -> Iterator[Finding]:
    for extra, (module, purpose) in EXTRAS.items():
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.origin is not None:  # not merely a folder of that name
            yield Finding(f"extra {extra}", "ok", purpose)
        else:
            yield Finding(f"extra {extra}", "note", f"not installed ({purpose})", f"pip install 'referee-rl[{extra}]'")


def _vulkan() -> Iterator[Finding]:
    """What ManiSkill draws with; without it, it does not start."""
    if importlib.util.find_spec("sapien") is None:
        return
    import torch

    if not vulkan.has_loader():
        yield Finding("Vulkan", "note", "libvulkan is missing: ManiSkill does not start", vulkan.LOADER_LINE)
        return
    works, said = vulkan.probe(gpu=torch.cuda.is_available())
    if not works:
        yield Finding("Vulkan", "note", f"ManiSkill does not start: {said}", vulkan.INSTALL_LINE)
        return
    where = "" if vulkan.swiftshader() is None else f", SwiftShader in {vulkan.folder()}"
    yield Finding("Vulkan", "ok", f"{said}{where}")
