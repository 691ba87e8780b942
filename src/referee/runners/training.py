"""The state of a policy's training: its workers, its counters, and how to save and resume them."""

from __future__ import annotations

import logging
import shutil
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from referee.config import Config, FrankaEnvConfig
from referee.config.learning import ActorConfig, PolicyModelConfig, PPOConfig, SACConfig
from referee.envs import RefereeVectorEnv
from referee.envs.policies import demonstrations
from referee.envs.tasks import task_key
from referee.errors import ConfigError
from referee.rewards import Alarm
from referee.rl import bc, checkpoint
from referee.rl.checkpoint import Checkpoint, CheckpointError
from referee.rl.policy import Player, Policy, PolicySpec, Tensors
from referee.rl.rollout import Rollout
from referee.rl.squashed import SquashedPolicy, make_policy
from referee.runners.environments import make_env, make_payment
from referee.runners.memory import MemoryFiles, make_memories
from referee.runners.payment import Payment
from referee.runners.rollout import Outcomes, SecondOpinion, roll_out
from referee.runners.trends import TrendPayment
from referee.workers.actor import ActorWorker
from referee.workers.env import EnvWorker, first_seed
from referee.workers.learner import LearnerWorker
from referee.workers.reward import RewardWorker
from referee.workers.rollout import RolloutWorker, acting_state, restore_acting
from referee.workers.trend import TrendWorker

EVAL_SEED = 1_000_000
"""Evaluation episodes are the same in every run, and never those of training (`train_policy.check` sees to it)."""
DEMO_SEED = 1_500_000
MINE_SEED = 1_800_000
WORST = -1e30
"""Less than any success, and than what any model pays."""
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


@dataclass
class Best:
    """The best evaluation so far."""

    success: float = WORST
    steps: int = 0


class Training:
    """The state of a run: workers, counters, and what was measured."""

    def __init__(self, config: Config, folder: Path = Path()) -> None:
        began = time.perf_counter()
        assert config.env.train is not None and config.env.eval is not None and isinstance(config.actor, ActorConfig)
        seed = config.runner.seed
        self.config, self.folder = config, folder
        torch.manual_seed(seed)
        self.env = EnvWorker(self._make_env(), seed=first_seed(seed))
        self.eval_env = self._make_eval_env()
        model = config.actor.model
        algorithm = config.algorithm
        spec = PolicySpec.of(
            self.env.env, model.model_type, model.hidden_dims, model.initial_log_std, squashed=algorithm.name == "sac"
        )
        self.policy = make_policy(spec)
        self.roller = RolloutWorker(self.policy, seed=seed)
        self.payment = make_payment(config, self.env.env, folder, crews=self._crews_wanted())
        self.actor = self._make_actor()
        saved = isinstance(algorithm, SACConfig) and algorithm.replay.save
        self._memory = MemoryFiles(folder) if saved else None
        self.rollout = Rollout(self.env.env, algorithm.rollout_steps, self.policy.inputs)
        self.iteration, self.steps = 0, 0
        self.best = Best()
        self.outcomes = Outcomes()
        self.evaluated_at = -1
        self.evaluation: dict[str, float] = {}
        self.refined = False
        """Whether the latest iteration ended with a round of refinement, which is worth a checkpoint."""
        self._shown: dict[str, float] = {}
        self._evaluating = 0.0
        self._model_guard: AbstractContextManager[Any] = nullcontext()
        self.seconds = time.perf_counter() - began
        """Of training: setting up, warming up, acting, scoring, learning and refining, but not evaluating or saving."""

    def _crews_wanted(self) -> int:
        return 1

    def _make_env(self) -> RefereeVectorEnv:
        assert self.config.env.train is not None
        return make_env(self.config.env.train, self.folder, "train")

    def _make_eval_env(self) -> RefereeVectorEnv:
        """A twin is evaluated on another twin, without waiting; an arm is not evaluated (`train_policy.check`)."""
        wanted = self.config.env.eval
        assert wanted is not None
        wanted = wanted.stand_in() if isinstance(wanted, FrankaEnvConfig) else wanted
        return make_env(wanted, self.folder, "eval")

    def _make_actor(self) -> ActorWorker | LearnerWorker:
        config, seed = self.config, self.config.runner.seed
        assert isinstance(config.actor, ActorConfig)
        if isinstance(config.algorithm, PPOConfig):
            assert isinstance(self.policy, Policy)
            return ActorWorker(self.policy, config.algorithm, config.actor, seed=seed)
        assert isinstance(self.policy, SquashedPolicy)
        kept = make_memories(config, self.env.env, self.policy.spec, self.payment, self.folder)
        cloned = config.actor.model.model_path is None and config.algorithm.bc_warmup.episodes
        return LearnerWorker(
            self.policy, config.algorithm, config.actor, kept.replay, kept.demos, seed=seed, cameras=kept.cameras,
            lesson=config.algorithm.bc_warmup if cloned else None,
            spare=int(config.runner.background.enabled),  # for those who act
        )  # fmt: skip

    @property
    def reward(self) -> RewardWorker | TrendWorker | None:
        """The reward model's worker; None where the environment pays."""
        return None if self.payment is None else self.payment.reward

    @property
    def verdicts(self) -> Payment | None:
        """Payment by a model that says success; None where one of trends pays, or the environment."""
        return self.payment if isinstance(self.payment, Payment) else None

    @property
    def alarm(self) -> Alarm | None:
        """What watches the reward model."""
        return None if self.payment is None else self.payment.alarm

    def warm_start(self, console: Console) -> None:
        """Take over a policy, or look at the first states; clone demonstrations and mine failures if asked to."""
        began, evaluated = time.perf_counter(), self._evaluating
        self._first_policy(console)
        if self.verdicts is not None and self.config.reward.refine.mine:
            self.verdicts.mine(self.eval_env, Player(self.policy, self.eval_env, noise_seed=0), MINE_SEED)
            if self.verdicts.swaps:
                self._forget_best()
        self.seconds += time.perf_counter() - began - (self._evaluating - evaluated)

    def _first_policy(self, console: Console) -> None:
        if self._take_over(console):
            return
        wanted = self.config.algorithm.bc_warmup
        demos = self.actor.demos if isinstance(self.actor, LearnerWorker) else None
        self._get_used_to(self.policy.tensors(self.env.observation))
        if demos is not None:
            observations, actions = demos.steps_shown()
        elif wanted.episodes:
            shown, done = demonstrations(
                self.eval_env, wanted.episodes, noise=wanted.noise, seed=DEMO_SEED + self.config.runner.seed
            )
            observations, actions = self.policy.tensors(shown), torch.from_numpy(done)
        else:
            return
        self._get_used_to(observations)
        if not wanted.episodes:
            return
        losses = bc.clone(self.policy, observations, actions, wanted, self.actor.generator)
        self.evaluate()
        console.print(
            f"behaviour cloning of {len(actions):,} demonstrated steps: loss {losses[0]:.3f} → {losses[-1]:.3f}, "
            f"{self.judged()}"
        )

    def _get_used_to(self, observations: Tensors) -> None:
        """Let the normaliser take in observations."""
        if self.policy.norm is not None and self.config.algorithm.normalise_observations:
            self.policy.norm.update(observations["states"])

    def _take_over(self, console: Console) -> bool:
        """Start from the policy of another run, where one is named."""
        assert isinstance(self.config.actor, ActorConfig) and self.config.env.train is not None
        place = self.config.actor.model.model_path
        if place is None:
            return False
        folder = checkpoint.find(Path(place))
        stored = checkpoint.load(folder)
        train = self.config.env.train
        checkpoint.restore_policy(self.policy, stored, folder, task=train.task, key=task_key(train))
        self._change(self.config.actor.model)
        self.evaluate()
        console.print(f"starting from {folder}: {self.judged()}", soft_wrap=True)
        return True

    def _change(self, wanted: PolicyModelConfig) -> None:
        """Let a policy that was taken over go on otherwise than it was, where asked for."""
        noise, fresh = wanted.start_log_std, wanted.fresh_critic
        if noise is None and not fresh:
            return
        if not isinstance(self.policy, Policy):
            key = "fresh_critic" if noise is None else "start_log_std"
            raise ConfigError(f"actor.model.{key} is for PPO: SAC takes over no critic, and learns a spread per state")
        if noise is not None:
            self.policy.log_std.data.fill_(noise)
        if fresh:
            self.policy.forget_values()

    def finished(self) -> bool:
        """Whether the steps, the minutes or the wanted success are reached, or an alarm ends it.

        However few the minutes are, there is one iteration.
        """
        runner = self.config.runner
        late = runner.max_minutes is not None and self.iteration > 0 and self.seconds >= 60 * runner.max_minutes
        good = runner.target_success is not None and self.best.success >= runner.target_success
        return self.steps >= runner.max_steps or late or good or self.alarmed

    @property
    def alarmed(self) -> bool:
        """Whether an alarm ends it."""
        raised = None if self.alarm is None else self.alarm.raised_at
        return raised is not None and self.config.reward.alarm.stop

    def iterate(self) -> dict[str, float]:
        """One rollout and one update."""
        start = time.perf_counter()
        count = self.rollout.steps * self.rollout.num_envs
        judged = self._collect(self.steps + count)
        collected = time.perf_counter()
        progress = min(1.0, self.steps / self.config.runner.max_steps)
        learned = self.actor.update(self.rollout, progress=progress, iteration=self.iteration)
        end = time.perf_counter()
        self.iteration += 1
        self.steps += count
        self.seconds += end - start
        numbers = {f"env/{name}": value for name, value in self._statistics().items()}
        numbers["rollout/rewards"] = float(self.rollout.rewards.mean())
        numbers |= judged
        numbers |= {f"train/{name}": float(value) for name, value in learned.items()}
        numbers |= {"time/rollout": collected - start, "time/update": end - collected}
        return self._told(numbers, count / (end - start))

    def _collect(self, step: int) -> dict[str, float]:
        """Fill `rollout`, and let it be paid; returns what was found. step: of the training, at its end."""
        blind = isinstance(self.config.algorithm, SACConfig) and self.steps < self.config.algorithm.random_steps
        self.roller.collect(self.env, self.rollout, self.reward, blind=blind)
        return {} if self.payment is None else self.payment.pay(self.rollout, self.actor, step)

    def _statistics(self) -> dict[str, float]:
        """Of the episodes that ended in the latest rollout."""
        return self.env.statistics()

    def _told(self, numbers: dict[str, float], speed: float) -> dict[str, float]:
        """The numbers of an iteration, with those that all have; a round of questions, where one is due."""
        numbers |= {"time/steps_per_second": speed, "time/minutes": self.seconds / 60}
        numbers |= self._refine()
        self._shown |= numbers
        return numbers

    def _refine(self) -> dict[str, float]:
        """A round of questions, where one is due; it counts as time of the training."""
        start = time.perf_counter()
        done = None if self.verdicts is None else self.verdicts.refine(self.steps, self.iteration)
        self.refined = done is not None
        if done is None:
            return {}
        numbers = done.numbers()
        if done.swapped:
            self._forget_best()
        if done.swapped and isinstance(self.actor, LearnerWorker):
            assert self.verdicts is not None
            numbers["refine/rescored"] = float(self.actor.rescore(self.verdicts.reward))
        spent = time.perf_counter() - start
        self.seconds += spent
        return {**numbers, "time/refine": spent}

    def judged(self) -> str:
        """The last evaluation, in words."""
        return f"success at the end {self.outcomes.rate()}" if len(self.outcomes) else "not evaluated"

    def evaluate(self) -> dict[str, float]:
        """The deterministic policy on the fixed evaluation episodes."""
        if self.evaluated_at == self.steps or not self.config.runner.eval_episodes:
            return self.evaluation
        began = time.perf_counter()
        env = self.eval_env
        policy = Player(self.policy, env)
        payment, second = self.verdicts, None
        if payment is not None:
            second = SecondOpinion(payment.manager, payment.reward.cameras, payment.hear, self._model_guard)
        self.outcomes = roll_out(
            env, policy, self.config.runner.eval_episodes, seed=EVAL_SEED, observe=policy.see, watch=second
        )
        self.evaluated_at = self.steps
        rate = self.outcomes.rate()
        judged = {} if second is None else second.truth.log("eval/reward")
        self._keep_best(self._word(judged.get("eval/reward/model_success", rate.share)))
        low, high = rate.interval
        numbers = {
            "eval/success_at_end": rate.share,
            "eval/success_at_end_low": low,
            "eval/success_at_end_high": high,
            "eval/success_once": self.outcomes.rate(once=True).share,
            "eval/return": float(np.mean(self.outcomes.returns)),
        }
        numbers |= judged
        self._shown |= numbers
        self.evaluation = numbers
        self._evaluating += time.perf_counter() - began
        return numbers

    def _word(self, success: float) -> float | None:
        """What the best policy is chosen by, where somebody pays who says no success: what it paid lately."""
        return self.payment.lately() if isinstance(self.payment, TrendPayment) else success

    def _keep_best(self, success: float | None) -> None:
        """The best policy by true success; where a model pays, by its word: there the truth chooses nothing."""
        if success is not None and success > self.best.success:
            self.best = Best(success, self.steps)
            self.save(best=True)

    def _forget_best(self) -> None:
        """Another model judges from now on: the word of the one before, perhaps a fooled one, is no measure for it."""
        self.best = Best()

    def line(self) -> str:
        """What the progress bar says."""
        shown = self._shown
        train, judged = shown.get("env/success_at_end"), shown.get("eval/success_at_end")
        parts = [f"{shown.get('time/steps_per_second', 0):,.0f} steps/s"]
        if train is not None:
            parts.append(f"success {100 * train:.0f} %")
        if judged is not None:
            parts.append(f"evaluated {100 * judged:.1f} %")
        if (gap := shown.get("reward/hacking_gap")) is not None:
            parts.append(f"gap {100 * gap:+.0f} %")
        if self.alarm is not None and self.alarm.raised_at is not None:
            parts.append("ALARM")
        return " · ".join(parts)

    def save(self, *, best: bool = False) -> Path:
        """Write a checkpoint; only the last, the best and each `keep_every`-th stay."""
        state = self._acting_state()  # first: what was still on its way counts
        folder = self.folder / "checkpoints" / ("best" if best else f"step_{self.steps}")
        if self.payment is not None:
            state |= self.payment.save_state()
        tensors, arrays = self.actor.save_state()
        state |= arrays
        if isinstance(self.actor, LearnerWorker) and self._memory is not None and not best:
            state |= self._memory.save(self.actor)
        checkpoint.save(
            folder,
            Checkpoint(
                policy={name: value.contiguous().clone() for name, value in self.policy.state_dict().items()},
                optimizer=tensors,
                arrays=state,
                meta={
                    "policy": self.policy.spec.to_json(),
                    "task": self.config.env.train.task if self.config.env.train else "",
                    "env": _env_settings(self.config),
                    "eval_episode_steps": self.eval_env.max_episode_steps,
                    "control_hz": self.env.env.metadata.get("render_fps"),
                    **_world(self.config),
                    "iteration": self.iteration,
                    "steps": self.steps,
                    "seconds": self.seconds,
                    "best": [self.best.success, self.best.steps],
                    "success_at_end": self.outcomes.rate().share if len(self.outcomes) else None,
                },
            ),
        )
        if not best:
            self._prune(folder)
        return folder

    def resume(self, place: Path) -> int:
        """Go on from a checkpoint, exactly; returns its step."""
        began = time.perf_counter()
        folder = checkpoint.find(place)
        stored = checkpoint.load(folder)
        assert self.config.env.train is not None
        train = self.config.env.train
        checkpoint.restore_policy(self.policy, stored, folder, task=train.task, key=task_key(train))
        theirs, ours = stored.meta["env"], _env_settings(self.config)
        ours.pop("id", None)  # the task has been compared
        different = [f"{name}={theirs[name]} (here {ours[name]})" for name in ours if theirs.get(name) != ours[name]]
        if different:
            raise CheckpointError(f"{folder} was made with env.train.{', '.join(different)}: set the same to resume")
        self.actor.restore_state(stored.optimizer, stored.arrays)
        self._restore_acting(stored.arrays)
        if self.payment is not None:
            self.payment.restore_state(stored.arrays, stored.meta["steps"])
        self._remember(stored, folder)
        meta = stored.meta
        self.iteration, self.steps, self.best = meta["iteration"], meta["steps"], Best(*meta["best"])
        self.seconds += meta["seconds"] + time.perf_counter() - began
        return self.steps

    def _acting_state(self) -> dict[str, np.ndarray]:
        """What those who act need to go on."""
        return acting_state(self.env, self.roller)

    def _restore_acting(self, state: dict[str, np.ndarray]) -> None:
        restore_acting(self.env, self.roller, state)

    def _remember(self, stored: Checkpoint, folder: Path) -> None:
        """Take up the memories that belong to a checkpoint; pay for them anew if another model judges by now."""
        if not isinstance(self.actor, LearnerWorker):
            return
        run = folder.parent.parent
        kept = self._memory if self._memory is not None and run == self.folder else MemoryFiles(run)
        if not kept.restore(self.actor, stored.arrays, goes_on=kept is self._memory):
            _log.warning("%s came without what the run remembered: it begins with an empty replay", folder)
        elif self.verdicts is not None and self.verdicts.manager.version:
            self.actor.rescore(self.verdicts.reward)

    def close(self) -> None:
        """Close the environments."""
        self.env.env.close()
        self.eval_env.close()

    def _prune(self, newest: Path) -> None:
        if isinstance(self.actor, LearnerWorker) and self._memory is not None:
            self._memory.prune(self.actor)
        keep = self.config.runner.keep_every
        per_iteration = self.rollout.steps * self.rollout.num_envs
        for path in newest.parent.glob("step_*"):
            iteration = int(path.name.removeprefix("step_")) // per_iteration
            if path != newest and not (keep and iteration % keep == 0):
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
