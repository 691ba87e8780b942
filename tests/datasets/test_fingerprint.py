"""Training frames are recognised by what they show: whole, in part, re-encoded; and fresh episodes never are."""

import io
import json
from typing import Any

import numpy as np
import pytest
from PIL import Image

from referee.config import PandaEnvConfig
from referee.datasets import fingerprint
from referee.datasets.fingerprint import Fingerprint, of_artifact
from referee.envs import make_vec
from referee.errors import RefereeError


def noise(seed: int, count: int = 20) -> np.ndarray:
    """Pictures that have nothing in common."""
    return np.random.default_rng(seed).integers(0, 256, (count, 12, 12, 3), dtype=np.uint8)


def scene(seed: int, count: int = 24, pixels: int = 64) -> np.ndarray:
    """A bright square on its way over a background that is always the same."""
    random = np.random.default_rng(seed)
    way = np.linspace(random.uniform(0.1, 0.9, 2), random.uniform(0.1, 0.9, 2), count) * (pixels - 16)
    ramp = np.linspace(40, 120, pixels)
    frames = np.repeat(((ramp[:, None] + ramp) / 2)[None, :, :, None], count, axis=0).repeat(3, axis=3)
    for frame, (row, column) in zip(frames, way.astype(int), strict=True):
        frame[row : row + 16, column : column + 16] = (240, 200, 30)
    return frames.astype(np.uint8)


def jpeg(images: np.ndarray, quality: int) -> np.ndarray:
    def coded(image: np.ndarray) -> np.ndarray:
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "JPEG", quality=quality)
        return np.asarray(Image.open(buffer).convert("RGB"))

    return np.stack([coded(image) for image in images])


def resized(images: np.ndarray, pixels: int) -> np.ndarray:
    small = [Image.fromarray(image).resize((pixels, pixels), Image.Resampling.BILINEAR) for image in images]
    return np.stack([np.asarray(image) for image in small])


def test_episodes_of_the_training_are_equal_whole_and_in_part() -> None:
    found = Fingerprint.of([noise(seed) for seed in range(6)])
    for part in (slice(None), slice(10), slice(10, None), slice(None, None, 3), slice(None, None, -1)):
        assert [found.match(noise(seed)[part]) for seed in range(6)] == ["equal"] * 6
    assert [found.match(noise(seed)) for seed in range(100, 120)] == [""] * 20
    assert found.match(np.concatenate([noise(0)[:10], noise(1)[:10]])) == "equal"
    assert found.match(np.concatenate([noise(0)[:10], noise(100)[:10]])) == ""  # half of it is new


def test_of_few_frames_the_whole_episode_is_known() -> None:
    found = Fingerprint.of([noise(seed)[[3, 9, 12, 19]] for seed in range(3)])
    assert found.match(noise(1)) == "equal" and found.match(noise(5)) == ""
    assert Fingerprint.of([noise(1)[[0, 19]]]).match(noise(1)) == ""  # two frames prove nothing


def test_reset_states_that_look_alike_prove_nothing() -> None:
    reset = noise(999, 2)
    found = Fingerprint.of([np.concatenate([reset, noise(seed)]) for seed in range(5)])
    fresh = np.concatenate([reset.repeat(20, axis=0), noise(100, 4)])
    assert found.match(fresh) == "" and found.match(reset) == ""


@pytest.mark.slow
def test_a_panda_with_the_same_resets_is_fresh() -> None:
    """Thirty-two episodes from the very same reset states, moved by other hands."""
    recorded = {hand: panda(hand) for hand in range(3)}
    assert all(np.array_equal(recorded[0][0], recorded[hand][0]) for hand in (1, 2))
    found = Fingerprint.of(recorded[0].transpose(1, 0, 2, 3, 4))
    for hand in (1, 2):
        assert [found.match(recorded[hand][:, env]) for env in range(16)] == [""] * 16
    assert [found.match(recorded[0][:, env]) for env in range(16)] == ["equal"] * 16


def panda(hand: int, steps: int = 12) -> np.ndarray:
    """uint8[T+1,16,64,64,3] of random actions that begin where those of any other hand do."""
    env = make_vec(PandaEnvConfig(task="PickCube", num_envs=16, num_threads=1, max_episode_steps=steps + 1))
    random, every = np.random.default_rng(hand), np.arange(16)
    try:
        env.reset(seed=7)
        frames = [env.render_cameras(every)["main_images"].copy()]
        for _ in range(steps):
            env.step(random.uniform(-1, 1, (16, env.single_action_space.shape[0])).astype(np.float32))  # type: ignore[index]
            frames.append(env.render_cameras(every)["main_images"].copy())
    finally:
        env.close()
    return np.stack(frames)


@pytest.mark.parametrize("change", ["jpeg 90", "jpeg 60", "96 px", "48 px"])
def test_re_encoded_and_resized_copies_are_alike(change: str) -> None:
    amount, kind = sorted(change.split(), key=str.isalpha)
    found = Fingerprint.of([scene(seed) for seed in range(8)])
    altered = [(jpeg if kind == "jpeg" else resized)(scene(seed), int(amount)) for seed in range(8)]
    assert [found.match(images) for images in altered] == ["alike"] * 8
    assert [found.match(scene(seed)) for seed in range(100, 140)] == [""] * 40


def test_where_nothing_moves_nothing_is_alike() -> None:
    still = np.repeat(scene(0)[:1], 20, axis=0)
    found = Fingerprint.of([still, scene(1)])
    assert found.match(jpeg(still, 80)) == "" and len(found.thumbnails) < 10


def test_it_survives_json_and_is_small() -> None:
    found = Fingerprint.of([scene(seed) for seed in range(20)])
    text = json.dumps(found.to_json())
    assert len(text) < 40_000  # of 480 frames
    again = of_artifact({"fingerprint": {"train": json.loads(text)}})
    assert again is not None and of_artifact({"fingerprint": {"train": json.loads(text)}}, "val") is None
    for name, array in vars(found).items():
        np.testing.assert_array_equal(getattr(again, name), array, err_msg=name)
    assert of_artifact({}) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [("hashes", "AAA"), ("hashes_of_episode", [1]), ("thumbnails", "eJw="), ("sampling", 0), ("sampling", None)],
)
def test_a_broken_one_is_refused(key: str, value: Any) -> None:
    values = {**Fingerprint.of([scene(0)]).to_json(), key: value}
    with pytest.raises(RefereeError, match="fingerprint that is broken"):
        of_artifact({"fingerprint": {"train": values}})
    with pytest.raises(RefereeError, match="fingerprint that is broken"):
        of_artifact({"fingerprint": {"train": [values]}})


def test_of_large_data_a_part_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "MAX_HASHES", 200)
    monkeypatch.setattr(fingerprint, "MAX_EPISODES", 4)
    found = Fingerprint.of([noise(seed, 60) for seed in range(10)])
    assert found.sampling == 4 and 100 < len(found.hashes) < 200
    assert [found.match(noise(seed, 60)[:40]) for seed in range(10)] == ["equal"] * 10
    assert [found.match(noise(seed, 60)) for seed in range(100, 120)] == [""] * 20
    assert len(np.unique(found.thumbnail_owners)) == 4
