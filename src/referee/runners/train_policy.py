"""Recipe: train a policy with PPO on the environment's reward."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from referee.config import Config, Loaded
from referee.envs import RefereeVectorEnv, make_vec
from referee.envs.panda.env import PandaVectorEnv
from referee.envs.policies import make_policy
from referee.errors import ConfigError
from referee.pictures import save_gif
from referee.rl import bc, checkpoint
from referee.rl.checkpoint import Checkpoint, CheckpointError
from referee.rl.policy import Policy, PolicySpec
from referee.rl.rollout import Rollout
from referee.runners.logbook import Logbook
from referee.runners.rollout import FilmMaker, Outcomes, roll_out, save_strip
from referee.runners.rundir import open_run, write_json
from referee.workers.actor import ActorWorker
from referee.workers.env import EnvWorker
from referee.workers.rollout import RolloutWorker

EVAL_SEED = 1_000_000
"""Evaluation episodes are the same in every run, and never those of training."""


def train_policy(loaded: Loaded) -> None:
    """Collect, learn, evaluate, save, until the steps, the minutes or the wanted success are reached."""
    check(loaded.config)
    torch.set_num_threads(1)
    console = Console()
    folder = open_run(loaded)
    run = Training(loaded.config, folder)
    logbook = Logbook(folder, loaded)
    runner = loaded.config.runner
    try:
        if runner.resume_dir is not None:
            console.print(f"resuming at step {run.resume(Path(runner.resume_dir)):,}")
        else:
            run.warm_start(console)
        with _progress(console, runner.max_steps) as bar:
            bar.update(TaskID(0), completed=run.steps)
            while not run.finished():
                numbers = run.iterate()
                if run.iteration % runner.eval_interval == 0 or run.finished():
                    numbers |= run.evaluate()
                logbook.write(numbers, run.steps)
                bar.update(TaskID(0), completed=run.steps, description=run.line())
                if run.iteration % runner.save_interval == 0:
                    run.save()
        run.evaluate()
        run.save()
        run.report(console)
    except KeyboardInterrupt:
        where = run.save()
        console.print(f"\nstopped at step {run.steps:,}; go on with: runner.resume_dir={where}", soft_wrap=True)
        raise
    finally:
        logbook.close()
        run.close()


def check(config: Config) -> None:
    """What the schema cannot see: sizes that must fit each other. Before anything is allocated or written."""
    algorithm, actor, train = config.algorithm, config.actor, config.env.train
    assert train is not None and config.env.eval is not None  # the recipe needs them
    samples = train.num_envs * algorithm.rollout_steps
    if samples % actor.global_batch_size:
        raise ConfigError(
            f"actor.global_batch_size={actor.global_batch_size} does not divide the {samples} samples of a rollout "
            f"(env.train.num_envs × algorithm.rollout_steps): choose a divisor, as {_divisor(samples)}"
        )
    if config.actor.model.model_type == "cnn" and train.obs_mode == "state":
        raise ConfigError("actor.model.model_type=cnn needs images: set env.train.obs_mode=rgb (or state+rgb)")
    if config.actor.model.model_type == "mlp" and train.obs_mode != "state":
        raise ConfigError(
            f"actor.model.model_type=mlp reads state only: set env.train.obs_mode=state, not {train.obs_mode}"
        )
    for name in ("task", "obs_mode", "control_mode"):
        here, there = getattr(train, name), getattr(config.env.eval, name)
        if here != there:
            raise ConfigError(f"env.eval.{name}={there}, but env.train.{name}={here}: make them the same")


def _divisor(samples: int) -> int:
    return max(size for size in range(1, samples + 1) if samples % size == 0 and size <= 1024)


@dataclass
class Best:
    """The best evaluation so far."""

    success: float = -1.0
    steps: int = 0


class Training:
    """The state of a run: workers, counters, and what was measured."""

    def __init__(self, config: Config, folder: Path) -> None:
        assert config.env.train is not None and config.env.eval is not None
        seed = config.runner.seed
        self.config, self.folder = config, folder
        torch.manual_seed(seed)
        self.env = EnvWorker(make_vec(config.env.train), seed=10_000 * seed)
        self.eval_env: RefereeVectorEnv = make_vec(config.env.eval)
        model = config.actor.model
        spec = PolicySpec.of(self.env.env, model.model_type, model.hidden_dims, model.initial_log_std)
        self.policy = Policy(spec)
        self.roller = RolloutWorker(self.policy, seed=seed)
        self.actor = ActorWorker(self.policy, config.algorithm, config.actor, seed=seed)
        self.rollout = Rollout(self.env.env, config.algorithm.rollout_steps, self.policy.inputs)
        self.iteration, self.steps, self.seconds = 0, 0, 0.0
        self.best = Best()
        self.outcomes = Outcomes()
        self.evaluated_at = -1
        self._shown: dict[str, float] = {}

    def warm_start(self, console: Console) -> None:
        """Look at the first states, and clone demonstrations if asked to."""
        if self.policy.norm is not None and self.config.algorithm.normalise_observations:
            self.policy.norm.update(torch.from_numpy(self.env.observation["states"]))
        wanted = self.config.algorithm.bc_warmup
        if not wanted.episodes:
            return
        observations, actions = self._demonstrations(wanted.episodes, wanted.noise)
        losses = bc.clone(self.policy, observations, actions, wanted, self.actor.generator)
        self.evaluate()
        console.print(
            f"behaviour cloning of {wanted.episodes} demonstrations: loss {losses[0]:.3f} → {losses[-1]:.3f}, "
            f"success at the end {self.outcomes.rate()}"
        )

    def _demonstrations(self, episodes: int, noise: float) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Observations and clean actions of the expert, who stumbles by `noise` so that recovery is shown, too."""
        env = self.eval_env
        observation, _ = env.reset(seed=EVAL_SEED + 500_000 + self.config.runner.seed)
        clean = make_policy(env, "expert")
        random = np.random.default_rng(self.config.runner.seed)
        kept: dict[str, list[np.ndarray]] = {name: [] for name in self.policy.inputs}
        targets: list[np.ndarray] = []
        left = episodes
        while left > 0:
            rows = slice(0, min(left, env.num_envs))
            for _ in range(env.max_episode_steps):
                actions = clean()
                for name in kept:
                    kept[name].append(observation[name][rows].copy())
                targets.append(actions[rows].copy())
                stumble = noise * random.standard_normal(actions.shape, dtype=np.float32)
                observation, *_ = env.step(np.clip(actions + stumble, -1.0, 1.0))
            left -= env.num_envs
        return {name: np.concatenate(parts) for name, parts in kept.items()}, np.concatenate(targets)

    def finished(self) -> bool:
        """Whether the steps, the minutes or the wanted success are reached."""
        runner = self.config.runner
        late = runner.max_minutes is not None and self.seconds >= 60 * runner.max_minutes
        good = runner.target_success is not None and self.best.success >= runner.target_success
        return self.steps >= runner.max_steps or late or good

    def iterate(self) -> dict[str, float]:
        """One rollout and one update."""
        start = time.perf_counter()
        self.roller.collect(self.env, self.rollout)
        collected = time.perf_counter()
        progress = min(1.0, self.steps / self.config.runner.max_steps)
        learned = self.actor.update(self.rollout, progress=progress)
        end = time.perf_counter()
        count = self.rollout.steps * self.rollout.num_envs
        self.iteration += 1
        self.steps += count
        self.seconds += end - start
        numbers = {f"env/{name}": value for name, value in self.env.statistics().items()}
        numbers["rollout/rewards"] = float(self.rollout.rewards.mean())
        numbers |= {f"train/{name}": float(value) for name, value in learned.items()}
        numbers |= {
            "time/rollout": collected - start,
            "time/update": end - collected,
            "time/steps_per_second": count / (end - start),
            "time/minutes": self.seconds / 60,
        }
        self._shown |= numbers
        return numbers

    def evaluate(self) -> dict[str, float]:
        """The deterministic policy on the fixed evaluation episodes."""
        if self.evaluated_at == self.steps:
            return {}
        env = self.eval_env
        policy = CheckpointPolicy(self.policy, env)
        self.outcomes = roll_out(env, policy, self.config.runner.eval_episodes, seed=EVAL_SEED, observe=policy.see)
        self.evaluated_at = self.steps
        rate = self.outcomes.rate()
        if rate.share > self.best.success:
            self.best = Best(rate.share, self.steps)
            self.save(best=True)
        low, high = rate.interval
        numbers = {
            "eval/success_at_end": rate.share,
            "eval/success_at_end_low": low,
            "eval/success_at_end_high": high,
            "eval/success_once": self.outcomes.rate(once=True).share,
            "eval/return": float(np.mean(self.outcomes.returns)),
        }
        self._shown |= numbers
        return numbers

    def line(self) -> str:
        """What the progress bar says."""
        shown = self._shown
        train, judged = shown.get("env/success_at_end"), shown.get("eval/success_at_end")
        parts = [f"{shown.get('time/steps_per_second', 0):,.0f} steps/s"]
        if train is not None:
            parts.append(f"success {100 * train:.0f} %")
        if judged is not None:
            parts.append(f"evaluated {100 * judged:.1f} %")
        return " · ".join(parts)

    def save(self, *, best: bool = False) -> Path:
        """Write a checkpoint; only the last, the best and each `keep_every`-th stay."""
        folder = self.folder / "checkpoints" / ("best" if best else f"step_{self.steps}")
        state = {f"worker.{name}": value for name, value in self.env.save_state().items()}
        state["noise"] = _generator_state(self.roller.random)
        state["shuffle"] = self.actor.generator.get_state().numpy()
        checkpoint.save(
            folder,
            Checkpoint(
                policy={name: value.contiguous().clone() for name, value in self.policy.state_dict().items()},
                optimizer=checkpoint.optimizer_tensors(self.actor.learner.optimizer),
                arrays=state,
                meta={
                    "policy": self.policy.spec.to_json(),
                    "task": self.config.env.train.task if self.config.env.train else "",
                    "env": _env_settings(self.config),
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
        folder = checkpoint.find(place)
        stored = checkpoint.load(folder)
        assert self.config.env.train is not None
        checkpoint.restore_policy(self.policy, stored, folder, task=self.config.env.train.task)
        theirs, ours = stored.meta["env"], _env_settings(self.config)
        different = [f"{name}={theirs[name]} (here {ours[name]})" for name in ours if theirs.get(name) != ours[name]]
        if different:
            raise CheckpointError(f"{folder} was made with env.train.{', '.join(different)}: set the same to resume")
        checkpoint.restore_optimizer(self.actor.learner.optimizer, stored.optimizer)
        worker = {name.removeprefix("worker."): v for name, v in stored.arrays.items() if name.startswith("worker.")}
        self.env.restore_state(worker)
        _restore_generator(self.roller.random, stored.arrays["noise"])
        self.actor.generator.set_state(torch.from_numpy(stored.arrays["shuffle"]))
        meta = stored.meta
        self.iteration, self.steps, self.seconds = meta["iteration"], meta["steps"], meta["seconds"]
        self.best = Best(*meta["best"])
        return self.steps

    def report(self, console: Console) -> None:
        """What a person wants to know at the end, and pictures of it."""
        task = self.config.env.train.task if self.config.env.train else ""
        console.print(f"{task}: success at the end {self.outcomes.rate()} after {self.steps:,} steps")
        console.print(f"  {self.seconds / 60:.1f} minutes of training, best {100 * self.best.success:.1f} %")
        write_json(self.folder / "result.json", {"steps": self.steps, "minutes": self.seconds / 60,
                                                 "best": self.best.success, **self.outcomes.summary()})  # fmt: skip
        if self.config.runner.film and isinstance(self.eval_env, PandaVectorEnv):
            film = FilmMaker(self.eval_env, self.config.runner.film_episodes)
            policy = CheckpointPolicy(self.policy, self.eval_env)
            count = min(self.config.runner.film_episodes, self.eval_env.num_envs)
            roll_out(self.eval_env, policy, count, seed=EVAL_SEED, watch=film, observe=policy.see)
            save_gif(self.folder / "film.gif", film.frames())
            save_strip(self.folder / "strip.png", film, title=f"{task} after {self.steps:,} steps")
            console.print(f"  film {self.folder / 'film.gif'}, strip {self.folder / 'strip.png'}")
        console.print(f"  checkpoint {self.folder / 'checkpoints'}/step_{self.steps} (best: checkpoints/best)")
        console.print(f"  look closer: referee eval {self.folder} --episodes 256")

    def close(self) -> None:
        """Close the environments."""
        self.env.env.close()
        self.eval_env.close()

    def _prune(self, newest: Path) -> None:
        import shutil

        keep = self.config.runner.keep_every
        per_iteration = self.rollout.steps * self.rollout.num_envs
        for path in newest.parent.glob("step_*"):
            iteration = int(path.name.removeprefix("step_")) // per_iteration
            if path != newest and not (keep and iteration % keep == 0):
                shutil.rmtree(path)


class CheckpointPolicy:
    """A trained policy as `roll_out` wants it: it acts, without noise, on what it saw last."""

    def __init__(self, policy: Policy, env: RefereeVectorEnv, *, noise_seed: int | None = None) -> None:
        self._policy = policy
        self._shape = (env.num_envs, policy.spec.action_size)
        self._observation: dict[str, np.ndarray] = {}
        self._random = None if noise_seed is None else np.random.default_rng(noise_seed)

    def see(self, observation: dict[str, np.ndarray]) -> None:
        """Take in the present observation."""
        self._observation = observation

    def __call__(self) -> np.ndarray:
        """The next actions, clipped."""
        noise = None if self._random is None else self._random.standard_normal(self._shape, dtype=np.float32)
        return np.clip(self._policy.act(self._observation, noise=noise), -1.0, 1.0)


def _env_settings(config: Config) -> dict[str, Any]:
    train = config.env.train
    assert train is not None
    names = ("num_envs", "obs_mode", "control_mode", "reward_mode", "max_episode_steps", "terminate_on_success")
    return {name: getattr(train, name) for name in names} | {
        "cameras": list(train.cameras),
        "image_size": train.image_size,
    }


def _generator_state(random: np.random.Generator) -> np.ndarray:
    """PCG64's state as words: two 128-bit numbers and the buffered half."""
    state: Any = random.bit_generator.state
    words = [
        (number >> (64 * i)) & (2**64 - 1)
        for number in (state["state"]["state"], state["state"]["inc"])
        for i in (0, 1)
    ]
    return np.array([*words, state["has_uint32"], state["uinteger"]], np.uint64)


def _restore_generator(random: np.random.Generator, words: np.ndarray) -> None:
    a, b, c, d, has, value = (int(word) for word in words)
    random.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": a | b << 64, "inc": c | d << 64},
        "has_uint32": has,
        "uinteger": value,
    }


def _progress(console: Console, total: int) -> Progress:
    progress = Progress(
        TextColumn("{task.completed:>10,.0f} steps"),
        BarColumn(bar_width=30),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
        console=console,
        refresh_per_second=2,
    )
    progress.add_task("", total=total)
    return progress
