"""The keys of `runner`: what all recipes share, and one dataclass per recipe with the keys that it reads."""
# ruff: noqa: RUF009 -- key() makes a dataclasses.field; nothing mutable is shared

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from referee.config.collection import LabellingConfig
from referee.config.declare import REQUIRED, key
from referee.config.reward_training import FitConfig, ResumeConfig, SaveDirConfig, SeedConfig

TRAINING = ("train_policy", "train_reward", "train_vlm")
RUN_TRAINS = " or ".join(f"runner.recipe={name}" for name in TRAINING)
RECIPE_NAMES = ("evaluate", "demo", *TRAINING, "collect_labels", "collect_data", "teleop")


@dataclass(frozen=True, kw_only=True)
class LoggerConfig:
    """Where a run writes."""

    log_path: str | None = key(None, "directory of the run; null = <output_dir>/<timestamp>-<experiment_name>")
    output_dir: str = key("logs", "where runs without a log_path go")
    experiment_name: str | None = key(None, "name shown in logs; null = the preset's name")
    project_name: str = key("referee", "project in W&B", only_if=RUN_TRAINS)
    logger_backends: tuple[str, ...] = key(
        ("tensorboard",),
        "where metrics go besides metrics.jsonl; tensorboard by default where it is installed",
        choices=("tensorboard", "wandb"),
        only_if=RUN_TRAINS,
    )


@dataclass(frozen=True, kw_only=True)
class RecipeConfig:
    """What `referee run` starts."""

    recipe: str = key(REQUIRED, "the runner to start", choices=RECIPE_NAMES)


@dataclass(frozen=True, kw_only=True)
class RunnerConfig(SeedConfig, RecipeConfig):
    """The keys that all recipes have."""

    task_type: str = key(
        "embodied", "what is rewarded: robots, or texts", choices=("embodied", "text"), only_if="recipe=train_policy"
    )
    imports: tuple[str, ...] = key(
        (), "modules of yours to import first, as those that register input builders; looked for here, too", single=True
    )
    logger: LoggerConfig = key(LoggerConfig, "where the run writes")


@dataclass(frozen=True, kw_only=True)
class ActingConfig:
    """Who acts."""

    policy: str = key(
        "expert",
        "who acts: a scripted expert, uniform noise, a person at the arm, or module:function of your own",
        choices=("expert", "random", "person"),
        attribute=True,
    )
    expert_noise: float = key(0.0, "standard deviation added to the actions", low=0, only_if="policy!=random")
    expert_miss: float = key(
        0.0,
        "metres by which every second episode of the scripted expert aims beside its goal, at most: near misses",
        low=0,
        only_if="policy=expert",
    )


@dataclass(frozen=True, kw_only=True)
class EpisodesConfig:
    """How many episodes are run."""

    num_episodes: int = key(64, "episodes to run", low=1)


@dataclass(frozen=True, kw_only=True)
class FilmConfig:
    """The film of a run."""

    film: bool = key(True, "write a film of some episodes")
    film_episodes: int = key(4, "episodes in the film", low=1, only_if="film")


@dataclass(frozen=True, kw_only=True)
class StepsConfig:
    """For how long the environments are stepped."""

    max_steps: int = key(1_000_000, "environment steps after which it ends", low=1)


@dataclass(frozen=True, kw_only=True)
class ArmConfig(ActingConfig, StepsConfig):
    """Who leads the arm, how long, and how fast."""

    pace: float | None = key(None, "steps per second, for a simulation; null = as the environment steps", low=0.1)


@dataclass(frozen=True, kw_only=True)
class BackgroundConfig:
    """Environments that go on in a process of their own while the policy learns, and never wait for it."""

    enabled: bool = key(False, "act, judge and learn side by side; for SAC and RLPD")
    publish_interval: int = key(20, "updates between new weights for those who act", low=1, only_if="enabled")
    max_lag: int = key(
        2000, "environment steps that may wait to be judged and remembered; beyond, they do wait", low=1,
        only_if="enabled",
    )  # fmt: skip
    pace: float | None = key(
        None, "steps per second of each environment, as on an arm; null = as fast as it goes", low=0.01,
        only_if="enabled",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class EvaluateRunner(FilmConfig, EpisodesConfig, ActingConfig, RunnerConfig):
    """`evaluate`: how often a policy succeeds."""


@dataclass(frozen=True, kw_only=True)
class DemoRunner(FilmConfig, EpisodesConfig, StepsConfig, RunnerConfig):
    """`demo`: the whole story on one task."""


@dataclass(frozen=True, kw_only=True)
class TrainPolicyRunner(ResumeConfig, FilmConfig, StepsConfig, RunnerConfig):
    """`train_policy`: reinforcement learning."""

    max_minutes: float | None = key(None, "stop after so many minutes of training; null = never", low=0)
    eval_interval: int = key(10, "iterations between evaluations", low=1)
    eval_episodes: int = key(256, "episodes of each evaluation; 0 = none", low=0)
    target_success: float | None = key(
        None, "stop once an evaluation ends in so much success; null = never", low=0, high=1
    )
    save_interval: int = key(20, "iterations between checkpoints", low=1)
    keep_every: int | None = key(None, "keep each checkpoint of so many iterations; null = only last and best", low=1)
    background: BackgroundConfig = key(BackgroundConfig, "act and learn side by side")


@dataclass(frozen=True, kw_only=True)
class TrainRewardRunner(SaveDirConfig, ResumeConfig, FitConfig, RunnerConfig):
    """`train_reward`: a reward model, its threshold and its gate."""

    target_episode_fpr: float = key(
        0.01,
        "share of failing episodes that may be paid: threshold and gate are chosen for it",
        low=0.0001,
        high=0.5,
    )


@dataclass(frozen=True, kw_only=True)
class TrainVLMRunner(ResumeConfig, FitConfig, RunnerConfig):
    """`train_vlm`: fine-tuning of a vision-language model."""


@dataclass(frozen=True, kw_only=True)
class CollectLabelsRunner(ResumeConfig, ArmConfig, RunnerConfig):
    """`collect_labels`: frames that a person labels while the arm moves."""

    num_success_frames: int = key(50, "frames to be labelled success", low=1)
    num_fail_frames: int = key(150, "frames to be labelled fail; it ends when there are enough of both", low=1)
    val_split: float = key(0.2, "share of the frames, or episodes, for validation; 0 = none", low=0, high=0.9)
    fail_success_ratio: float = key(2.0, "failures kept per success in training; 0 = all", low=0)
    random_seed: int = key(42, "of the split and of which failures are kept", low=0)
    labelling: LabellingConfig = key(LabellingConfig, "how keys label")


@dataclass(frozen=True, kw_only=True)
class CollectDataRunner(ResumeConfig, ArmConfig, RunnerConfig):
    """`collect_data`: whole episodes at an arm."""

    num_data_episodes: int = key(20, "episodes to record", low=1)


@dataclass(frozen=True, kw_only=True)
class TeleopRunner(ArmConfig, RunnerConfig):
    """`teleop`: a person leads the arm, and a reward model looks on."""

    live_view: str | None = key(
        None, "Rerun: a .rrd file to fill, `spawn` to open a viewer, or the address of one; null = none"
    )
    show_latency: bool = key(False, "a column with the milliseconds from a frame to its verdict")


RUNNERS: Mapping[str, type[RunnerConfig]] = {
    "evaluate": EvaluateRunner,
    "demo": DemoRunner,
    "train_policy": TrainPolicyRunner,
    "train_reward": TrainRewardRunner,
    "train_vlm": TrainVLMRunner,
    "collect_labels": CollectLabelsRunner,
    "collect_data": CollectDataRunner,
    "teleop": TeleopRunner,
}

if TYPE_CHECKING:

    class AnyRunner(  # what a recipe reads of its own section type-checks; another recipe's key is no attribute
        EvaluateRunner, DemoRunner, TrainPolicyRunner, TrainRewardRunner, TrainVLMRunner, CollectLabelsRunner,
        CollectDataRunner, TeleopRunner,
    ):  # fmt: skip
        """The section of whichever recipe runs."""

else:
    AnyRunner = (
        RunnerConfig | EvaluateRunner | DemoRunner | TrainPolicyRunner | TrainRewardRunner | TrainVLMRunner
        | CollectLabelsRunner | CollectDataRunner | TeleopRunner
    )  # fmt: skip
