"""The choice of the OpenGL back end: the faster one that works, and one clear line where none does."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from referee.errors import MissingDependency
from referee.sim import gl


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REFEREE_CACHE", str(tmp_path))
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    gl.choose.cache_clear()
    yield
    gl.choose.cache_clear()


def fake(monkeypatch: pytest.MonkeyPatch, **milliseconds: float | None) -> list[str]:
    asked: list[str] = []

    def probe(backend: str) -> gl.Probe:
        asked.append(backend)
        cost = milliseconds[backend]
        return gl.Probe(backend, True, cost, "fake") if cost else gl.Probe(backend, False, error="no library")

    monkeypatch.setattr(gl, "probe", probe)
    return asked


def test_the_faster_one_is_chosen_and_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = fake(monkeypatch, egl=0.9, osmesa=0.7)
    assert gl.choose() == "osmesa"
    gl.choose.cache_clear()
    assert gl.choose() == "osmesa"
    assert asked == ["egl", "osmesa"]
    assert len(json.loads((tmp_path / "gl.json").read_text())["probes"]) == 2


def test_one_that_fails_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, egl=None, osmesa=3.0)
    assert gl.choose() == "osmesa"


def test_none_works_is_one_line_with_the_fix_and_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, egl=None, osmesa=None)
    with pytest.raises(MissingDependency, match="apt-get install -y libosmesa6"):
        gl.choose()
    fake(monkeypatch, egl=1.0, osmesa=None)
    assert gl.choose() == "egl"


def test_the_users_word_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake(monkeypatch, egl=0.1, osmesa=0.1)
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    assert gl.choose() == "osmesa"
    assert asked == []


def test_a_word_that_is_no_back_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "vulkan")
    with pytest.raises(MissingDependency, match="MUJOCO_GL=vulkan is not a back end"):
        gl.choose()


@pytest.mark.parametrize("content", ["", "{", '{"for": "another machine", "probes": []}', "[1]", '{"probes": 3}'])
def test_a_spoilt_memory_is_measured_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str) -> None:
    (tmp_path / "gl.json").write_text(content)
    fake(monkeypatch, egl=0.5, osmesa=0.7)
    assert gl.choose() == "egl"


@pytest.mark.slow
def test_a_real_probe_draws_here() -> None:
    probes = [gl.probe(backend) for backend in gl.BACKENDS]
    assert any(each.works and 0 < each.milliseconds < 100 and each.renderer for each in probes), probes


@pytest.mark.slow
def test_a_back_end_that_cannot_load_says_why() -> None:
    probe = gl.probe("nonsense")
    assert not probe.works and probe.error


def test_a_process_stays_with_the_platform_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes of nearly equal speed may choose another back end later; PyOpenGL cannot follow."""
    script = (
        "import os; from referee.sim import gl\n"
        "from referee.sim.camera import Camera; from referee.sim.scene import Scene\n"
        "import numpy as np; first = gl.choose(); Camera(Scene(), ('front',), 64).geom_id('table')\n"
        "gl.choose = lambda: ({'egl', 'osmesa'} - {first}).pop()\n"
        "images = Camera(Scene(), ('front',), 64).render(np.zeros((1, 9)), np.zeros((1, 3)))\n"
        "print(images.std() > 1); os._exit(0)\n"
    )
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.delenv("PYOPENGL_PLATFORM", raising=False)
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "True" in run.stdout, run.stderr
