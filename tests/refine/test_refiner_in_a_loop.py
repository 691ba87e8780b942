"""`referee.Refiner` in a loop of one's own: no private attribute, and the better model scores from then on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from tests.synthetic import square_films

import referee
from referee.refine.labellers import Truth
from referee.rewards.scored import ScoredFrames

SMALL = referee.RefineOptions(budget=48, ask=24, steps=20)


class Films(gym.Env[np.ndarray, int]):
    """Plays recordings in which success looks different from those that the model was trained on."""

    action_space = gym.spaces.Discrete(2)
    observation_space = gym.spaces.Box(0, 255, (32, 32, 3), np.uint8)

    def __init__(self) -> None:
        frames, self.labels, _ = square_films(200, seed=9)
        self.frames = np.where(self.labels[:, None, None, None] == 1, frames[..., ::-1] // 2 + 90, frames).astype(
            np.uint8
        )
        self.at = -1

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.at += 1
        return self.frames[self.at], {"success": bool(self.labels[self.at])}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.at += 1
        return self.frames[self.at], 0.0, self.at % 12 == 11, False, {"success": bool(self.labels[self.at])}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> referee.Artifact:
    frames, labels, groups = square_films(40, seed=0)
    out = tmp_path_factory.mktemp("refiner") / "run"
    return referee.train(frames, labels, groups=groups, out=out, max_epochs=2, width=8)


def play(env: Any, steps: int) -> None:
    env.reset()
    for _ in range(steps):
        if env.step(0)[2]:
            env.reset()


@pytest.mark.slow
def test_update_asks_retrains_and_swaps(model: referee.Artifact, tmp_path: Path) -> None:
    env = referee.RewardModelWrapper(Films(), model, mode="per_step")
    refiner = referee.Refiner(model, tmp_path / "refined", "truth", SMALL, mode="per_step")
    assert refiner.update(env, 0) is None  # nothing was scored yet
    rounds = []
    for step in (1, 2):
        play(env, 200)
        rounds.append(refiner.update(env, step))
    assert [done.asked for done in rounds if done] == [24, 24] and refiner.left == 0
    last = rounds[-1]
    assert last is not None and last.answered == 48 and last.compared is not None
    assert last.swapped and last.compared.loss[1] < last.compared.loss[0]
    assert env.scorer.artifact is refiner.artifact is not model
    assert referee.load(tmp_path / f"refined/versions/v{last.version}").provenance["refined"]["step"] == 2


def test_look_scores_frames_as_the_wrapper_does(model: referee.Artifact, tmp_path: Path) -> None:
    frames, labels, _ = square_films(12, seed=4)
    few = referee.RefineOptions(budget=6, ask=6)
    looked = referee.Refiner(model, tmp_path / "a", "truth", few, mode="per_step")
    looked.look(frames, labels == 1)
    _, summary = model.seen(frames[:, None])
    scored = ScoredFrames(frames[:, None], summary, referee.score(model, frames).probability, labels == 1)
    watched = referee.Refiner(model, tmp_path / "b", Truth(), few, mode="per_step")

    class Fixed:
        def take_scored(self) -> ScoredFrames:
            return scored

        def swap(self, artifact: referee.Artifact) -> None:
            raise AssertionError("there are too few answers for another model")

    first, second = looked.round(1), watched.update(Fixed(), 1)
    assert first is not None and second is not None
    assert (first.asked, first.fooled, first.missed) == (second.asked, second.fooled, second.missed)
    assert first.asked == 6
    questions = [refiner.book.sheets()[0].images for refiner in (looked, watched)]
    assert np.array_equal(*questions)


def test_what_a_refiner_cannot_be_made_of(model: referee.Artifact, tmp_path: Path) -> None:
    with pytest.raises(referee.RefereeError, match="labeller is 'me': give truth, terminal, log, or an object"):
        referee.Refiner(model, tmp_path / "r", "me")
    with pytest.raises(referee.RefereeError, match="mode is 'sometimes': give terminal or per_step"):
        referee.Refiner(model, tmp_path / "r", mode="sometimes")
    assert not list(tmp_path.iterdir())
