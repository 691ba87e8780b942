"""Keys and values of RLinf's reward-model guides, each with its canonical home: one row of one table.

A later section adds rows to ROWS, one line each; `translator.py` applies them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from referee.config.arm import TARGET_EE_POSE
from referee.config.collection import DataCollectionConfig
from referee.config.keys import specs
from referee.config.leaves import Path, dotted
from referee.config.maniskill import ManiSkillEnvConfig
from referee.config.reward_training import BinaryClassifierConfig
from referee.config.schema import PandaEnvConfig, RewardModelConfig

Values = Mapping[Any, Any]
GUIDES: Mapping[str, str] = {
    "000": "Reward Model Workflow Documentation",
    "001": "Reward Model Integration (Real-World)",
    "002": "ResNet Reward Model Training Guide",
    "003": "Reward Model Workflow (in Chinese)",
    "004": "Reward Model Guide",
}
"""RLinf's guides by the number that rows name."""


@dataclass(frozen=True)
class Row:
    """One older spelling. `*` in `old` stands for one part of the key, and for the same part in `new`."""

    old: str
    new: str | None  # None: the key is accepted without effect, or refused
    document: str
    values: Values | None = None  # older value: value; other values stay
    because: str = ""
    refused: bool = False
    accepts: tuple[Any, ...] | None = None  # of a key without effect: all others are refused
    harmless: tuple[Any, ...] | None = ()  # of a key without effect: values whose effect nobody misses; None: all
    same_as: str | None = None  # of a key without effect: a key whose value it repeats, which is harmless
    warnings: Values = field(default_factory=dict)  # older value: what to know about it
    refusals: Values = field(default_factory=dict)  # older value: why it is refused, and what to give instead
    implies: tuple[tuple[str, Any], ...] = ()  # keys and the values that they take, unless somebody sets them
    drops: tuple[Any, ...] = ()  # values that say nothing
    recipe: str | None = None  # the only recipe in which the key means this
    world: str | None = None  # the only env_type for which it does
    convert: Callable[[Any], Any] | None = None  # what becomes of the value

    def matches(self, path: Path) -> tuple[str, ...] | None:
        """What the stars stand for, or None."""
        match = _regex(self.old).fullmatch(dotted(path))
        return match.groups() if match else None


def moved(
    old: str,
    new: str,
    document: str,
    values: Values | None = None,
    implies: tuple[tuple[str, Any], ...] = (),
    recipe: str | None = None,
    world: str | None = None,
) -> Row:
    """A key that has another name now, and perhaps meant another key's value too."""
    return Row(old, new, document, values, implies=implies, recipe=recipe, world=world)


def valued(key: str, values: Values, document: str, world: str | None = None) -> Row:
    """Values (or entries of a list) that have other names now."""
    return Row(key, key, document, values, world=world)


def ignored(old: str, because: str, document: str, harmless: tuple[Any, ...] = (), same_as: str | None = None) -> Row:
    """A key whose effect is missing here; it is accepted, with a warning unless its value is harmless."""
    return Row(old, None, document, because=because, harmless=harmless, same_as=same_as)


def unneeded(
    old: str, because: str, document: str, accepts: tuple[Any, ...] | None = None, recipe: str | None = None
) -> Row:
    """A key that needs no counterpart: what it asks for happens anyway, so that it is accepted without a warning."""
    return Row(old, None, document, because=because, accepts=accepts, harmless=None, recipe=recipe)


def refused(old: str, because: str, document: str) -> Row:
    """A key that we cannot honour; the reason ends with what to do."""
    return Row(old, None, document, because=because, refused=True)


def converted(key: str, convert: Callable[[Any], Any], document: str) -> Row:
    """Values that are written in another way now."""
    return Row(key, key, document, convert=convert)


def _side(value: Any) -> Any:
    """The side of square pictures, from [3,n,n]; anything else is left to the schema."""
    match value:
        case [3, int(height), int(width)] if height == width:
            return height
    return value


SAME_NAME = dict.fromkeys(
    name
    for world in (PandaEnvConfig, ManiSkillEnvConfig)
    for name, spec in specs(world).items()
    if not spec.key.tag and not spec.classes
)
SAVE_DIR = "env.*.data_collection.save_dir"
PANDA, MANISKILL = "panda", "maniskill"
COLLECTION = list(specs(DataCollectionConfig))
AS_NPY = (("env.train.data_collection.export_format", "npy"),)
AS_FRAMES = (("env.train.data_collection.export_format", "pickle_frames"),)
IN_REWARD_DATA = tuple(
    (f"env.train.data_collection.{kind}_dir", f"./reward_data/{kind}") for kind in ("positive", "negative")
)
MODEL = [name for name, spec in specs(BinaryClassifierConfig).items() if not spec.key.tag]
CLASSIFIER = (("actor.model.model_type", "binary_classifier"),)
LEARNS, POLICY = "train_reward", "train_policy"
OLD_TASKS = {f"{task}-v1": task for task in specs(PandaEnvConfig)["task"].key.choices or ()}

PRETRAINED = (
    "nothing is downloaded: name a local file with the encoder's weights of torchvision or SERL (.pth, .pt or "
    ".safetensors), or false to start without"
)
NEGATIVE = (
    "a policy that gets only negative rewards may collapse, so RLinf's guide says not to set it: "
    "use reward.fail_reward=0.0"
)

ROWS: tuple[Row, ...] = (
    unneeded("*.group_name", "groups of workers are called as in cluster.component_placement", "000"),
    # What a policy looks at is what its environment draws; presets evaluate as they train.
    moved("actor.model.image_keys", "env.train.cameras", "000", recipe=POLICY),
    Row("actor.model.image_size", "env.train.image_size", "000", convert=_side, recipe=POLICY),
    moved("actor.model.image_keys", "data.cameras", "003", recipe=LEARNS),
    *(moved(f"env.*.init_params.{name}", f"env.*.{name}", "002") for name in SAME_NAME),
    moved(
        "env.*.init_params.id", "env.*.task", "002", OLD_TASKS | {"PegInsertionSide-v1": "PegInsertion"}, world=PANDA
    ),
    moved("env.*.init_params.id", "env.*.task", "002", world=MANISKILL),
    valued("env.*.sim_backend", {"physx_cpu": "cpu", "physx_cuda": "gpu", "cuda": "gpu"}, "002", MANISKILL),
    unneeded("env.*.init_params.render_mode", "images are rendered on demand", "002", accepts=("rgb_array", None)),
    valued("env.*.control_mode", {"pd_ee_delta_pos": "ee_delta", "pd_joint_delta_pos": "joint_delta"}, "002", PANDA),
    valued("env.*.cameras", {"base_camera": "front"}, "000", PANDA),
    moved("env.*.override_cfg.*", "env.*.*", "001"),
    valued("env.*.target_ee_pose", {TARGET_EE_POSE: None}, "004"),
    *(moved(f"env.data_collection.{name}", f"env.train.data_collection.{name}", "004") for name in COLLECTION),
    Row(SAVE_DIR, SAVE_DIR, "004", drops=("${runner.logger.log_path}/collected_data",)),  # where they go anyway
    moved("reward.collect_data", "env.train.data_collection.enabled", "000", implies=AS_NPY + IN_REWARD_DATA),
    *(
        moved(f"reward.data_collection.{old}", f"env.train.data_collection.{new}", "000", values, AS_NPY)
        for old, new, values in (
            ("positive_dir", "positive_dir", None),
            ("negative_dir", "negative_dir", None),
            ("image_keys", "cameras", None),
            ("max_positive_trajectories", "target_success", None),
            ("max_negative_trajectories", "target_failure", None),
        )
    ),
    valued("env.*.data_collection.cameras", {"base_camera": "front"}, "000", PANDA),
    *(
        moved(f"reward_data_collection.{name}", f"env.train.data_collection.{name}", "002", implies=AS_FRAMES)
        for name in COLLECTION
    ),
    # Training a reward model: 002 beside a policy's training, 003 under `reward`.
    Row("reward_training.only", "runner.recipe", "002", {True: LEARNS}, drops=(False,)),
    *(
        moved(f"reward_training.{old}", new, "002", recipe=LEARNS)
        for old, new in (
            ("data_path", "data.data_path"),
            ("epochs", "runner.max_epochs"),
            ("micro_batch_size", "actor.micro_batch_size"),
            ("global_batch_size", "actor.global_batch_size"),
            ("lr", "actor.optim.lr"),
            ("save_dir", "runner.save_dir"),
        )
    ),
    unneeded("reward_training.enabled", "reward_training.only=true says it already", "002", (True,), LEARNS),
    ignored("reward_training.*", "reward_training.only=true trains the reward model, and only that", "002"),
    # A saved configuration names them all, with null; there they say nothing.
    Row("reward.model.model_type", "actor.model.model_type", "003", drops=(None,), recipe=LEARNS),
    *(
        Row(f"reward.model.{name}", f"actor.model.{name}", "003", implies=CLASSIFIER, drops=(None,), recipe=LEARNS)
        for name in MODEL
    ),
    *(
        moved(f"reward.{old}", new, "003", values, recipe=LEARNS)
        for old, new, values in (
            ("model.image_keys", "data.cameras", None),
            ("model.pretrained_encoder_path", "actor.model.pretrained", None),
            ("model.use_pretrain", "actor.model.pooling", {True: "spatial", False: "average"}),
            ("optim.*", "actor.optim.*", None),
            ("data.positive_dir", "data.positive_dir", None),
            ("data.negative_dir", "data.negative_dir", None),
            ("num_epochs", "runner.max_epochs", None),
            ("global_batch_size", "actor.global_batch_size", None),
            ("micro_batch_size", "actor.micro_batch_size", None),
            ("training_backend", "actor.training_backend", None),
            ("log_interval", "runner.log_interval", None),
            ("save_interval", "runner.save_steps", None),
            ("save_dir", "runner.save_dir", None),
        )
    ),
    ignored("reward.data.image_key", "data.cameras names the views", "003", same_as="data.cameras"),
    unneeded("reward.data.num_workers", "frames are read from mapped files", "003"),
    ignored("reward.gpu_id", "the device is found by itself", "003", harmless=(0,)),
    moved("runner.output_dir", "runner.logger.output_dir", "003"),
    moved("runner.experiment_name", "runner.logger.experiment_name", "003"),
    valued("runner.task_type", {"reasoning": "text"}, "003"),
    valued("actor.model.model_type", {"resnet_reward": "resnet"}, "001"),
    Row("actor.model.pretrained", "actor.model.pretrained", "004", {False: None}, refusals={True: PRETRAINED}),
    converted("actor.model.image_size", _side, "004"),
    # The model that scores: `reward.reward_model` in 000 and 003, `reward.resnet` in 002.
    *(
        moved(f"reward.{place}.{old}", f"reward.model.{new}", document, values)
        for place, document in (("reward_model", "000"), ("resnet", "002"))
        for old, new, values in (
            *((name, name, None) for name in specs(RewardModelConfig)),
            ("checkpoint_path", "model_path", None),
            ("image_keys", "cameras", None),
            ("use_pretrain", "pooling", {True: "spatial", False: "average"}),
        )
    ),
    *(moved(f"reward.{place}.reward_type", "reward.reward_type", "000") for place in ("reward_model", "resnet")),
    *(
        unneeded(f"reward.{place}.pretrained_encoder_path", "the model's weights hold those of its encoder", "000")
        for place in ("reward_model", "resnet")
    ),
    refused("reward.lr_sched.*", "set actor.optim.schedule and actor.optim.warmup_ratio instead", "003"),
    moved("reward.model.checkpoint_path", "reward.model.model_path", "001"),
    moved("reward.model.image_keys", "reward.model.cameras", "003"),
    moved("reward.checkpoint_path", "reward.model.model_path", "001"),
    moved("reward.reward_model_type", "reward.model.model_type", "002"),
    moved("reward.mode", "reward.combine_mode", "002"),
    Row("reward.use_negative_reward", "reward.fail_reward", "001", {True: -1.0, False: 0.0}, warnings={True: NEGATIVE}),
    valued("reward.model.model_type", {"resnet_reward": "resnet"}, "001"),
    valued("reward.history_reward_assign", {True: "once", False: "end"}, "004"),
    moved("reward.model.gt_success_bonus", "reward.gt_success_bonus", "004"),
    converted("reward.model.image_size", _side, "001"),
    unneeded("env.*.reward_render_mode", "every frame is drawn where episodes are recorded", "002", ("always",)),
)


def _regex(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\*", r"([^.]+)"))
