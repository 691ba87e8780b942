"""Policy training: a rollout source, a reward source, a learner and callbacks, put together and not inherited.

    source.next() ──rollouts──▶ reward.relabel() ──rewards──▶ learner.learn() ──metrics──▶ callbacks

Training in step, side by side, in other processes and under Ray differ only in which RolloutSource is built.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from referee.config import Config
from referee.config.learning import ActorConfig
from referee.envs import RefereeVectorEnv
from referee.learn import build, callbacks, checkpoints, warm_start
from referee.learn.batch import RolloutBatch
from referee.learn.callbacks import AlarmWatch, Callback, Refinement, ScoredRollout
from referee.learn.evaluation import Evaluation
from referee.learn.source import RolloutSource
from referee.models import Artifact
from referee.rewards import Alarm
from referee.rewards.source import RewardSource
from referee.rl.rollout import Rollout
from referee.rl.squashed import make_policy

SUMS = ("reward/judged", "reward/windows", "time/alarm")
"""What the rollouts of several workers, made in step, add up to; of all else, the mean is logged."""


class Trainer:
    """The state of a run, and its loop.

    >>> trainer = Trainer(config, Path("logs/run"))
    >>> trainer.warm_start(Console())
    >>> while not trainer.finished():
    ...     metrics = trainer.iterate()
    >>> trainer.save()
    """

    def __init__(self, config: Config, folder: Path = Path(), *, source: RolloutSource | None = None) -> None:
        """source: of rollouts, if not the one that the configuration asks for."""
        began = time.perf_counter()
        assert isinstance(config.actor, ActorConfig) and config.env.train is not None
        self.config, self.folder = config, folder
        torch.manual_seed(config.runner.seed)
        self.source = build.make_source(config, folder) if source is None else source
        self.evaluation = Evaluation(config, folder)
        self.policy = make_policy(build.policy_spec(config, self.env))
        self.rewards = build.make_rewards(config, self.env, self.source.workers)
        self.callbacks = callbacks.of(config, self.reward, folder)
        self.learner = build.make_learner(self)
        self.rollout = Rollout(self.env, config.algorithm.rollout_steps, self.policy.inputs)
        """The one that was learned from last."""
        self.source.connect(self.policy, self.reward, self.rollout)
        self.checkpoints = checkpoints.Checkpoints(config, folder)
        self.iteration, self.steps = 0, 0
        self._shown: dict[str, float] = {}
        self.seconds = time.perf_counter() - began
        """Of training: setting up, warming up, acting, scoring, learning and refining, but not evaluating or saving."""

    @property
    def env(self) -> RefereeVectorEnv:
        """The environments; some that look like them, where they are elsewhere."""
        return self.source.env.env

    @property
    def reward(self) -> RewardSource:
        """The reward, where one acts; that of the first rollout worker."""
        return self.rewards[0]

    @property
    def refinement(self) -> Refinement | None:
        """What repairs a reward model that says success."""
        return next((each for each in self.callbacks if isinstance(each, Refinement)), None)

    @property
    def alarm(self) -> Alarm | None:
        """What watches the reward model."""
        return next((each.alarm for each in self.callbacks if isinstance(each, AlarmWatch)), None)

    # --- the loop ---

    def run(self, also: Sequence[Callback] = (), *, stop: Callable[[], bool] = lambda: False) -> None:
        """Train until the end, or until somebody wants to stop. also: callbacks that see whole iterations."""
        while not (self.finished() or stop()):
            metrics = self.iterate()
            for callback in also:
                metrics |= callback.on_iteration(self, metrics)

    def iterate(self) -> dict[str, float]:
        """One iteration: rollouts, their rewards, learning, and what callbacks find."""
        start = time.perf_counter()
        batches = self.source.next(self)
        for batch in batches:
            if batch.metrics is None:
                self.relabel(batch)
        collected = time.perf_counter()
        self._remember(batches)
        progress = min(1.0, self.steps / self.config.runner.max_steps)
        learned = self.learner.learn(progress=progress, iteration=self.iteration, pace=self.source.pace(self))
        end = time.perf_counter()
        self.iteration += 1
        count = sum(batch.rollout.steps * batch.rollout.num_envs for batch in batches)
        self.steps += count
        self.seconds += end - start
        metrics = self._metrics(batches) | {f"train/{name}": float(value) for name, value in learned.items()}
        metrics |= {"time/rollout": collected - start, "time/update": end - collected}
        metrics |= {"time/steps_per_second": count / (end - start), "time/minutes": self.seconds / 60}
        for callback in self.callbacks:
            metrics |= callback.on_iteration(self, metrics)
        self._shown |= metrics
        return metrics

    def relabel(self, batch: RolloutBatch) -> None:
        """Give a rollout its reward, and let callbacks look at what was scored."""
        rollout, reward = batch.rollout, self.rewards[batch.worker]
        if batch.drawn is not None:
            remote = batch.remote  # unless a better model has taken over meanwhile: then it scores here
            current = remote if remote is not None and remote.version == reward.version else None
            reward.take(batch.drawn, batch.features, current)
        with self.learner.threads.all_at_work():  # the simulation does not need the cores now
            scores = reward.relabel(rollout, batch.scores)
        batch.metrics = {}
        if scores is None:
            return
        if self.learner.keeps_frames:
            rollout.judged = reward.scored_frames(scores)
        batch.metrics["time/compute_model_rewards"] = scores.seconds_per_step(len(self.rewards))
        batch.metrics |= reward.metrics()
        seed = (self.config.runner.seed, batch.steps, *([batch.worker] if batch.worker else []))
        scored = ScoredRollout(reward, scores, rollout, batch.steps, np.random.default_rng(seed))
        for callback in self.callbacks:
            batch.metrics |= callback.on_scored(self, scored)

    def _remember(self, batches: Sequence[RolloutBatch]) -> None:
        """Let the learner take rollouts in; those of workers in step are one."""
        if not batches:
            return
        rollouts = [batch.rollout for batch in batches]
        for rollout in [Rollout.joined(rollouts)] if self.source.in_step else rollouts:
            self.rollout = rollout
            self.learner.remember(rollout)
        version = self.reward.version
        if any((each.versions != version).any() for each in rollouts):
            # In-flight rollouts are scored again after a model swap: no two models are mixed.
            with self.source.lock:
                self.learner.rescore(self.reward)

    def _metrics(self, batches: Sequence[RolloutBatch]) -> dict[str, float]:
        """Of rollouts, under log names."""
        metrics: dict[str, float] = {}
        for name in batches[0].finished:
            values = [value for batch in batches for value in batch.finished[name]]
            if values:
                metrics[f"env/{name}"] = float(np.mean(values))
        metrics["rollout/rewards"] = float(np.mean([batch.rollout.rewards.mean() for batch in batches]))
        found = [batch.metrics or {} for batch in batches]
        for name in dict.fromkeys(name for each in found for name in each):
            total = np.sum if self.source.in_step and name in SUMS else np.mean
            metrics[name] = float(total([each[name] for each in found if name in each]))
        metrics |= self.source.metrics(batches, self)
        if not self.source.in_step:
            metrics["async/utd"] = self.learner.updates / max(1, self.steps)
        return metrics

    def swap(self, artifact: Artifact, version: int) -> None:
        """Let another reward model score from the next rollout on, wherever one does."""
        for reward in self.rewards:
            reward.swap(artifact, version)
        for callback in self.callbacks:
            callback.on_swap(artifact)
        self.source.swap(artifact, version)

    # --- its ends ---

    def warm_start(self, console: Console) -> None:
        """Take over a policy, or look at the first states; clone demonstrations and mine failures if asked to."""
        began, evaluated = time.perf_counter(), self.evaluation.seconds
        warm_start.first_policy(self, console)
        if self.refinement is not None:
            self.refinement.mine(self)
        self.seconds += time.perf_counter() - began - (self.evaluation.seconds - evaluated)

    def finished(self) -> bool:
        """Whether the steps, the minutes or the wanted success are reached, or an alarm ends it.

        However few the minutes are, there is one iteration.
        """
        runner = self.config.runner
        late = runner.max_minutes is not None and self.iteration > 0 and self.seconds >= 60 * runner.max_minutes
        good = runner.target_success is not None and self.evaluation.best.success >= runner.target_success
        return self.steps >= runner.max_steps or late or good or self.alarmed

    @property
    def alarmed(self) -> bool:
        """Whether an alarm ends it."""
        raised = None if self.alarm is None else self.alarm.raised_at
        return raised is not None and self.config.reward.alarm.stop

    def evaluate(self) -> dict[str, float]:
        """The deterministic policy on the fixed evaluation episodes."""
        metrics = self.evaluation.evaluate(self)
        self._shown |= metrics
        return metrics

    def save(self, *, best: bool = False) -> Path:
        """Write a checkpoint; only the last, the best and each `keep_every`-th stay."""
        batches, state = self.source.pause(self)  # first: what was still on its way counts
        for batch in batches:
            self._remember([batch])
            self.steps += batch.rollout.steps * batch.rollout.num_envs
        return self.checkpoints.save(self, state, best=best)

    def resume(self, place: Path) -> int:
        """Go on from a checkpoint, exactly; returns its step."""
        return self.checkpoints.resume(self, place)

    def status_line(self) -> str:
        """What the progress bar says."""
        shown = self._shown
        train, evaluated = shown.get("env/success_at_end"), shown.get("eval/success_at_end")
        parts = [f"{shown.get('time/steps_per_second', 0):,.0f} steps/s"]
        if train is not None:
            parts.append(f"success {100 * train:.0f} %")
        if evaluated is not None:
            parts.append(f"evaluated {100 * evaluated:.1f} %")
        if (gap := shown.get("reward/hacking_gap")) is not None:
            parts.append(f"gap {100 * gap:+.0f} %")
        if self.alarm is not None and self.alarm.raised_at is not None:
            parts.append("ALARM")
        return " · ".join(parts)

    def close(self) -> None:
        """Close the environments, and end all workers."""
        try:
            self.source.close()
        finally:
            self.evaluation.env.close()
