"""The off-policy learner: remembers what happened, and learns from memories and demonstrations."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import torch

from referee.config.learning import ActorConfig, BCConfig, SACConfig
from referee.rewards import RewardOptions, Scored, rules
from referee.rl import bc, checkpoint
from referee.rl.replay import Replay
from referee.rl.rollout import Rollout
from referee.rl.sac import SAC
from referee.rl.squashed import SquashedPolicy
from referee.workers.actor import pay_rollout
from referee.workers.reward import RewardWorker
from referee.workers.threads import Threads


class LearnerWorker:
    """Owns critics, optimisers and replays. Takes the place of `ActorWorker` where the algorithm is SAC."""

    def __init__(
        self,
        policy: SquashedPolicy,
        algorithm: SACConfig,
        actor: ActorConfig,
        replay: Replay,
        demos: Replay | None,
        *,
        seed: int,
        cameras: tuple[str, ...] | None = None,
        lesson: BCConfig | None = None,
        spare: int = 0,
    ) -> None:
        """cameras: of the pictures in the replays, where they are what the policy observes.

        lesson: how to clone the demonstrations, where the first policy is a clone. spare: cores that others need
        meanwhile.
        """
        self.generator = torch.Generator().manual_seed(seed)
        self.learner = SAC(policy, algorithm, actor, self.generator)
        self.replay, self.demos, self._cameras = replay, demos, cameras
        self.threads = Threads(actor.num_threads, spare=spare)
        self._owed, self._alone, self._lesson = 0.0, 0, lesson
        self.settling = algorithm.settle_steps > 0
        """Whether the first policy acts on, and nothing is learned yet."""

    # --- what was paid ---

    def update_rewards(self, rollout: Rollout, scored: Scored, options: RewardOptions) -> None:
        """Replace the environment's rewards of a rollout by what is really paid: see docs/rewards.md."""
        rollout.env_rewards = rollout.rewards.copy()
        pay_rollout(rollout, scored, options)

    @property
    def wants_pictures(self) -> bool:
        """Whether what the reward model looked at must be kept, so that a better one can judge it again."""
        return self.replay.album is not None and not self.replay.seen

    def rescore(self, reward: RewardWorker) -> int:
        """Let the model that judges now pay for all that is remembered; returns how many frames it looked at."""
        manager, options, frames = reward.manager, reward.options, 0
        judge = partial(reward.rejudge, cameras=self._cameras)

        def mix(env: np.ndarray, model: np.ndarray, truth: np.ndarray) -> np.ndarray:
            return rules.combine(env, model, options, true_success=truth)

        with self.threads.all_at_work():
            for memory in (self.replay, self.demos):
                if memory is not None:
                    every = options.reward_mode == "per_step"
                    frames += memory.rescore(judge, mix, every=every, version=manager.version)
        return frames

    # --- learning ---

    def remember(self, rollout: Rollout, first: int = 0) -> None:
        """Take a rollout in; what a person did in it counts as demonstrated, too. first: its first environment."""
        self.replay.add(rollout, first)
        config = self.learner.config
        if self.demos is not None and rollout.intervened.any():
            self.demos.add_stretches(rollout)
        if self.replay.steps >= config.random_steps:
            self._owed += config.utd * rollout.steps * rollout.num_envs
        if not self.settling:
            self.get_used_to(torch.from_numpy(rollout.observations["states"]))
        elif self.replay.steps >= config.settle_steps:
            self._settle()

    def get_used_to(self, states: torch.Tensor) -> None:
        """Let the normaliser take in states f32[…,d]."""
        norm = self.learner.policy.norm
        if norm is not None and self.learner.config.normalise_observations:
            norm.update(states)

    def _settle(self) -> None:
        """The first policy has shown where it comes: see that, clone with these eyes, and let the critics catch up."""
        self.settling = False
        if "states" in self.learner.policy.inputs:
            self.get_used_to(self.replay.steps_shown()[0]["states"])
        if self.demos is not None and self._lesson is not None:
            bc.clone(self.learner.policy, *self.demos.steps_shown(), self._lesson, self.generator)
        self._alone = int(self._owed)

    def update(self, rollout: Rollout, *, progress: float, iteration: int) -> dict[str, float]:
        """Remember a rollout, and learn as much as its steps allow; returns the metrics."""
        self.remember(rollout)
        rate = self.learner.set_rate(progress)
        learned = self.learn(self.due())
        return {**learned, **self.memory(), "lr": rate}

    def memory(self) -> dict[str, float]:
        """How much is remembered."""
        return {"replay_steps": float(self.replay.steps), "replay_mb": self.replay.nbytes / 1e6}

    def due(self, most: int | None = None) -> int:
        """Updates that the steps remembered so far allow, to be done now; beyond `most`, they are given up."""
        if self.settling:
            return 0
        due, self._owed = int(self._owed), self._owed % 1.0
        return due if most is None else min(due, most)

    def learn(self, updates: int) -> dict[str, float]:
        """So many updates; the first ones after settling are of the critics alone."""
        alone = min(updates, self._alone)
        self._alone -= alone
        found: dict[str, float] = {}
        with self.threads.at_work(updates):
            for count, critic_only in ((alone, True), (updates - alone, False)):
                if count:
                    found |= self.learner.update(self.replay, self.demos, count, critic_only=critic_only)
        return found

    # --- keeping ---

    def save_state(self) -> tuple[dict[str, torch.Tensor], dict[str, np.ndarray]]:
        """Weights and moments; states of generators."""
        learner = self.learner
        tensors = {f"critics.{name}": value for name, value in learner.critics.state_dict().items()}
        tensors |= {f"targets.{name}": value for name, value in learner.targets.state_dict().items()}
        tensors["log_temperature"] = learner.log_temperature.detach()
        for name, optimizer in learner.optimizers().items():
            tensors |= {f"{name}/{key}": value for key, value in checkpoint.optimizer_tensors(optimizer).items()}
        arrays = {
            "shuffle": self.generator.get_state().numpy(),
            "draw": checkpoint.generator_state(learner.random),
            "learner.counters": np.array(
                [learner.updates, learner.policy_updates, self._owed, self._alone, self.settling]
            ),
        }
        return {name: value.contiguous().clone() for name, value in tensors.items()}, arrays

    def restore_state(self, tensors: Mapping[str, torch.Tensor], arrays: Mapping[str, np.ndarray]) -> None:
        """Go on from a saved state."""
        learner = self.learner
        for name, module in (("critics.", learner.critics), ("targets.", learner.targets)):
            module.load_state_dict({k.removeprefix(name): v for k, v in tensors.items() if k.startswith(name)})
        learner.log_temperature.data.copy_(tensors["log_temperature"])
        for name, optimizer in learner.optimizers().items():
            own = {k.removeprefix(f"{name}/"): v for k, v in tensors.items() if k.startswith(f"{name}/")}
            checkpoint.restore_optimizer(optimizer, own)
        self.generator.set_state(torch.from_numpy(arrays["shuffle"]))
        checkpoint.restore_generator(learner.random, arrays["draw"])
        updates, policy_updates, self._owed, alone, settling = arrays["learner.counters"].tolist()
        learner.updates, learner.policy_updates = int(updates), int(policy_updates)
        self._alone, self.settling = int(alone), bool(settling)
