"""Where the reward of a rollout comes from: one protocol for every kind of reward model, and one line for each kind.

While a rollout is made, `watch` sees each step and keeps what must be scored. Afterwards, `relabel` puts the learned
reward in place of the environment's. A new kind is a file with a function `make(config, env, steps, …)`, and a line in
`SOURCES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, TypeGuard

import numpy as np

from referee.config.schema import RewardConfig
from referee.envs.contract import RefereeVectorEnv, StepResult
from referee.models import Artifact
from referee.models.contract import Verdict
from referee.rewards import rules
from referee.rewards.manager import RewardManager
from referee.rewards.rules import RewardOptions
from referee.rewards.score_rollout import RolloutFrames, Scores

Features = tuple[np.ndarray, np.ndarray]
"""Features f32[n,·] and probabilities f32[n] of scored frames."""


class Steps(Protocol):
    """What a reward source reads of a rollout of T steps of N environments, and what it writes."""

    steps: int
    num_envs: int
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    success: np.ndarray
    held: np.ndarray
    versions: np.ndarray
    env_rewards: np.ndarray | None


@dataclass(frozen=True)
class RemoteScores:
    """What a model in another process says of the frames of a rollout."""

    verdict: Verdict
    features: Features
    version: int
    """Of the model."""
    seconds: float
    """Spent on it."""


class RewardSource(Protocol):
    """The reward of rollouts from some environments; `share` makes another one with the same model."""

    @property
    def learned(self) -> bool:
        """Whether a model gives the reward, and not the environment."""
        ...

    @property
    def says_success(self) -> bool:
        """Whether the model says which states are a success, not only which reward they have."""
        ...

    @property
    def ends_episodes(self) -> bool:
        """Whether a verdict may end an episode, so that each state is scored at once."""
        ...

    @property
    def scored_by_others(self) -> bool:
        """Whether workers that have nothing but the model can score what was drawn."""
        ...

    @property
    def remembers(self) -> bool:
        """Whether what it draws depends on what it saw before."""
        ...

    @property
    def options(self) -> RewardOptions:
        """How scores become rewards."""
        ...

    @property
    def cameras(self) -> tuple[str, ...]:
        """That must be drawn."""
        ...

    @property
    def version(self) -> int:
        """Of the model: how many have been in its place before."""
        ...

    @property
    def artifact(self) -> Artifact | None:
        """The model, where workers elsewhere can have it."""
        ...

    @property
    def note(self) -> str:
        """A line that a run says of it at the start; empty for none."""
        ...

    # --- while a rollout is made ---

    def begin(self) -> None:
        """A rollout begins."""

    def watch(self, step: int, result: StepResult) -> np.ndarray | None:
        """See the result of a step; says which episodes end here, bool[N], or None for none."""

    def drawn(self) -> Any:
        """What was drawn of the rollout, to be scored elsewhere; None of nothing."""

    def score_at_once(self, rollout: Steps) -> Scores | None:
        """What the model said while the rollout was made, where it scores each state at once;"""

    def features(self) -> Features | None:
        """and what it found in those frames."""

    # --- when it is full ---

    def take(self, drawn: Any, features: Features | None = None, remote: RemoteScores | None = None) -> None:
        """What was drawn elsewhere; with what the model found in it, or all that a model elsewhere says of it."""

    def relabel(self, rollout: Steps, scores: Scores | None = None) -> Scores | None:
        """Put the learned reward in place of the environment's; None where there is no model.

        scores: that are known already.
        """

    def scored_frames(self, scores: Scores) -> RolloutFrames | None:
        """The frames that were scored, for a better model to score them again; None where none could."""

    def metrics(self) -> dict[str, float]:
        """About the rollout that was scored, under log names."""

    # --- what was recorded ---

    def score_episode(
        self, frames: np.ndarray, *, whole: bool = False, held: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Rewards f32[t] of a recorded episode's steps, and which of them were scored bool[t].

        frames: uint8[T+1,V,H,W,3], its first state included. held: bool[T], where an arm stalled. Where a verdict ends
        episodes, t may be less than T, unless the `whole` is wanted.
        """

    def rescore(
        self, frames: np.ndarray, began: np.ndarray, held: np.ndarray, *, cameras: tuple[str, ...] | None = None
    ) -> np.ndarray:
        """f32[n]: the model's reward for frames uint8[n,V,H,W,3] that followed each other.

        began: bool[n], where an episode begins. held: bool[n], where an arm stalled. cameras: of the frames, if not
        those that the model looks at.
        """

    # --- keeping ---

    def share(self, num_envs: int) -> RewardSource:
        """Another one with the same model, for rollouts of so many environments that others draw."""

    def swap(self, artifact: Artifact, version: int) -> None:
        """Let another model score from the next rollout on."""

    def state_key(self, worker: int) -> str:
        """What the names in a checkpoint begin with, of the source of a rollout worker."""

    def save_state(self) -> dict[str, np.ndarray]:
        """What later rewards depend on."""

    def restore_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from a saved state."""

    def account(self) -> dict[str, float]:
        """What was asked in the whole run; empty where nobody wants to know."""


class FrameReward(RewardSource, Protocol):
    """A reward source whose model scores single frames and says success: what alarm and refinement look at."""

    @property
    def manager(self) -> RewardManager:
        """What scores."""
        ...

    @property
    def looked(self) -> Features:
        """What the model found in the frames of the rollout that was scored, in the order of `sample`'s rows."""
        ...

    def sample(self, count: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """At most so many of these frames, drawn evenly: uint8[m,V,H,W,3], and their rows int[m]."""
        ...

    def judged_truth(self, scores: Scores, rollout: Steps) -> np.ndarray:
        """bool[n]: which of these frames are true successes."""
        ...

    def judged_held(self, scores: Scores, rollout: Steps) -> np.ndarray:
        """bool[n]: in which of them an arm stalled, so that nobody knows what is true of them."""
        ...


def scores_frames(reward: RewardSource) -> TypeGuard[FrameReward]:
    """Whether the model scores single frames and says which are a success."""
    return reward.says_success


def relabel(rollout: Steps, scores: Scores, options: RewardOptions) -> Scores:
    """The learned reward of each step in place of the environment's, which is kept beside it."""
    rollout.env_rewards = rollout.rewards.copy()
    rollout.versions[:] = scores.version
    true_success = rollout.success & scores.judged
    rollout.rewards[:] = rules.combine(rollout.rewards, scores.rewards, options, true_success=true_success)
    return scores


class NoReward:
    """The environment's own reward: nothing is drawn, scored or kept."""

    learned = says_success = ends_episodes = scored_by_others = remembers = False
    options = RewardOptions()
    cameras: tuple[str, ...] = ()
    version = 0
    artifact: Artifact | None = None
    note = ""

    def begin(self) -> None:
        """See RewardSource."""

    def watch(self, step: int, result: StepResult) -> np.ndarray | None:
        """See RewardSource."""
        return None

    def drawn(self) -> Any:
        """See RewardSource."""
        return None

    def score_at_once(self, rollout: Steps) -> Scores | None:
        """See RewardSource."""
        return None

    def features(self) -> Features | None:
        """See RewardSource."""
        return None

    def take(self, drawn: Any, features: Features | None = None, remote: RemoteScores | None = None) -> None:
        """See RewardSource."""

    def relabel(self, rollout: Steps, scores: Scores | None = None) -> Scores | None:
        """See RewardSource."""
        return None

    def scored_frames(self, scores: Scores) -> RolloutFrames | None:
        """See RewardSource."""
        return None

    def metrics(self) -> dict[str, float]:
        """See RewardSource."""
        return {}

    def score_episode(
        self, frames: np.ndarray, *, whole: bool = False, held: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """See RewardSource."""
        raise NotImplementedError("the environment's own reward is not scored")

    def rescore(
        self, frames: np.ndarray, began: np.ndarray, held: np.ndarray, *, cameras: tuple[str, ...] | None = None
    ) -> np.ndarray:
        """See RewardSource."""
        raise NotImplementedError("the environment's own reward is not scored")

    def share(self, num_envs: int) -> RewardSource:
        """See RewardSource."""
        return self

    def swap(self, artifact: Artifact, version: int) -> None:
        """See RewardSource."""

    def state_key(self, worker: int) -> str:
        """See RewardSource."""
        return f"reward{worker or ''}."

    def save_state(self) -> dict[str, np.ndarray]:
        """See RewardSource."""
        return {}

    def restore_state(self, state: Mapping[str, np.ndarray]) -> None:
        """See RewardSource."""

    def account(self) -> dict[str, float]:
        """See RewardSource."""
        return {}


Make = Callable[..., RewardSource]
"""`make(config, env, steps, hold=…, draws_only=…)`: see `make_reward`."""
SOURCES = {
    "resnet": "referee.rewards.classifier",
    "vlm": "referee.rewards.windows",
    "history_vlm": "referee.rewards.windows",
}
"""Model type → the module whose `make` makes its reward source; any other type is an image classifier's."""


def make_reward(
    config: RewardConfig, env: RefereeVectorEnv, steps: int, *, hold: int = 1, draws_only: bool = False
) -> RewardSource:
    """The reward of rollouts of so many steps.

    hold: successive verdicts that end an episode, where they do. draws_only: for those who act while others score,
        where the model has been opened and all was said about it.
    """
    if not config.use_reward_model:
        return NoReward()
    module = import_module(SOURCES.get(config.model.model_type or "resnet", SOURCES["resnet"]))
    make: Make = module.make
    return make(config, env, steps, hold=hold, draws_only=draws_only)
