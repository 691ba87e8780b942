"""The Vulkan driver that ManiSkill draws with: the machine's own, or SwiftShader, which needs no GPU.

SwiftShader draws on the CPU. It comes with Chromium; two files of Debian's package are all that is needed. (Mesa's own
software driver lacks, before version 24.3, a feature that SAPIEN asks for.)
"""

from __future__ import annotations

import ctypes.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from referee.errors import MissingDependency, RefereeError
from referee.files import cache_dir

PACKAGE = "chromium-common"
FILES = ("libvk_swiftshader.so", "vk_swiftshader_icd.json")
LOADER_LINE = "sudo apt-get install -y libvulkan1"
INSTALL_LINE = "referee doctor --install-swiftshader"
CHOSEN_BY = ("VK_ICD_FILENAMES", "VK_DRIVER_FILES")
"""Variables of Vulkan itself; who sets one of them has chosen a driver."""
_PROBE = "import sapien; d = sapien.Device({device!r}); sapien.render.RenderSystem(d); print('works:', d.name)"


def folder() -> Path:
    """Where SwiftShader lies once it is installed."""
    return cache_dir() / "swiftshader"


def swiftshader() -> Path | None:
    """SwiftShader's description for Vulkan, if it is installed."""
    return folder() / FILES[1] if all((folder() / name).is_file() for name in FILES) else None


def has_loader() -> bool:
    """Whether libvulkan, through which every driver is found, is there."""
    return ctypes.util.find_library("vulkan") is not None


def install() -> Path:
    """Take SwiftShader out of Debian's Chromium package; returns where it lies. Needs apt-get, but not root."""
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise MissingDependency(
                f"SwiftShader comes from a Debian package, and {tool} is not here: "
                f"copy {' and '.join(FILES)} of any Chromium to {folder()}"
            )
    with tempfile.TemporaryDirectory() as place:
        try:
            _run(["apt-get", "download", "-q", PACKAGE], place)
        except RefereeError:
            if os.geteuid() != 0:
                raise
            _run(["apt-get", "update", "-q"], place)  # a new machine has no lists yet
            _run(["apt-get", "download", "-q", PACKAGE], place)
        package = next(Path(place).glob("*.deb"))
        _run(["dpkg-deb", "-x", str(package), "tree"], place)
        folder().mkdir(parents=True, exist_ok=True)
        for name in FILES:
            found = next(Path(place, "tree").rglob(name), None)
            if found is None:
                raise RefereeError(f"{package.name} holds no {name}: copy it from another Chromium to {folder()}")
            part = folder() / f".{name}.{os.getpid()}"
            shutil.copyfile(found, part)
            os.replace(part, folder() / name)
    return folder()


def _run(command: list[str], place: str) -> None:
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise RefereeError(f"`{' '.join(command[:3])}` failed: {said}; try `sudo apt-get update` first")


def variables(*, gpu: bool) -> dict[str, str]:
    """What the environment of a process that draws must say about drivers: what it says already, or SwiftShader."""
    chosen = {name: os.environ[name] for name in CHOSEN_BY if os.environ.get(name)}
    here = swiftshader()
    return chosen if gpu or chosen or here is None else {CHOSEN_BY[0]: str(here)}


def is_ready() -> bool:
    """Whether a driver for a CPU is here: the loader, and SwiftShader or one that somebody chose."""
    return has_loader() and bool(variables(gpu=False))


def render_device(*, gpu: bool) -> str:
    """SAPIEN's name of the device that draws."""
    return "cuda" if gpu else "pci:0"  # "cpu" finds no software driver


def probe(*, gpu: bool = False) -> tuple[bool, str]:
    """Whether the driver works, and its name or what it said; tried in a process of its own, since it may die."""
    code = _PROBE.format(device=render_device(gpu=gpu))
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **variables(gpu=gpu)},
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("works:")]
    if done.returncode == 0 and lines:
        return True, lines[0].removeprefix("works:").strip()
    return False, (done.stderr.strip().splitlines() or [f"ended with code {done.returncode}"])[-1]
