"""Which OpenGL back end draws: tried once in a process of its own, the faster working one is remembered."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from referee.errors import MissingDependency
from referee.files import cache_dir, write_json
from referee.sim.engine import LazyMujoco

if TYPE_CHECKING:
    import mujoco
else:
    mujoco = LazyMujoco()

BACKENDS = ("egl", "osmesa")
APT_LINE = "sudo apt-get install -y libosmesa6 libegl1 libgles2 libgl1 libgl1-mesa-dri libegl-mesa0 libopengl0"


@dataclass(frozen=True)
class Probe:
    """What one back end did when it was asked to draw."""

    backend: str
    works: bool
    milliseconds: float = 0.0
    """Per 64 px frame of the embedded scene."""
    renderer: str = ""
    error: str = ""


def probe(backend: str) -> Probe:
    """Draw a few frames with `backend` in a new process, because a missing library can end it."""
    run = subprocess.run(
        [sys.executable, "-m", "referee.sim.gl", backend],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "MUJOCO_GL": backend, "PYOPENGL_PLATFORM": backend},
        check=False,
    )
    lines = run.stdout.strip().splitlines()
    if run.returncode == 0 and lines and lines[-1].startswith("{"):
        return Probe(**json.loads(lines[-1]))
    reason = (run.stderr.strip().splitlines() or [f"ended with code {run.returncode}"])[-1]
    return Probe(backend, works=False, error=reason)


def probe_all() -> list[Probe]:
    """Try every back end anew and remember the result."""
    probes = [probe(backend) for backend in BACKENDS]
    write_json(cache_dir() / "gl.json", {"for": _machine(), "probes": [asdict(each) for each in probes]})
    return probes


@cache
def choose() -> str:
    """The back end to draw with: `$MUJOCO_GL` if set, else the faster of those that work."""
    wanted = os.environ.get("MUJOCO_GL", "").strip().lower()
    if wanted:
        if wanted not in (*BACKENDS, "glfw"):
            raise MissingDependency(f"MUJOCO_GL={wanted} is not a back end: unset it, or set egl or osmesa")
        return wanted
    working = [each for each in _remembered() or probe_all() if each.works]
    if not working:
        raise MissingDependency(f"no OpenGL back end can draw here: run `{APT_LINE}`, then `referee doctor`")
    return min(working, key=lambda each: each.milliseconds).backend


def open_context(model: mujoco.MjModel, pixels: int) -> tuple[Any, mujoco.MjrContext]:
    """A current off-screen context of the chosen back end, and MuJoCo's drawing resources in it."""
    backend = choose()
    bound = os.environ.get("PYOPENGL_PLATFORM", "")
    if bound in BACKENDS and ("OpenGL" in sys.modules or not os.environ.get("MUJOCO_GL")):
        backend = bound  # PyOpenGL knows one platform per process, and has it already
    # llvmpipe's own threads cost more than they bring for small pictures.
    os.environ.setdefault("LP_NUM_THREADS", "0")
    os.environ["PYOPENGL_PLATFORM"] = backend
    try:
        context = importlib.import_module(f"mujoco.{backend}").GLContext(pixels, pixels)
        context.make_current()
        resources = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100.value)
    except Exception as error:  # the libraries raise whatever they like
        raise MissingDependency(
            f"the OpenGL back end {backend} does not work ({error}): run `{APT_LINE}`, then `referee doctor`"
        ) from error
    mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, resources)
    return context, resources


def _remembered() -> list[Probe] | None:
    try:
        stored = json.loads((cache_dir() / "gl.json").read_text())
        if stored["for"] != _machine():
            return None
        probes = [Probe(**each) for each in stored["probes"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    # A failure is not remembered: the libraries may have been installed since.
    return probes if any(each.works for each in probes) else None


def _machine() -> str:
    return f"{mujoco.__version__} {os.uname().nodename} {os.uname().release}"


def _measure(backend: str) -> Probe:
    import numpy as np
    from OpenGL import GL

    from referee.sim.camera import Easel
    from referee.sim.scene import Scene

    easel = Easel(Scene(), ("front",), 64, detail="fast", distractors=0)
    qpos, goal = np.zeros((8, 9)), np.full((8, 3), 0.2)
    images = easel.draw(qpos, goal, None)
    if images.max() == images.min():
        return Probe(backend, works=False, error="draws an empty picture")
    start = time.perf_counter()
    for _ in range(5):
        easel.draw(qpos, goal, None)
    milliseconds = (time.perf_counter() - start) / 40 * 1e3
    renderer = GL.glGetString(GL.GL_RENDERER).decode()
    return Probe(backend, True, round(milliseconds, 3), renderer)


if __name__ == "__main__":
    print(json.dumps(asdict(_measure(sys.argv[1]))), flush=True)
    # Some drivers crash while the interpreter shuts down; the answer is out by then.
    os._exit(0)
