"""Processes that help to draw: the same bits, started only when it pays, and never missed when they are gone."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from referee.config.schema import PandaEnvConfig
from referee.envs.panda.env import PandaVectorEnv
from referee.sim import studio
from referee.sim.batch import HOME
from referee.sim.camera import Camera
from referee.sim.looks import Looks
from referee.sim.scene import CUBE_HALF, Scene
from referee.sim.streams import Stream

VIEWS = ("front", "side")
ENOUGH = studio.FRAMES_PER_HELPER


@pytest.fixture(autouse=True, scope="module")
def two_cores() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(studio, "cores", lambda: 2)
        yield


def make(**options: int) -> Camera:
    return Camera(Scene(cube=True), VIEWS, 64, distractors=4, **options)


@pytest.fixture
def camera() -> Iterator[Camera]:
    with make() as made:
        yield made


@pytest.fixture(scope="module")
def shared() -> Iterator[Camera]:
    """For tests that leave the helper alive."""
    with make() as made:
        yield made


@pytest.fixture(scope="module")
def alone() -> Iterator[Camera]:
    with make(num_threads=1) as made:
        yield made


def states(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    qpos = np.tile(np.concatenate([HOME, [0.04, 0.04, 0.5, 0.0, CUBE_HALF, 1, 0, 0, 0]]), (n, 1))
    qpos[:, :7] += rng.normal(0.0, 0.1, (n, 7))
    return qpos, rng.uniform(0.1, 0.5, (n, 3))


def looks(n: int) -> Looks:
    made = Looks.plain(n)
    draw = Stream(np.arange(n), np.zeros(n), purpose=1).uniform
    made.redraw(np.arange(n), draw, light=1.0, colours=1.0, camera=1.0)
    return made


def until(true: Callable[[], object], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.01)


def helped(camera: Camera) -> studio.Helper:
    """The camera's helper, started and ready."""
    camera.render(*states(ENOUGH))
    [helper] = camera._studio._helpers
    until(helper.is_ready)
    return helper


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_the_same_bits_whoever_draws(shared: Camera, alone: Camera, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = helped(shared)
    sizes = []
    monkeypatch.setattr(helper, "ask", lambda *work, ask=helper.ask: [sizes.append(len(work[0])), ask(*work)])
    for n in (ENOUGH, 2 * ENOUGH + 1, ENOUGH + 3):
        np.testing.assert_array_equal(shared.render(*states(n)), alone.render(*states(n)))
        mine, theirs = (each.render(*states(n), looks(n)) for each in (shared, alone))
        np.testing.assert_array_equal(mine, theirs)
        assert len(np.unique(mine.reshape(n, -1), axis=0)) == n
    some = shared.render(*states(2 * ENOUGH), cameras=["side"])
    np.testing.assert_array_equal(some, alone.render(*states(2 * ENOUGH))[:, 1:])
    assert sizes == [4, 4, 9, 9, 6, 6, 8]


def test_nobody_waits_for_a_helper_that_starts(camera: Camera, alone: Camera) -> None:
    images = camera.render(*states(ENOUGH))
    [helper] = camera._studio._helpers
    assert not helper.is_ready()
    np.testing.assert_array_equal(images, alone.render(*states(ENOUGH)))


def test_few_pictures_start_no_helper(camera: Camera) -> None:
    for n in (0, 1, ENOUGH - 1):
        assert len(camera.render(*states(n))) == n
    camera.render(*states(ENOUGH), cameras=["front"])
    assert camera._studio._helpers == []


def test_one_thread_starts_no_helper() -> None:
    for threads, count in ((1, 0), (0, 1), (5, 1)):
        env = PandaVectorEnv(PandaEnvConfig(num_envs=ENOUGH, num_threads=threads))
        env.reset(seed=0)
        env.render_cameras()
        assert len(env._camera._studio._helpers) == count
        env.close()


def test_a_helper_that_dies_is_not_missed(camera: Camera, alone: Camera, caplog: pytest.LogCaptureFixture) -> None:
    helper = helped(camera)
    right = alone.render(*states(ENOUGH))
    helper.process.kill()
    for _ in range(3):
        np.testing.assert_array_equal(camera.render(*states(ENOUGH)), right)
    assert caplog.text.count("helped to draw is lost") == 1
    assert camera._studio._helpers == [] and ended(helper.process.pid)


def test_a_helper_that_hangs_is_not_waited_for(
    camera: Camera, alone: Camera, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper = helped(camera)
    right = alone.render(*states(ENOUGH))
    monkeypatch.setattr(studio, "PATIENCE", 0.1)
    os.kill(helper.process.pid, signal.SIGSTOP)
    np.testing.assert_array_equal(camera.render(*states(ENOUGH)), right)
    assert "timed out" in caplog.text and ended(helper.process.pid)


def test_a_helper_that_cannot_start_is_done_without(
    camera: Camera, alone: Camera, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    for _ in range(2):
        np.testing.assert_array_equal(camera.render(*states(ENOUGH)), alone.render(*states(ENOUGH)))
    assert caplog.text.count("helped to draw is lost") == 1


def test_close_ends_it_and_a_later_picture_starts_another(camera: Camera) -> None:
    first = helped(camera).process.pid
    camera.close()
    assert ended(first)
    camera.render(*states(ENOUGH))
    assert camera._studio._helpers[0].process.pid != first


def test_an_interrupted_render_does_not_mix_up_the_next(
    shared: Camera, alone: Camera, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper = helped(shared)
    with monkeypatch.context() as patched:
        patched.setattr(helper, "collect", lambda seconds: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            shared.render(*states(ENOUGH))
    for n in (ENOUGH + 1, ENOUGH + 2):
        np.testing.assert_array_equal(shared.render(*states(n)), alone.render(*states(n)))
        until(helper.is_ready)


def test_from_any_thread_and_after_a_ctrl_c(shared: Camera, alone: Camera) -> None:
    helper = helped(shared)
    os.kill(helper.process.pid, signal.SIGINT)
    sizes = [ENOUGH + i for i in range(4)]
    with ThreadPoolExecutor(4) as threads:
        drawn = list(threads.map(lambda n: shared.render(*states(n)), sizes))
    for n, images in zip(sizes, drawn, strict=True):
        np.testing.assert_array_equal(images, alone.render(*states(n)))
    assert shared._studio._helpers == [helper] and not ended(helper.process.pid)


def test_a_fork_leaves_the_helper_to_its_parent(shared: Camera) -> None:
    helper = helped(shared)
    child = os.fork()
    if child == 0:
        shared._studio.close()
        os._exit(len(shared._studio._helpers))
    assert os.waitpid(child, 0)[1] == 0
    shared.render(*states(ENOUGH))
    assert shared._studio._helpers == [helper] and not ended(helper.process.pid)


@pytest.mark.parametrize("forked", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_killed_parent_leaves_no_helper(forked: bool) -> None:
    """A script without a main guard, killed while its helper waits for work; a fork of it may live on."""
    script = (
        "import os, time; from referee.sim import studio; studio.cores = lambda: 2\n"
        "from referee.sim.camera import Camera; from referee.sim.scene import Scene; import numpy as np\n"
        "camera = Camera(Scene(), ('front',), 64)\n"
        "camera.render(np.zeros((16, 9)), np.zeros((16, 3)))\n"
        "[helper] = camera._studio._helpers\n"
        "while not helper.is_ready(): time.sleep(0.01)\n"
        f"child = os.fork() if {forked} else os.getpid()\n"
        "if child: print(helper.process.pid, child, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        helper, child = map(int, parent.stdout.readline().split())
        assert not ended(helper)
        parent.kill()
        until(lambda: ended(helper), seconds=20 if forked else 5)
        if forked:
            os.kill(child, signal.SIGKILL)
