"""Every configuration key, with its type, default, limits and meaning: the documentation of all keys.

A later section adds a dataclass here and, where it brings a runner, a row in RECIPES; nothing else changes.
"""
# ruff: noqa: RUF009 -- key() makes a dataclasses.field; nothing mutable is shared

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from referee.config.arm import FrankaEnvConfig, RobotConfig
from referee.config.cluster import ClusterConfig
from referee.config.collection import DataCollectionConfig
from referee.config.datasets import DataConfig
from referee.config.declare import REQUIRED, Checked, key
from referee.config.gym import CustomEnvConfig, GymEnvConfig
from referee.config.history import ApiConfig, TextRewardConfig
from referee.config.learning import ActorConfig, AlgorithmConfig, PPOConfig
from referee.config.maniskill import ManiSkillEnvConfig
from referee.config.reward_training import ARCHITECTURES, RewardActorConfig
from referee.config.runner import RUNNERS, AnyRunner
from referee.config.vlm import VLMActorConfig, VLMDataConfig, VLMModelConfig


@dataclass(frozen=True)
class Recipe:
    """What a runner takes from the configuration: sections it reads, and those it cannot do without."""

    reads: tuple[str, ...]
    needs: tuple[str, ...] = ()


TELEOP_REWARD = tuple(
    f"reward.{name}"
    for name in ("use_reward_model", "use_reward_prob", "standalone_realworld", "reward_mode",
                 "reward_threshold", "success_reward", "fail_reward", "gate_k", "gate_n", "veto_unknown",
                 "late_seconds", "model")
)  # fmt: skip
RECIPES: Mapping[str, Recipe] = {
    "evaluate": Recipe(reads=("runner", "env.eval", "robot"), needs=("env.eval",)),
    "demo": Recipe(reads=("runner", "env.eval"), needs=("env.eval",)),
    "train_policy": Recipe(
        reads=("runner", "env.train", "env.eval", "robot", "algorithm", "actor", "reward", "cluster"),
        needs=("env.train", "env.eval"),
    ),
    "train_reward": Recipe(reads=("runner", "data", "actor", "cluster")),
    "train_vlm": Recipe(reads=("runner", "data", "actor")),
    "collect_labels": Recipe(
        reads=("runner", "env.eval", "robot", "data.cameras", "cluster"),
        needs=("env.eval",),
    ),
    "collect_data": Recipe(reads=("runner", "env.eval", "robot", "cluster"), needs=("env.eval",)),
    "teleop": Recipe(reads=("runner", "env.eval", "robot", "cluster", *TELEOP_REWARD), needs=("env.eval",)),
}
PAYS = "use_reward_model"


@dataclass(frozen=True, kw_only=True)
class RandomiseConfig:
    """Domain randomisation: how far looks vary from episode to episode; 0 = not at all."""

    light: float = key(0.0, "strength of changes to the light", low=0, high=1)
    colours: float = key(0.0, "strength of changes to the colours", low=0, high=1)
    camera: float = key(0.0, "strength of camera jitter", low=0, high=1)
    distractors: int = key(0, "objects that mean nothing", low=0, high=4)
    seed: int | None = key(
        None,
        "seed of the looks; null = the env's own seed",
        low=0,
        only_if="light or colours or camera or distractors",
    )


@dataclass(frozen=True, kw_only=True)
class PandaEnvConfig:
    """The embedded simulation of a Franka Panda."""

    env_type: str = key("panda", "which world", tag=True)
    task: str = key("PickCube", "the task", choices=("Reach", "PushCube", "PickCube", "PegInsertion"))
    num_envs: int = key(16, "environments stepped side by side", low=1)
    max_episode_steps: int = key(50, "steps after which an episode is cut off", low=1)
    obs_mode: str = key("state", "what the policy observes", choices=("state", "rgb", "state+rgb"))
    control_mode: str = key("ee_delta", "what an action moves", choices=("ee_delta", "joint_delta"))
    reward_mode: str = key("dense", "the env's own reward", choices=("dense", "sparse"))
    terminate_on_success: bool = key(False, "end an episode when it has succeeded")
    success_hold_steps: int = key(
        1, "successive successes that end an episode, where the truth or a reward model's verdict ends it", low=1
    )
    cameras: tuple[str, ...] = key(
        ("front", "side"),
        "the cameras; the first gives main_images, the others extra_view_images",
        choices=("front", "side", "wrist"),
        low=1,
    )
    image_size: int = key(64, "width and height of images in pixels", choices=(64, 128, 224))
    encoder: str | None = key(
        None, "reward model whose frozen encoder turns images into states, once; null = images as they are"
    )
    num_threads: int = key(0, "threads that step, and processes that draw; 0 = one per core", low=0)
    randomise: RandomiseConfig = key(RandomiseConfig, "domain randomisation")
    data_collection: DataCollectionConfig = key(DataCollectionConfig, "recording of episodes")


# The worlds there are. Each class names itself by its tag, env_type; the first is taken where env_type is not given.
EnvConfig = PandaEnvConfig | ManiSkillEnvConfig | FrankaEnvConfig | GymEnvConfig | CustomEnvConfig


@dataclass(frozen=True, kw_only=True)
class EnvSection:
    """The worlds a policy trains and is judged in."""

    train: EnvConfig | None = key(None, "the env to train in; null = none")
    eval: EnvConfig | None = key(None, "the env to evaluate in; null = none")


@dataclass(frozen=True, kw_only=True)
class RewardModelConfig:
    """The model that pays, and where it computes."""

    model_path: str | None = key(None, "the artifact, which says what it is; or weights as .pt or .safetensors")
    backend: str = key(
        "auto",
        "what computes; auto = the fastest that is installed and agrees with torch, where every state is judged",
        choices=("auto", "torch", "compile", "onnxruntime", "openvino"),
    )
    int8: bool = key(False, "in whole numbers of 8 bits", only_if="backend=onnxruntime or backend=openvino")
    debug_save_dir: str | None = key(None, "write some judged frames there as pictures; null = none")
    model_type: str | None = key(
        None,
        "of weights without an artifact, as those below; vlm and history_vlm have keys of their own",
        choices=("resnet", "binary_classifier", "vlm", "history_vlm"),
    )
    arch: str | None = key(None, "the encoder", choices=ARCHITECTURES)
    cameras: tuple[str, ...] | None = key(None, "the views, the main one first", single=True)
    image_size: int | None = key(None, "pixels", low=8)
    hidden_dim: int | None = key(None, "of the head", low=1)
    dropout: float | None = key(None, "in the head", low=0, high=0.99)
    normalize: bool | None = key(None, "by ImageNet's mean and deviation")
    precision: str | None = key(None, "of the encoder; null = as it was trained", choices=("fp32", "bf16"))
    num_spatial_blocks: int | None = key(None, "of binary_classifier", low=1)
    pooling: str | None = key(None, "of binary_classifier", choices=("spatial", "average"))
    freeze_encoder: bool | None = key(None, "as it was trained")


@dataclass(frozen=True, kw_only=True)
class AlarmConfig:
    """The alarm, which watches without the truth whether judged frames are such as the model knows."""

    enabled: bool = key(True, "compare the frames that are judged with those of training")
    frames: int = key(8, "of each iteration that are looked at once more, from another view", low=1, only_if="enabled")
    stop: bool = key(False, "end the run when it is raised", only_if="enabled")


@dataclass(frozen=True, kw_only=True)
class RefineRoundsConfig(Checked):
    """How much is asked, and how it is learned."""

    budget: int = key(480, "frames that are asked about, in all; 0 = nobody is asked", low=0, only_if="enabled")
    ask: int = key(24, "of them, in one round", low=2, only_if="enabled")
    steps: int = key(80, "optimiser steps of a retraining", low=1, only_if="enabled")
    lr: float = key(1e-3, "learning rate of a retraining", low=0, only_if="enabled")
    seconds_per_label: float = key(2.0, "what an answer costs a person, for the account", low=0, only_if="enabled")


@dataclass(frozen=True, kw_only=True)
class RefineConfig(RefineRoundsConfig):
    """Refinement: some judged frames are asked about, and the model learns from the answers while the policy does."""

    enabled: bool = key(False, "ask, learn, and let the better model pay")
    labeller: str = key(
        "truth",
        "who answers: the simulation, a person here, or anybody through the label log",
        choices=("truth", "terminal", "log"),
        only_if="enabled",
    )
    interval: int = key(5, "iterations between rounds", low=1, only_if="enabled")
    mine: int = key(
        0, "frames of the policy's first steps, which are taken as failures before it learns", low=0, only_if="enabled"
    )
    data: str | None = key(
        None, "folder with the train.pt and val.pt of the model; null = those that it names", only_if="enabled"
    )


@dataclass(frozen=True, kw_only=True)
class RewardConfig:
    """A learned reward; the ground truth pays, ends and chooses nothing unless a key here says so."""

    use_reward_model: bool = key(False, "pay by what the model says, instead of the environment's reward")
    use_reward_prob: bool = key(False, "a column with the probability of each frame", only_if="runner.recipe=teleop")
    standalone_realworld: bool = key(
        False, "the verdict ends episodes, and the environment's own success does not", only_if="runner.recipe=teleop"
    )
    late_seconds: float = key(
        0.5, "a verdict that takes longer is no success, and the arm holds until it is there", low=0.01,
        only_if="runner.recipe=teleop",
    )  # fmt: skip
    reward_mode: str = key(
        "terminal",
        "judge the last state of an episode, each state, or windows of the last ones",
        choices=("terminal", "per_step", "history_buffer"),
        only_if=PAYS,
    )
    history_reward_assign: str = key(
        "end",
        "a window pays the step that ended it; each step that it judged, once; or each step for all its windows",
        choices=("end", "once", "sum"),
        only_if="reward_mode=history_buffer",
    )
    hold_terminal: bool = key(
        False,
        "judge the last states only, where the artifact's validation is too weak for each",
        only_if="reward_mode=per_step",
    )
    reward_type: str = key(
        "binary",
        "pay by success, by probability, or by the model's own score",
        choices=("binary", "continuous", "score"),
        only_if=PAYS,
    )
    success_reward: float = key(1.0, "paid for a success", only_if="reward_type=binary")
    fail_reward: float = key(0.0, "paid for anything else", only_if="reward_type=binary")
    reward_threshold: float | None = key(
        None, "probability from which a state is a success; null = the artifact's own", low=0, high=1, only_if=PAYS
    )
    below_threshold: str = key(
        "zero", "what a probability below reward_threshold becomes: 0, or the reward as it is",
        choices=("zero", "keep"), only_if="reward_type=continuous",
    )  # fmt: skip
    gate_k: int | None = key(
        None, "successes among the last gate_n states; null = the artifact's own", low=1, only_if=PAYS
    )
    gate_n: int | None = key(None, "null = the artifact's own", low=1, only_if=PAYS)
    veto_unknown: bool = key(
        False, "what is called a success but is unlike all known ones is none", only_if="reward_type=binary"
    )
    combine_mode: str = key(
        "weighted", "with the environment's reward", choices=("weighted", "replace", "add"), only_if=PAYS
    )
    reward_weight: float = key(1.0, "weight of the model's reward", only_if=PAYS)
    env_reward_weight: float = key(0.0, "weight of the environment's", only_if="combine_mode=weighted")
    gt_success_bonus: float = key(0.0, "paid for true success; then the reward is not learned alone", only_if=PAYS)
    terminate_on: str | None = key(
        None, "who ends an episode early; null = never, but at an arm the model",
        choices=("never", "model", "truth"), only_if=PAYS,
    )  # fmt: skip
    model: RewardModelConfig | VLMModelConfig = key(
        RewardModelConfig, "the model", only_if=PAYS,
        by=("reward.model.model_type", {"vlm": VLMModelConfig, "history_vlm": VLMModelConfig}),
    )  # fmt: skip
    api: ApiConfig = key(ApiConfig, "where a vision-language model answers", only_if="use_reward_model")
    text: TextRewardConfig = key(TextRewardConfig, "pays for texts", only_if="runner.task_type=text")
    alarm: AlarmConfig = key(AlarmConfig, "says when not to trust it", only_if="use_reward_model")
    refine: RefineConfig = key(RefineConfig, "repairs it", only_if="use_reward_model")


@dataclass(frozen=True, kw_only=True)
class Config:
    """The whole configuration."""

    runner: AnyRunner = key(REQUIRED, "what to run", by=("runner.recipe", RUNNERS))
    env: EnvSection = key(EnvSection, "where to run it")
    robot: RobotConfig = key(
        RobotConfig, "the arm that env.train and env.eval share (their own robot.* beats it)",
        only_if="env.train.env_type=franka or env.eval.env_type=franka",
    )  # fmt: skip
    algorithm: AlgorithmConfig = key(PPOConfig, "how the policy learns")
    reward: RewardConfig = key(RewardConfig, "a learned reward")
    data: DataConfig | VLMDataConfig = key(
        DataConfig, "what a reward model learns from", by=("runner.recipe", {"train_vlm": VLMDataConfig})
    )
    actor: ActorConfig | RewardActorConfig | VLMActorConfig = key(
        ActorConfig, "who learns",
        by=("runner.recipe", {"train_reward": RewardActorConfig, "train_vlm": VLMActorConfig}),
    )  # fmt: skip
    cluster: ClusterConfig = key(ClusterConfig, "where workers run")
