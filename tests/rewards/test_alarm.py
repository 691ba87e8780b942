"""The alarm: silent on frames such as the model knows, raised on others, and the same after a break."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from referee.errors import RefereeError
from referee.models import Artifact, Calibration, ModelSpec, Reference, build
from referee.models.artifact import embed
from referee.models.contract import probability_of
from referee.rewards.alarm import BANDS, LEAST, WINDOW, Alarm, other_view

SPEC = ModelSpec(arch="resnet10", width=4, image_size=32, cameras=("front", "side"), hidden_dim=8)


def known(count: int, seed: int) -> np.ndarray:
    """A light square somewhere on a dark ground, seen by two cameras."""
    random = np.random.default_rng(seed)
    images = np.full((count, 2, 32, 32, 3), 40, np.uint8)
    for image, (row, column) in zip(images, random.integers(2, 22, (count, 2)), strict=True):
        image[:, row : row + 8, column : column + 8] = 200
    return images


def unknown(count: int, seed: int) -> np.ndarray:
    """The same with the whole ground in another light."""
    return np.where(known(count, seed) == 40, 230, 10).astype(np.uint8)


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    torch.manual_seed(0)
    model = build(SPEC).train()
    with torch.no_grad():
        for seed in range(5):
            model(model.prepare(known(32, seed)))  # the norms get to know the pictures
    model.eval()
    reference = Reference.of(embed(model, known(400, 1)), known(400, 1)).calibrated(embed(model, known(1500, 2)))
    return Artifact(model, Calibration(), reference=reference)


def look(alarm: Alarm, images: np.ndarray, step: int) -> dict[str, float]:
    """What an iteration says in which all of the images are judged, and half of them looked at once more."""
    logits, summary = alarm._artifact.seen(images)
    return alarm.look(summary, probability_of(logits), images[::2], np.arange(len(images))[::2], step, 0.5)


def test_silent_on_what_is_known(artifact: Artifact) -> None:
    alarm = Alarm(artifact)
    numbers = [look(alarm, known(16, 100 + step), step) for step in range(40)]
    quiet = LEAST[0] // 16 - 1
    assert not any(numbers[:quiet]) and all(numbers[quiet:])
    assert alarm.raised_at is None and max(each["reward/alarm"] for each in numbers[quiet:]) < 1
    strange = np.mean([each["reward/alarm_strange"] for each in numbers[quiet:]])
    assert strange == pytest.approx(0.02, abs=0.02)


def test_raised_on_what_is_not_known_and_it_stays(artifact: Artifact) -> None:
    alarm = Alarm(artifact)
    for step in range(10):
        look(alarm, known(16, 100 + step), 10 * step)
    for step in range(10, 10 + WINDOW[0] // 16):
        numbers = look(alarm, unknown(16, step), 10 * step)
    assert alarm.raised_at is not None and 100 <= alarm.raised_at <= 200
    assert numbers["reward/alarm"] >= numbers["reward/alarm_strange"] / BANDS["strange"] > 1.5
    raised = alarm.raised_at
    for step in range(30, 30 + WINDOW[0] // 16):
        numbers = look(alarm, known(16, step), step)
    assert numbers["reward/alarm_strange"] < BANDS["strange"] and alarm.raised_at == raised
    assert "unlike those of training" in reason_of(artifact)


def reason_of(artifact: Artifact) -> str:
    alarm = Alarm(artifact)
    look(alarm, unknown(LEAST[0], 0), 0)
    return alarm.reason()


def test_the_same_after_a_break(artifact: Artifact) -> None:
    alarm = Alarm(artifact)
    for step in range(12):
        look(alarm, unknown(16, step), step)
    again = Alarm(artifact)
    again.restore_state(alarm.save_state())
    assert again.raised_at == alarm.raised_at
    assert look(again, known(16, 9), 9) == look(alarm, known(16, 9), 9) != {}


def test_nothing_judged_is_nothing_to_say(artifact: Artifact) -> None:
    assert look(Alarm(artifact), np.zeros((0, 2, 32, 32, 3), np.uint8), 0) == {}


def test_it_needs_a_reference() -> None:
    with pytest.raises(RefereeError, match=r"reference.safetensors.*reward.alarm.enabled=false"):
        Alarm(Artifact(build(SPEC)))


def test_another_view_is_a_little_to_the_side_and_darker() -> None:
    images = known(3, 0)
    seen = other_view(images)
    assert seen.shape == images.shape and seen.dtype == np.uint8
    np.testing.assert_array_equal(seen[..., 2:, :], (images[..., :-2, :] * 0.95).astype(np.uint8))
    np.testing.assert_array_equal(seen[..., 0, :], seen[..., 1, :])


def test_usual_distances_are_those_of_validation() -> None:
    random = np.random.default_rng(0)
    features = random.standard_normal((500, 6)).astype(np.float32)
    reference = Reference.of(features, np.zeros((1, 1, 8, 8, 3), np.uint8))
    within = reference.usual_within(0.9)  # of training frames, as long as there are no others
    assert np.mean(reference.distance(features) <= within) == pytest.approx(0.9, abs=0.05)
    far = reference.calibrated(3 * features[:100])
    assert np.mean(far.distance(3 * features[:100]) <= far.usual_within(0.9)) == pytest.approx(0.9, abs=0.01)
    assert Reference.from_arrays(far.arrays()).usual_within(0.5) == far.usual_within(0.5)
    with pytest.raises(RefereeError, match="no list"):
        Reference.from_arrays({**far.arrays(), "usual": np.zeros((2, 2))})


def test_successes_unlike_the_known_ones_raise_it(artifact: Artifact) -> None:
    """Most frames are failures as ever; it is those called a success that nobody has seen."""
    assert artifact.reference is not None
    features = embed(artifact.model, known(400, 1))
    wins = np.arange(400) % 2 == 0
    reference = Reference.of(features, known(400, 1), successes=wins).calibrated(features, successes=wins)
    watched = Alarm(Artifact(artifact.model, artifact.calibration, reference=reference))
    usual, other = embed(artifact.model, known(64, 5)), embed(artifact.model, unknown(64, 6))
    none = np.zeros((0, 2, 32, 32, 3), np.uint8)
    said = np.r_[np.full(32, 0.9), np.full(32, 0.1)].astype(np.float32)

    def see(successes: np.ndarray, step: int) -> dict[str, float]:
        return watched.look(np.concatenate([successes[:32], usual[32:]]), said, none, np.zeros(0, int), step, 0.5)

    quiet = [see(usual, step) for step in range(8)]
    assert quiet[-1]["reward/alarm_unknown"] < BANDS["unknown"] and watched.raised_at is None
    while watched.raised_at is None:
        numbers = see(other, 100)
    assert numbers["reward/alarm_unknown"] > BANDS["unknown"] and "unlike the successes it knows" in watched.reason()
