"""Pictures: repeatable, true to the state, restored after randomisation, and cheap to not ask for."""

import numpy as np
import pytest

from referee.sim.batch import HOME
from referee.sim.camera import CAMERAS, Camera
from referee.sim.looks import Looks
from referee.sim.scene import CUBE_HALF, Scene
from referee.sim.streams import Stream

SCENE = Scene(cube=True)


def states(n: int, x: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    qpos = np.tile(np.concatenate([HOME, [0.04, 0.04, x, 0.0, CUBE_HALF, 1, 0, 0, 0]]), (n, 1))
    return qpos, np.tile([0.5, 0.1, 0.15], (n, 1))


def looks(n: int, seed: int, **strength: float) -> Looks:
    made = Looks.plain(n)
    draw = Stream(np.arange(n) + seed, np.zeros(n), purpose=1).uniform
    made.redraw(np.arange(n), draw, **{"light": 0.0, "colours": 0.0, "camera": 0.0, **strength})
    return made


@pytest.mark.parametrize("pixels", [64, 128, 224])
def test_shape_and_content(pixels: int) -> None:
    with Camera(SCENE, CAMERAS, pixels) as camera:
        images = camera.render(*states(2))
    assert images.shape == (2, 3, pixels, pixels, 3)
    assert images.dtype == np.uint8
    assert (images.reshape(6, -1).std(axis=1) > 15).all()


def test_the_same_state_gives_the_same_pixels_in_any_order_and_context() -> None:
    qpos = np.concatenate([states(1, x)[0] for x in (0.42, 0.5, 0.58)])
    goal = states(3)[1]
    with Camera(SCENE, ("front",), 64) as camera:
        once = camera.render(qpos, goal)
        again = camera.render(qpos[::-1], goal)[::-1]
    with Camera(SCENE, ("front",), 64) as other:
        anew = other.render(qpos, goal)
    np.testing.assert_array_equal(once, again)
    np.testing.assert_array_equal(once, anew)
    assert not np.array_equal(once[0], once[1])


def test_two_cameras_in_one_process_do_not_disturb_each_other() -> None:
    with Camera(SCENE, ("front",), 64) as small, Camera(SCENE, ("side",), 128) as large:
        first = small.render(*states(1))
        large.render(*states(1))
        np.testing.assert_array_equal(small.render(*states(1)), first)


def test_upright_the_cube_is_below_the_hand() -> None:
    with Camera(SCENE, ("side",), 64) as camera:
        seen = camera.segment(*states(1))[0, 0]
        cube, hand = camera.geom_id("cube"), camera.geom_id("hand")
    assert np.argwhere(seen == cube)[:, 0].mean() > np.argwhere(seen == hand)[:, 0].mean() + 10


@pytest.mark.parametrize("part", ["light", "colours", "camera"])
def test_each_randomisation_changes_the_picture_and_is_undone(part: str) -> None:
    with Camera(SCENE, ("front",), 64) as camera:
        plain = camera.render(*states(2))
        changed = camera.render(*states(2), looks(2, 0, **{part: 1.0}))
        repeated = camera.render(*states(2), looks(2, 0, **{part: 1.0}))
        again = camera.render(*states(2))
    assert np.abs(changed.astype(int) - plain).mean() > 1.0
    assert not np.array_equal(changed[0], changed[1])
    np.testing.assert_array_equal(changed, repeated)
    np.testing.assert_array_equal(plain, again)


def test_distractors_stand_around_the_workspace() -> None:
    made = looks(200, 0)
    x, y = made.distractors[:, :, 0], made.distractors[:, :, 1]
    assert (np.abs(y) >= 0.19).all() and (x >= 0.29).all()
    with Camera(SCENE, ("film",), 64, distractors=4) as camera:
        seen = camera.render(*states(1), made.take(np.array([0])))
        bare = camera.render(*states(1))
    assert np.abs(seen.astype(int) - bare).max() > 40


def test_nothing_is_opened_before_the_first_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("referee.sim.gl.open_context", lambda model, pixels: pytest.fail("opened OpenGL unasked"))
    Camera(SCENE, ("front",), 64).close()
