"""Recipe: train a policy with PPO, on the environment's reward or on a learned one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from referee.config import Config, FrankaEnvConfig, Loaded
from referee.config.batches import minibatch_size
from referee.config.endings import ending
from referee.config.learning import ActorConfig, PPOConfig, SACConfig
from referee.envs.franka.setup import Setup
from referee.errors import ConfigError
from referee.refine.labellers import Terminal
from referee.runners.background import PIECES, BackgroundTraining
from referee.runners.ending import tell
from referee.runners.interrupt import Interrupt
from referee.runners.logbook import Logbook, check_backends, say_dropped
from referee.runners.model_keys import as_scored
from referee.runners.placed import PlacedBackground, PlacedTraining
from referee.runners.rundir import locks_folder, name_run, open_run
from referee.runners.training import EVAL_SEED, Training
from referee.runners.trends import check_trend
from referee.workers.env import SEEDS_PER_RUN


@locks_folder
def train_policy(loaded: Loaded) -> None:
    """Collect, learn, evaluate, save, until the steps, the minutes or the wanted success are reached."""
    check(loaded.config)
    check_backends(loaded)
    torch.set_num_threads(1)
    loaded = as_scored(loaded)
    console, runner = Console(), loaded.config.runner
    folder = name_run(loaded)
    run = make_training(loaded.config, folder)
    resumed = run.resume(Path(runner.resume_dir)) if runner.resume_dir is not None else None
    open_run(loaded, folder)
    console.print(ending(loaded.config), soft_wrap=True)
    logbook = Logbook(folder, loaded, resumed_at=resumed)
    try:
        if resumed is not None:
            console.print(f"resuming at step {resumed:,}")
        say_dropped(console, logbook, resumed)
        if resumed is None:
            run.warm_start(console)
            if run.evaluation:
                logbook.write({**run.evaluation, "time/minutes": run.seconds / 60}, run.steps)
        with Interrupt(console) as interrupt, _progress(console, runner.max_steps) as bar:
            bar.update(TaskID(0), completed=run.steps)
            _make_room(run, bar)
            while not (run.finished() or interrupt.wanted):
                numbers = run.iterate()
                if run.iteration % runner.eval_interval == 0 or run.finished():
                    numbers |= run.evaluate()
                logbook.write(numbers, run.steps)
                bar.update(TaskID(0), completed=run.steps, description=run.line())
                if run.refined or run.iteration % runner.save_interval == 0:
                    run.save()
        where = run.save()
        if interrupt.wanted:
            console.print(f"stopped at step {run.steps:,}; go on with runner.resume_dir={where}", soft_wrap=True)
            raise KeyboardInterrupt
        if run.alarmed:
            console.print(
                f"the alarm ended it at step {run.steps:,} (reward.alarm.stop=true): look at what the model pays for, "
                f"then go on with runner.resume_dir={where} reward.alarm.stop=false", soft_wrap=True,
            )  # fmt: skip
        run.evaluate()
        tell(run, console)
    finally:
        logbook.close()
        run.close()


def make_training(config: Config, folder: Path) -> Training:
    """The training that the configuration asks for: in one process, side by side, or placed on a cluster."""
    placed = config.cluster.backend == "ray" or config.cluster.component_placement is not None
    if config.runner.background.enabled:
        return (PlacedBackground if config.cluster.backend == "ray" else BackgroundTraining)(config, folder)
    return (PlacedTraining if placed else Training)(config, folder)


def check(config: Config) -> None:
    """What the schema cannot see: sizes that must fit each other. Before anything is allocated or written."""
    algorithm, actor, train = config.algorithm, config.actor, config.env.train
    assert train is not None and config.env.eval is not None  # the recipe needs them
    samples = train.num_envs * algorithm.rollout_steps
    assert isinstance(actor, ActorConfig)
    if isinstance(algorithm, PPOConfig) and actor.global_batch_size and samples % actor.global_batch_size:
        raise ConfigError(
            f"actor.global_batch_size={actor.global_batch_size} does not divide the {samples} samples of a rollout "
            f"(env.train.num_envs × algorithm.rollout_steps): choose a divisor, e.g. {minibatch_size(samples)}, or "
            "leave it out"
        )
    if SEEDS_PER_RUN * config.runner.seed + train.num_envs > EVAL_SEED:
        raise ConfigError(
            f"runner.seed={config.runner.seed} would train on the episodes of evaluation: choose a seed below "
            f"{(EVAL_SEED - train.num_envs) // SEEDS_PER_RUN + 1}"
        )
    if config.actor.model.model_type == "cnn" and train.obs_mode == "state":
        raise ConfigError("actor.model.model_type=cnn needs images: set env.train.obs_mode=rgb (or state+rgb)")
    if train.encoder is not None and (train.obs_mode == "state" or config.actor.model.model_type == "cnn"):
        raise ConfigError(
            "env.train.encoder makes states of images: it needs obs_mode=rgb (or state+rgb) and model_type=mlp"
        )
    if config.actor.model.model_type == "mlp" and train.obs_mode != "state" and train.encoder is None:
        raise ConfigError(
            f"actor.model.model_type=mlp reads state only: set env.train.obs_mode=state, not {train.obs_mode}"
        )
    if config.runner.task_type == "text":
        raise ConfigError("runner.task_type=text: policies here move robots; `referee score-text` pays for texts")
    check_trend(config)
    reward = config.reward
    if reward.use_reward_model and train.terminate_on_success and reward.terminate_on != "truth":
        raise ConfigError(
            "env.train.terminate_on_success=true lets the truth end episodes beside a reward model: "
            "set env.train.terminate_on_success=false, or say reward.terminate_on=truth"
        )
    if reward.use_reward_model and reward.terminate_on == "truth" and not train.terminate_on_success:
        raise ConfigError("reward.terminate_on=truth needs env.train.terminate_on_success=true")
    paid = reward.use_reward_model
    ended = train.terminate_on_success or (paid and reward.terminate_on == "model")
    if train.success_hold_steps > 1 and not ended:
        raise ConfigError(
            f"env.train.success_hold_steps={train.success_hold_steps} changes nothing where no success ends one: "
            f"set it to 1, or {'reward.terminate_on=model' if paid else 'env.train.terminate_on_success=true'}"
        )
    if isinstance(algorithm, SACConfig) and algorithm.critic_subset > algorithm.critics:
        raise ConfigError(
            f"algorithm.critic_subset={algorithm.critic_subset} critics cannot be drawn from {algorithm.critics} "
            "(algorithm.critics): lower it"
        )
    if config.runner.background.enabled and isinstance(algorithm, PPOConfig):
        raise ConfigError("runner.background.enabled=true needs a learner that remembers: use algorithm.name=sac")
    if config.runner.background.enabled and isinstance(algorithm, SACConfig):
        due, each = math.ceil(algorithm.utd * samples), config.runner.background.publish_interval
        if due > PIECES * each:
            raise ConfigError(
                f"algorithm.utd={algorithm.utd:g} asks for {due} updates per rollout of {samples} steps, but with "
                f"runner.background.publish_interval={each} at most {PIECES * each} are made: raise it to "
                f"{math.ceil(due / PIECES)}"
            )
    if isinstance(train, FrankaEnvConfig):
        _check_arm(config, train)
    for name in ("task", "obs_mode", "control_mode", "encoder"):
        here, there = getattr(train, name, None), getattr(config.env.eval, name, None)
        if here != there:
            raise ConfigError(f"env.eval.{name}={there}, but env.train.{name}={here}: make them the same")


def _check_arm(config: Config, train: FrankaEnvConfig) -> None:
    Setup.of(train)
    if train.robot.driver == "twin":
        return
    if config.runner.eval_episodes:
        raise ConfigError(
            f"runner.eval_episodes={config.runner.eval_episodes}, but there is one arm, and it learns: set it to 0 "
            "(env/success_once tells how its own episodes end)"
        )
    refine = config.reward.refine
    if config.reward.use_reward_model and refine.enabled and (refine.labeller == "truth" or refine.mine):
        key = "labeller=truth" if refine.labeller == "truth" else f"mine={refine.mine}"
        raise ConfigError(
            f"reward.refine.{key} asks a simulation, and an arm is none: set reward.refine.labeller=terminal (or log) "
            "and reward.refine.mine=0"
        )
    shown = isinstance(config.algorithm, SACConfig) and config.algorithm.demos.path is not None
    if config.algorithm.bc_warmup.episodes and not shown:
        raise ConfigError(
            "algorithm.bc_warmup clones demonstrations, and an arm has no scripted expert: record some "
            "(referee run realworld_collect_data) and name them by algorithm.demos.path"
        )


def _make_room(run: Training, bar: Progress) -> None:
    """Let no bar be drawn where a person is asked in the terminal."""
    refiner = None if run.verdicts is None else run.verdicts.refiner
    if refiner is not None and isinstance(refiner.labeller, Terminal):
        refiner.labeller.room = partial(_paused, bar)


@contextmanager
def _paused(bar: Progress) -> Iterator[None]:
    bar.stop()
    try:
        yield
    finally:
        bar.start()


def _progress(console: Console, total: int) -> Progress:
    progress = Progress(
        TextColumn("{task.completed:>9,.0f} steps"),
        BarColumn(bar_width=12),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
        console=console,
        refresh_per_second=2,
    )
    progress.add_task("", total=total)
    return progress
