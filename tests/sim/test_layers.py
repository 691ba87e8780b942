"""Pictures rendered as layers: as MuJoCo renders them, the same bits in any batch, fewer triangles where small."""

from collections.abc import Iterator

import numpy as np
import pytest

from referee.config.schema import PandaEnvConfig
from referee.envs.panda.env import PandaVectorEnv
from referee.envs.panda.experts import Expert
from referee.envs.panda.tasks import task_named
from referee.metrics import auroc
from referee.sim import assets, layers
from referee.sim.assets import Detail
from referee.sim.camera import CAMERAS, Camera, Easel
from referee.sim.layers import LayeredRenderer
from referee.sim.looks import Looks
from referee.sim.scene import Scene
from referee.sim.streams import Stream

TASKS = ("Reach", "PushCube", "PickCube", "PegInsertion")
N = 24


def visited(task: str, steps: int = 40, num_envs: int = N) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Joint positions, goals and successes of every state that a noisy expert comes through."""
    env = PandaVectorEnv(PandaEnvConfig(task=task, num_envs=num_envs, num_threads=1, max_episode_steps=60))
    env.reset(seed=0)
    expert, rows = Expert(env, noise=0.4), []
    for _ in range(steps):
        _, _, terminated, truncated, info = env.step(expert())
        rows.append((env._sim.qpos.copy(), env._goal.copy(), info["success"] & ~(terminated | truncated)))
    env.close()
    qpos, goal, success = (np.concatenate(each) for each in zip(*rows, strict=True))
    return qpos, goal, success


@pytest.fixture(scope="module", params=TASKS)
def world(request: pytest.FixtureRequest) -> tuple[Scene, np.ndarray, np.ndarray]:
    """A task's scene, and states from all parts of its episodes."""
    qpos, goal, _ = visited(request.param)
    some = np.random.default_rng(0).permutation(len(qpos))[:N]
    return task_named(request.param).scene, qpos[some], goal[some]


@pytest.fixture
def easel() -> Iterator[Easel]:
    made = Easel(Scene(cube=True), CAMERAS, 64, detail="fast", distractors=4)
    yield made
    made.close()


def states(n: int) -> tuple[np.ndarray, np.ndarray, Looks]:
    qpos, goal, _ = visited("PickCube", steps=3, num_envs=n)
    looks = Looks.plain(n)
    looks.redraw(np.arange(n), Stream(np.arange(n), np.zeros(n), purpose=1).uniform, light=1.0, colours=1.0, camera=1.0)
    return qpos[-n:], goal[-n:], looks


def pictures(
    scene: Scene, qpos: np.ndarray, goal: np.ndarray, pixels: int, detail: Detail, looks: Looks | None = None
) -> np.ndarray:
    with Camera(scene, CAMERAS, pixels, detail=detail, distractors=4, num_threads=1) as camera:
        return camera.render(qpos, goal, looks).astype(int)


@pytest.mark.parametrize("pixels", [64, 96, 128, 224])
def test_pictures_hardly_differ_from_full_detail(world: tuple[Scene, np.ndarray, np.ndarray], pixels: int) -> None:
    fast, full = (pictures(*world, pixels, detail) for detail in ("fast", "full"))
    difference = np.abs(fast - full)
    assert (difference.mean(axis=(0, 2, 3, 4)) < 1.7).all()
    assert (difference.max(axis=-1) > 24).mean() < 0.02


@pytest.mark.parametrize("randomised", [False, True])
def test_light_and_geometry_are_as_mujoco_renders_them(
    world: tuple[Scene, np.ndarray, np.ndarray], randomised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same triangles, so that only the renderer differs."""
    monkeypatch.setattr(assets, "FACES", ())
    looks = states(N)[2] if randomised else None
    fast, full = (pictures(*world, 64, detail, looks) for detail in ("fast", "full"))
    difference = np.abs(fast - full)
    assert difference.mean() < 0.5
    assert (difference.max(axis=-1) > 8).mean() < 0.002


def test_small_pictures_have_fewer_triangles(easel: Easel) -> None:
    counts = [assets.face_budget("fast", pixels) for pixels in (32, 64, 96, 128, 224, 640)]
    assert counts == sorted(counts) and counts[0] < counts[2] < counts[-1] == assets.face_budget("full", 64)
    assert 1_000 < easel._model.mesh_facenum.sum() < 2_000


def test_the_same_bits_in_any_batch_and_after_a_segmentation(easel: Easel) -> None:
    n = 100  # more than are rendered at a time
    qpos, goal, looks = states(n)
    together = easel.draw(qpos, goal, looks)
    easel.segment(qpos[:1], goal[:1], ())
    for rows in (slice(0, 1), slice(7, 10), slice(30, 63)):
        np.testing.assert_array_equal(easel.draw(qpos[rows], goal[rows], looks.take(rows)), together[rows])
    alone = easel.draw(qpos, goal, looks, chosen=[2])
    np.testing.assert_array_equal(alone[:, 0], together[:, 2])
    assert len(np.unique(together.reshape(n, -1), axis=0)) == n
    assert easel.draw(qpos[:0], goal[:0], None).shape == (0, 3, 64, 64, 3)


def test_what_is_out_of_sight_changes_nothing(easel: Easel, monkeypatch: pytest.MonkeyPatch) -> None:
    qpos, goal, looks = states(N)
    renderer = easel._layers
    assert renderer is not None
    counts = []
    monkeypatch.setattr(
        renderer,
        "_render",
        lambda rows, *rest, render=renderer._render: [counts.append(len(rows)), render(rows, *rest)],
    )
    culled = easel.draw(qpos, goal, looks)
    monkeypatch.setattr(renderer, "_radius", np.full_like(renderer._radius, 1e9))
    monkeypatch.setattr(renderer, "_sees_sky", lambda eye, axes, reach: np.ones(eye.shape[:2], bool))
    np.testing.assert_array_equal(easel.draw(qpos, goal, looks), culled)
    assert counts[0] < 0.8 * counts[1]


@pytest.mark.parametrize("task", TASKS)
def test_a_background_rendered_once_changes_nothing(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    qpos, goal, _ = visited(task, steps=2, num_envs=40)
    easel = Easel(task_named(task).scene, CAMERAS, 64, detail="fast", distractors=2)
    renderer = easel._layers
    assert renderer is not None
    choices = ([0, 1, 2], [2], [1, 0])
    copied = [easel.draw(qpos, goal, None, chosen=chosen) for chosen in choices]
    assert len(renderer._backgrounds) == len(choices)
    monkeypatch.setattr(renderer, "_background", lambda *_: None)
    monkeypatch.setattr(renderer, "_fixed_shapes", np.zeros_like(renderer._fixed_shapes))
    for chosen, images in zip(choices, copied, strict=True):
        np.testing.assert_array_equal(easel.draw(qpos, goal, None, chosen=chosen), images)
    easel.close()


def test_the_sky_is_above_the_floor() -> None:
    """In the side view of an empty table: light above, the floor in the middle, the table below."""
    qpos = np.tile([0.0, -1.2, 0.0, -2.5, 0.0, 2.4, 0.0, 0.04, 0.04], (1, 1))
    with Camera(Scene(), ("side",), 96) as camera:
        column = camera.render(qpos, np.full((1, 3), -5.0))[0, 0, :, 4].astype(int)
    blue = column[:, 2] - column[:, 0]
    assert column[2, 2] > column[40, 2] + 30 and blue[2] > 30 > 10 > blue[-1]


def test_film_and_full_are_rendered_by_mujoco(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LayeredRenderer, "draw", lambda *_: pytest.fail("rendered as layers"))
    for detail in ("film", "full"):
        assert pictures(Scene(cube=True), *states(1)[:2], 64, detail).std() > 15


def test_a_driver_that_refuses_the_shaders_is_done_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It names the extensions, and does not build the program: MuJoCo's renderer takes over, and that is said."""
    monkeypatch.setattr(layers, "_FRAGMENT", "#version 330\nvoid main() { nonsense }")
    with Camera(Scene(), ("front",), 64, num_threads=1) as camera:
        images = camera.render(np.zeros((2, 9)), np.full((2, 3), 0.2))
    assert images.std() > 1
    assert "refuses to render in layers" in caplog.text


def test_a_driver_that_cannot_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    qpos, goal, looks = states(4)
    layered = pictures(Scene(cube=True), qpos, goal, 64, "fast", looks)
    monkeypatch.setattr("referee.sim.layers.NEEDED", ("GL_NO_such_extension",))
    singly = pictures(Scene(cube=True), qpos, goal, 64, "fast", looks)
    assert 0 < np.abs(layered - singly).mean() < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("task", ["PickCube", "PushCube"])
def test_a_model_trained_at_full_detail_ranks_pictures_alike(task: str) -> None:
    import torch

    from referee.models import ModelSpec, build
    from referee.training.augment import AugmentConfig, augment

    qpos, goal, success = visited(task, steps=120, num_envs=64)
    random = np.random.default_rng(0)
    chosen = np.concatenate([random.permutation(np.flatnonzero(success == value))[:1000] for value in (True, False)])
    random.shuffle(chosen)
    train, test = np.split(chosen, [1200])
    views, images = ("front", "side"), {}
    for detail in ("full", "fast"):
        with Camera(task_named(task).scene, views, 64, detail=detail) as camera:
            images[detail] = camera.render(qpos[chosen], goal[chosen])
    torch.manual_seed(0)
    model = build(ModelSpec(arch="resnet10", width=16, image_size=64, cameras=views)).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=1e-2)
    epochs, batch = 6, 32
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, epochs * (len(train) // batch + 1))
    labels = torch.from_numpy(success[chosen]).float()
    for _ in range(epochs):
        for rows in torch.from_numpy(random.permutation(len(train))).split(batch):
            loss = model.loss(augment(torch.from_numpy(images["full"][rows]), AugmentConfig(), random), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()
    full, fast = (auroc(success[test], model.logits(images[detail][len(train) :])) for detail in ("full", "fast"))
    assert full > 0.98
    assert abs(fast - full) < 0.001
