"""What looks at a training and may act on it: agreement with ground truth, the alarm, refinement, and what runs add.

A callback sees each rollout right after it was scored (`on_scored`, in whichever thread that is), each iteration, and
the end of the run. What it returns is logged.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from referee.config import Config
from referee.config.declare import gather
from referee.config.learning import ActorConfig
from referee.models import Artifact
from referee.models.contract import frames_of
from referee.refine.labellers import LABELLERS
from referee.refine.loop import PER_LOOK, RefineOptions, Refiner, Round
from referee.rewards import Alarm, Scores, TruthBeside, rules
from referee.rewards.source import FrameReward, RewardSource, scores_frames
from referee.rl.policy import Player
from referee.rl.rollout import Rollout

if TYPE_CHECKING:
    from referee.learn.trainer import Trainer

MINED_STEPS = 8
"""Steps of an episode in which no task can be done."""
MINE_SEED = 1_800_000
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ScoredRollout:
    """A rollout that has just been relabelled."""

    reward: RewardSource
    scores: Scores
    rollout: Rollout
    step: int
    """Of the training, at its end."""
    random: np.random.Generator
    """To sample frames with; the same in every run of a seed."""


class Callback(Protocol):
    """Looks on, and does nothing unless it says otherwise."""

    def on_scored(self, trainer: Trainer, scored: ScoredRollout) -> dict[str, float]:
        """A rollout was scored."""
        return {}

    def on_iteration(self, trainer: Trainer, metrics: dict[str, float]) -> dict[str, float]:
        """An iteration is over; metrics: all of it so far."""
        return {}

    def on_swap(self, artifact: Artifact) -> None:
        """Another reward model scores from now on."""
        return

    def on_end(self, trainer: Trainer) -> None:
        """The run is over, as it should be."""
        return

    def save_state(self, trainer: Trainer) -> dict[str, np.ndarray]:
        """What later answers depend on, by names of its own in a checkpoint."""
        return {}

    def restore_state(self, trainer: Trainer, state: Mapping[str, np.ndarray], step: int) -> None:
        """Go on from the state that was saved at a step."""
        return


def of(config: Config, reward: RewardSource, folder: Path) -> list[Callback]:
    """Those that belong to a reward: what is logged of it, what watches it, and what repairs it."""
    if not reward.learned:
        return []
    if not reward.says_success:
        return [MeanReward(), Agreement()]
    refiner = make_refiner(config, reward, folder)
    alarm = make_alarm(config, reward)
    watch = [] if alarm is None else [AlarmWatch(alarm, config.reward.alarm.frames, refines=refiner is not None)]
    return [*watch, Refinement(refiner, config.reward.refine.interval, config.reward.refine.mine), Agreement()]


class Agreement(Callback):
    """How the scores agree with ground truth, which is only logged."""

    def on_scored(self, trainer: Trainer, scored: ScoredRollout) -> dict[str, float]:
        """See Callback."""
        scores, rollout = scored.scores, scored.rollout
        if scores.success is None:
            return rewards_by_truth(scores, rollout.success)
        counts, known = TruthBeside(), rules.usable(scores.judged, rollout.held)
        counts.add(scores.success[known], rollout.success[known])
        return counts.log()


class MeanReward(Callback):
    """The mean reward of a step, by which the best policy is chosen where no model says success."""

    def __init__(self) -> None:
        self._total, self._steps = 0.0, 0

    def on_scored(self, trainer: Trainer, scored: ScoredRollout) -> dict[str, float]:
        """See Callback."""
        self._total += float(scored.scores.rewards.sum())
        self._steps += scored.scores.rewards.size
        return {}

    def take(self) -> float | None:
        """The mean since the last time; None if there was no step."""
        mean = self._total / self._steps if self._steps else None
        self._total, self._steps = 0.0, 0
        return mean

    def save_state(self, trainer: Trainer) -> dict[str, np.ndarray]:
        """See Callback."""
        return {"payment.lately": np.array([self._total, self._steps])}

    def restore_state(self, trainer: Trainer, state: Mapping[str, np.ndarray], step: int) -> None:
        """See Callback."""
        if "payment.lately" in state:
            total, steps = state["payment.lately"].tolist()
            self._total, self._steps = total, int(steps)


class AlarmWatch(Callback):
    """Lets an alarm look at some of the frames that were scored."""

    def __init__(self, alarm: Alarm, frames: int, *, refines: bool) -> None:
        """frames: of a rollout, at most. refines: whether somebody is asked about strange frames anyway."""
        self.alarm, self._frames, self._refines = alarm, frames, refines

    def on_scored(self, trainer: Trainer, scored: ScoredRollout) -> dict[str, float]:
        """See Callback."""
        alarm, reward = self.alarm, scored.reward
        assert scores_frames(reward)
        start, never = time.perf_counter(), alarm.first_at is None
        images, rows = reward.sample(self._frames, scored.random)
        threshold = reward.manager.threshold
        metrics = alarm.look(*reward.looked, images, rows, scored.step, threshold) if len(rows) else {}
        if never and alarm.first_at is not None:
            advice = (
                "judge the policy yourself, or label such frames and train the model again (reward.refine.enabled=true)"
            )
            if self._refines:
                advice = "refinement asks about such frames"
            _log.warning("alarm at step %s: %s. Do not trust its word: %s", f"{scored.step:,}", alarm.reason(), advice)
        return {**metrics, "time/alarm": time.perf_counter() - start}

    def on_swap(self, artifact: Artifact) -> None:
        """See Callback."""
        self.alarm.take(artifact)

    def save_state(self, trainer: Trainer) -> dict[str, np.ndarray]:
        """See Callback."""
        return {f"alarm.{name}": value for name, value in self.alarm.save_state().items()}

    def restore_state(self, trainer: Trainer, state: Mapping[str, np.ndarray], step: int) -> None:
        """See Callback."""
        if watched := {k.removeprefix("alarm."): v for k, v in state.items() if k.startswith("alarm.")}:
            self.alarm.restore_state(watched)


class Refinement(Callback):
    """Shows scored frames to a refiner, lets it ask and learn, and lets a better model take over."""

    def __init__(self, refiner: Refiner | None, interval: int, mine: int) -> None:
        """refiner: None where nobody wants one. mine: frames of a policy's first steps that are taken as failures."""
        self.refiner, self._interval, self._mine = refiner, interval, mine
        self.swaps: list[int] = []
        """Steps at which a better model took over."""
        self.asked_now = False
        """Whether the latest iteration ended with a round, which is worth a checkpoint."""

    def on_scored(self, trainer: Trainer, scored: ScoredRollout) -> dict[str, float]:
        """See Callback."""
        if self.refiner is None or not self.refiner.left:
            return {}
        reward, rollout = scored.reward, scored.rollout
        assert scores_frames(reward)
        images, rows = reward.sample(PER_LOOK, scored.random)
        if len(rows):
            stalled = reward.judged_held(scored.scores, rollout)[rows]
            known = rules.usable(np.ones(len(rows), bool), stalled)
            images, rows = images[known], rows[known]
        if len(rows):
            summary, probability = reward.looked
            truth = reward.judged_truth(scored.scores, rollout)
            self.refiner.watch(images, summary[rows], probability[rows], truth[rows])
        return {}

    def hear(self, reward: FrameReward, frames: Mapping[str, np.ndarray], truth: np.ndarray) -> None:
        """The last states of evaluation episodes, right after they were scored."""
        if self.refiner is not None and self.refiner.left:
            self.refiner.watch(_views(reward, frames), *reward.manager.latest, truth)

    def on_iteration(self, trainer: Trainer, metrics: dict[str, float]) -> dict[str, float]:
        """A round of questions, where one is due; it counts as time of the training."""
        self.asked_now = False
        if self.refiner is None or trainer.iteration % self._interval:
            return {}
        start = time.perf_counter()
        with trainer.source.lock:
            done = self._round(trainer, trainer.steps)
            if done is None:
                return {}
            self.asked_now = True
            found = done.numbers()
            if done.swapped and trainer.learner.off_policy:
                found["refine/rescored"] = float(trainer.learner.rescore(trainer.reward))
        spent = time.perf_counter() - start
        trainer.seconds += spent
        return {**found, "time/refine": spent}

    def _round(self, trainer: Trainer, step: int) -> Round | None:
        assert self.refiner is not None
        done = self.refiner.round(step)
        if done is not None and done.swapped:
            trainer.swap(self.refiner.artifact, self.refiner.version)
            self.swaps.append(step)
            trainer.evaluation.forget_best()
        return done

    def mine(self, trainer: Trainer) -> None:
        """Take frames of the policy's first steps in an environment as failures, and learn from them.

        Nobody is asked: in so few steps no task is done. The frames are spread over the first `MINED_STEPS`.
        """
        if self.refiner is None or not self._mine:
            return
        reward, env = trainer.reward, trainer.evaluation.env
        assert scores_frames(reward)
        player = Player(trainer.policy, env, noise_seed=0)
        observation, _ = env.reset(seed=MINE_SEED)
        images, probabilities = [], []
        for _ in range(MINED_STEPS):
            player.see(observation)
            observation, *_ = env.step(player())
            frames = env.render_cameras(cameras=reward.cameras)
            images.append(_views(reward, frames))
            verdict = reward.manager.judge(frames, cameras=reward.cameras)
            probabilities.append(np.asarray(verdict.probability))
        rows = np.linspace(0, len(images) * env.num_envs - 1, self._mine).round().astype(int)
        self.refiner.mine(np.concatenate(images)[rows], np.concatenate(probabilities)[rows], 0)
        self._round(trainer, 0)

    def save_state(self, trainer: Trainer) -> dict[str, np.ndarray]:
        """See Callback."""
        state = {"payment.version": np.array(trainer.reward.version), "payment.swaps": np.array(self.swaps, int)}
        if self.refiner is not None:
            state["payment.sheets"] = np.frombuffer("\n".join(self.refiner.book.ids).encode(), np.uint8)
        return state

    def restore_state(self, trainer: Trainer, state: Mapping[str, np.ndarray], step: int) -> None:
        """See Callback; the model of that version is in the refiner's folder."""
        if self.refiner is None:
            return
        version, sheets = int(state.get("payment.version", 0)), state.get("payment.sheets")
        artifact = self.refiner.rewind(step, version, None if sheets is None else sheets.tobytes().decode().split())
        self.swaps = state["payment.swaps"].tolist() if "payment.swaps" in state else []
        if version:
            trainer.swap(artifact, version)


def _views(reward: FrameReward, frames: Mapping[str, np.ndarray]) -> np.ndarray:
    """uint8[n,V,H,W,3]: what the model looks at."""
    return frames_of(frames, reward.manager.artifact.spec.cameras, reward.cameras)


def rewards_by_truth(scores: Scores, success: np.ndarray) -> dict[str, float]:
    """What is true of the steps that were scored, and their mean reward where it is a success and where not."""
    metrics = {"reward/judged": float(scores.judged.sum())}
    if scores.judged.any():
        metrics["reward/true_success"] = float(success[scores.judged].mean())
    for name, where in (("paid_success", success), ("paid_failure", ~success)):
        if (scores.judged & where).any():
            metrics[f"reward/{name}"] = float(scores.rewards[scores.judged & where].mean())
    return metrics


def make_alarm(config: Config, reward: RewardSource) -> Alarm | None:
    """What watches a reward model; None where nobody wants it, or where weights came without an artifact."""
    if not config.reward.alarm.enabled or reward.artifact is None:
        return None
    if reward.artifact.reference is None:
        _log.warning("the reward model came without a reference of its training frames, so no alarm watches it")
        return None
    return Alarm(reward.artifact)


def make_refiner(config: Config, reward: RewardSource, folder: Path) -> Refiner | None:
    """What repairs the reward model of a run; None where nobody wants it."""
    wanted = config.reward.refine
    if not wanted.enabled or reward.artifact is None:
        return None
    assert isinstance(config.actor, ActorConfig) and config.env.train is not None
    options = gather(RefineOptions, wanted, seed=config.runner.seed, threads=config.actor.num_threads)
    return Refiner(
        reward.artifact,
        refined_folder(folder),
        LABELLERS[wanted.labeller](),
        options,
        mode=reward.options.reward_mode,
        task=config.env.train.task,
        data=None if wanted.data is None else Path(wanted.data),
    )


def refined_folder(run: Path) -> Path:
    """Where a run keeps its questions, answers and versions."""
    return run / "refine"
