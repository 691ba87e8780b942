"""Checkpoints of a training: what is kept of a Trainer, and how it goes on from there."""

from __future__ import annotations

import logging
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from referee.config import Config, FrankaEnvConfig
from referee.config.learning import SACConfig
from referee.envs.tasks import task_key
from referee.learn.callbacks import Callback
from referee.learn.evaluation import Best
from referee.learn.memory import MemoryFiles
from referee.rl import checkpoint
from referee.rl.checkpoint import Checkpoint, CheckpointError
from referee.rl.sac import SAC

if TYPE_CHECKING:
    from referee.learn.trainer import Trainer

NOT_THE_WORLD = (
    "robot",
    "use_spacemouse",
    "teleoperator",
    "camera_serials",
    "max_age",
    "max_ahead",
    "max_action_age",
    "fault_seconds",
)
"""Settings of an arm that may differ when a run goes on: who moves, who helps, and when to hold."""
_log = logging.getLogger(__name__)


class Checkpoints(Callback):
    """Saves every `runner.save_interval` iterations and after each round of refinement."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.folder = folder
        self._interval, self._keep_every = config.runner.save_interval, config.runner.keep_every
        saved = isinstance(config.algorithm, SACConfig) and config.algorithm.replay.save
        self._memory = MemoryFiles(folder) if saved else None
        train = config.env.train
        assert train is not None
        self._per_iteration = config.algorithm.rollout_steps * train.num_envs

    def on_iteration(self, trainer: Trainer, metrics: dict[str, float]) -> dict[str, float]:
        """See Callback."""
        asked = trainer.refinement is not None and trainer.refinement.asked_now
        if asked or trainer.iteration % self._interval == 0:
            trainer.save()
        return {}

    def save(self, trainer: Trainer, state: dict[str, np.ndarray], *, best: bool = False) -> Path:
        """Write a checkpoint; only the last, the best and each `keep_every`-th stay. state: of those who act."""
        folder = self.folder / "checkpoints" / ("best" if best else f"step_{trainer.steps}")
        config, evaluation = trainer.config, trainer.evaluation
        for worker, reward in enumerate(trainer.rewards):
            state |= {reward.state_key(worker) + name: value for name, value in reward.save_state().items()}
        for callback in trainer.callbacks:
            state |= callback.save_state(trainer)
        tensors, arrays = trainer.learner.save_state()
        state |= arrays
        if isinstance(trainer.learner, SAC) and self._memory is not None and not best:
            state |= self._memory.save(trainer.learner)
        checkpoint.save(
            folder,
            Checkpoint(
                policy={name: value.contiguous().clone() for name, value in trainer.policy.state_dict().items()},
                optimizer=tensors,
                arrays=state,
                meta={
                    "policy": trainer.policy.spec.to_json(),
                    "task": config.env.train.task if config.env.train else "",
                    "env": _env_settings(config),
                    "eval_episode_steps": evaluation.env.max_episode_steps,
                    "control_hz": trainer.env.metadata.get("render_fps"),
                    **_world(config),
                    "iteration": trainer.iteration,
                    "steps": trainer.steps,
                    "seconds": trainer.seconds,
                    "best": [evaluation.best.success, evaluation.best.steps],
                    "success_at_end": evaluation.outcomes.rate().share if len(evaluation.outcomes) else None,
                },
            ),
        )
        if not best:
            self._prune(trainer, folder)
        return folder

    def resume(self, trainer: Trainer, place: Path) -> int:
        """Go on from a checkpoint, exactly; returns its step."""
        began = time.perf_counter()
        folder = checkpoint.find(place)
        stored = checkpoint.load(folder)
        config = trainer.config
        assert config.env.train is not None
        train = config.env.train
        checkpoint.restore_policy(trainer.policy, stored, folder, task=train.task, key=task_key(train))
        theirs, ours = stored.meta["env"], _env_settings(config)
        ours.pop("id", None)  # the task has been compared
        different = [f"{name}={theirs[name]} (here {ours[name]})" for name in ours if theirs.get(name) != ours[name]]
        if different:
            raise CheckpointError(f"{folder} was made with env.train.{', '.join(different)}: set the same to resume")
        trainer.learner.restore_state(stored.optimizer, stored.arrays)
        trainer.source.restore_state(stored.arrays)
        for callback in reversed(trainer.callbacks):  # refinement brings its model before the alarm remembers it
            callback.restore_state(trainer, stored.arrays, stored.meta["steps"])
        for worker, reward in enumerate(trainer.rewards):
            key = reward.state_key(worker)
            if own := {k.removeprefix(key): v for k, v in stored.arrays.items() if k.startswith(key)}:
                reward.restore_state(own)
        self._restore_memory(trainer, stored, folder)
        meta = stored.meta
        trainer.iteration, trainer.steps = meta["iteration"], meta["steps"]
        trainer.evaluation.best = Best(*meta["best"])
        trainer.seconds += meta["seconds"] + time.perf_counter() - began
        return trainer.steps

    def _restore_memory(self, trainer: Trainer, stored: Checkpoint, folder: Path) -> None:
        """Bring back the replays that belong to a checkpoint; score them again if another model does by now."""
        if not isinstance(trainer.learner, SAC):
            return
        run = folder.parent.parent
        kept = self._memory if self._memory is not None and run == self.folder else MemoryFiles(run)
        if not kept.restore(trainer.learner, stored.arrays, goes_on=kept is self._memory):
            _log.warning("%s came without what the run remembered: it begins with an empty replay", folder)
        elif trainer.reward.version:
            trainer.learner.rescore(trainer.reward)

    def _prune(self, trainer: Trainer, newest: Path) -> None:
        if isinstance(trainer.learner, SAC) and self._memory is not None:
            self._memory.prune(trainer.learner)
        for path in newest.parent.glob("step_*"):
            iteration = int(path.name.removeprefix("step_")) // self._per_iteration
            if path != newest and not (self._keep_every and iteration % self._keep_every == 0):
                shutil.rmtree(path)


def _env_settings(config: Config) -> dict[str, Any]:
    """The world that a policy was trained in, as plain values: what resuming and judging must find again."""
    train = config.env.train
    assert train is not None
    settings = asdict(train)
    for name in ("env_type", "task", "num_threads", "num_workers", "num_processes", "data_collection", *NOT_THE_WORLD):
        settings.pop(name, None)
    return {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}


def _world(config: Config) -> dict[str, Any]:
    """Which world it was."""
    train = config.env.train
    assert train is not None
    scene = {"scene": train.robot.scene} if isinstance(train, FrankaEnvConfig) else {}
    return {"env_type": train.env_type, **scene}
