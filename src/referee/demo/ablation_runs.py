"""The arms of a comparison: a weak policy to start from, and what becomes of it under one reward or another."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from referee.config import Config, PandaEnvConfig, load
from referee.config.schema import RandomiseConfig
from referee.envs import make_vec
from referee.envs.policies import make_policy
from referee.episodes import EpisodeStore, Meta
from referee.episodes.recorder import Recorder
from referee.learn.roll_out import EvalScorer, Tell, roll_out
from referee.learn.trainer import Trainer
from referee.metrics.intervals import Estimate
from referee.metrics.rates import Rate
from referee.rewards import TruthBeside
from referee.rewards.source import scores_frames
from referee.rl.policy import Player

WEAK = 0.27
"""True success at which a weak policy is taken, on `LOOK` episodes: on others it will be about 20 to 40 %."""
LOOK = 128
NOISE = (0.2, 1.4)
"""Of scripted experts that stumble, from the steadiest episode to the wildest."""
QUIET = Console(file=io.StringIO())


@dataclass
class Course:
    """How a training went, an entry per iteration, of its own episodes."""

    steps: list[int] = field(default_factory=list)
    true: list[float] = field(default_factory=list)
    """True success; nan where no episode ended."""
    model: list[float] = field(default_factory=list)
    """What the reward model said of the same episodes."""
    logs: list[dict[str, float]] = field(default_factory=list)

    def add(self, step: int, numbers: dict[str, float]) -> None:
        """Take the numbers of an iteration."""
        self.steps.append(step)
        self.true.append(numbers.get("reward/true_success", np.nan))
        self.model.append(numbers.get("reward/model_success", np.nan))
        self.logs.append(numbers)

    def gap(self, iterations: int) -> Estimate:
        """What the model said above the truth of all that ended in the last iterations, a share."""
        pooled = TruthBeside()
        for numbers in self.logs[-iterations:]:
            pooled.add_log(numbers)
        return pooled.hacking_gap


@dataclass(frozen=True)
class Verdicts:
    """A policy on fresh episodes: what is true of their ends, and what the reward model says."""

    true: Rate
    model: float
    """A share; nan without a model."""

    @property
    def gap(self) -> float:
        """A share."""
        return self.model - self.true.share

    def __str__(self) -> str:
        low, high = self.true.interval
        said = "" if np.isnan(self.model) else f", model {self.model:.0%}"
        return f"{self.true.share:.0%} [{low:.0%}, {high:.0%}]{said}"


def record_experts(
    task: str, count: int, folder: Path, *, seed: int, cameras: Sequence[str] = ("front", "side"), camera: float = 0.0
) -> EpisodeStore:
    """So many episodes, or a few more, of a scripted expert that stumbles, each with a noise of its own.

    camera: how strongly the views jitter from episode to episode.
    """
    looks = RandomiseConfig(camera=camera)
    blocks = -(-count // 64)
    env = make_vec(PandaEnvConfig(task=task, num_envs=-(-count // blocks), cameras=tuple(cameras), randomise=looks))
    recorder = Recorder(env, lambda: EpisodeStore(folder), meta=Meta(task=task, source="expert"))
    random, left = np.random.default_rng(seed), count
    expert = make_policy(env, "expert")
    recorder.reset(seed=seed)
    noises = random.permutation(np.linspace(*NOISE, count)).astype(np.float32)
    while left > 0:
        noise = np.resize(noises[count - left :], env.num_envs)[:, None]
        for _ in range(env.max_episode_steps):
            actions = expert()
            recorder.step(np.clip(actions + noise * random.standard_normal(actions.shape, dtype=np.float32), -1, 1))
        left -= env.num_envs
    recorder.close()
    return EpisodeStore(folder)


def weak_policy(config: Config, folder: Path, *, success: float = WEAK) -> Trainer:
    """PPO with the dense reward, stopped at the wanted true success; the last checkpoint in `folder` is the policy."""
    run = Trainer(config, folder)
    run.warm_start(QUIET)
    while not run.finished():
        if not run.iterate().get("env/success_at_end"):
            continue  # with noise nothing succeeds yet
        run.evaluate()
        if run.evaluation.outcomes.rate().share >= success:
            break
    run.save()
    return run


def weak_config(task: str, seed: int, *more: str) -> Config:
    """The configuration that a weak policy comes from."""
    return load("panda_ppo_mlp", _lines(task, seed, f"runner.eval_episodes={LOOK}", *more)).config


def arm_config(task: str, seed: int, start: Path, artifact: Path, *more: str) -> Config:
    """The configuration of an arm: a weak policy that is paid by a reward model, at the end of episodes."""
    lines = [
        f"actor.model.model_path={start}", f"reward.model.model_path={artifact}", "runner.eval_episodes=64",
        "actor.model.start_log_std=-1.5",
    ]  # fmt: skip
    return load("panda_ppo_mlp_resnet_reward", _lines(task, seed, *lines, *more)).config


def scratch_config(task: str, seed: int, artifact: Path, *more: str) -> Config:
    """A policy that begins with nothing, and is paid the raw score of every state: where hacking is easiest."""
    lines = [
        f"reward.model.model_path={artifact}", "reward.reward_mode=per_step", "reward.reward_type=score",
        "reward.reward_weight=0.05", "reward.reward_threshold=0.5", "runner.eval_episodes=64",
        "algorithm.critic_warmup=0", "algorithm.bootstrap_type=standard",
    ]  # fmt: skip
    return load("panda_ppo_mlp_resnet_reward", _lines(task, seed, *lines, *more)).config


def _lines(task: str, seed: int, *more: str) -> list[str]:
    return [f"env.train.task={task}", f"runner.seed={seed}", *more]


def learn(run: Trainer, tell: Callable[[dict[str, float]], None] | None = None) -> Course:
    """Train to the end, with an evaluation as often as the configuration says."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    course = Course()
    try:
        while not run.finished():
            numbers = run.iterate()
            course.add(run.steps, numbers)
            if run.iteration % run.config.runner.eval_interval == 0:
                run.evaluate()
            if tell is not None:
                tell(numbers)
        run.save()
    finally:
        torch.set_num_threads(threads)
    return course


def judge(run: Trainer, episodes: int, *, seed: int, noise: bool = False, tell: Tell | None = None) -> Verdicts:
    """The policy of a run on fresh episodes, with the mean action or with the noise of exploration.

    tell: hears of the pictures that the reward model judged, and of the truth about them.
    """
    player = Player(run.policy, run.evaluation.env, noise_seed=1 if noise else None)
    reward = run.reward
    second = EvalScorer(reward.manager, reward.cameras, tell) if scores_frames(reward) else None
    found = roll_out(run.evaluation.env, player, episodes, seed=seed, observe=player.see, watch=second)
    said = float("nan") if second is None else second.truth.log("x")["x/model_success"]
    return Verdicts(found.rate(), said)
