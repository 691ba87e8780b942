"""Keys and values of the older documents, each translated to its canonical home by one row of one table.

A later section adds rows to ROWS, one line each. Each file, and the command line, is translated before they
are laid over each other, so an older key in a user's file beats a newer one in a group, as it should.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from referee.config.arm import TARGET_EE_POSE
from referee.config.collection import DataCollectionConfig
from referee.config.keys import specs
from referee.config.leaves import Leaf, Path, dotted
from referee.config.maniskill import ManiSkillEnvConfig
from referee.config.reward_training import BinaryClassifierConfig
from referee.config.schema import PandaEnvConfig, RewardModelConfig
from referee.errors import ConfigError

Values = Mapping[Any, Any]
REFERENCE = re.compile(r"\$\{([\w.]+)\}")


@dataclass(frozen=True)
class Row:
    """One older spelling. `*` in `old` stands for one part of the key, and for the same part in `new`."""

    old: str
    new: str | None  # None: the key is accepted without effect, or refused
    document: str
    values: Values | None = None  # older value: value; other values stay
    because: str = ""
    refused: bool = False
    accepts: tuple[Any, ...] | None = None  # of a key without effect: the values that are harmless
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


def ignored(old: str, because: str, document: str, accepts: tuple[Any, ...] | None = None) -> Row:
    """A key that needs no counterpart; it is accepted and reported."""
    return Row(old, None, document, because=because, accepts=accepts)


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

ROWS: tuple[Row, ...] = (
    ignored("*.group_name", "groups of workers are called as in cluster.component_placement", "000"),
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
    ignored("env.*.init_params.render_mode", "images are rendered on demand", "002", accepts=("rgb_array", None)),
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
    ignored("reward_training.*", "reward_training.only=true trains the reward model, and only that", "002"),
    *(moved(f"reward.model.{name}", f"actor.model.{name}", "003", None, CLASSIFIER, LEARNS) for name in MODEL),
    *(
        moved(f"reward.{old}", new, "003", values, recipe=LEARNS)
        for old, new, values in (
            ("model.model_type", "actor.model.model_type", None),
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
    ignored("reward.data.image_key", "data.cameras names the views", "003"),
    ignored("reward.data.num_workers", "frames are read from mapped files", "003"),
    ignored("reward.gpu_id", "the device is found by itself", "003"),
    moved("runner.output_dir", "runner.logger.output_dir", "003"),
    moved("runner.experiment_name", "runner.logger.experiment_name", "003"),
    valued("runner.task_type", {"reasoning": "text"}, "003"),
    valued("actor.model.model_type", {"resnet_reward": "resnet"}, "001"),
    valued("actor.model.pretrained", {False: None}, "004"),
    converted("actor.model.image_size", _side, "004"),
    # The model that pays: `reward.reward_model` in 000 and 003, `reward.resnet` in 002.
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
        ignored(f"reward.{place}.pretrained_encoder_path", "the model's weights hold those of its encoder", "000")
        for place in ("reward_model", "resnet")
    ),
    refused("reward.lr_sched.*", "set actor.optim.schedule and actor.optim.warmup_ratio instead", "003"),
    moved("reward.model.checkpoint_path", "reward.model.model_path", "001"),
    moved("reward.model.image_keys", "reward.model.cameras", "003"),
    moved("reward.checkpoint_path", "reward.model.model_path", "001"),
    moved("reward.reward_model_type", "reward.model.model_type", "002"),
    moved("reward.mode", "reward.combine_mode", "002"),
    moved("reward.use_negative_reward", "reward.fail_reward", "001", {True: -1.0, False: 0.0}),
    valued("reward.model.model_type", {"resnet_reward": "resnet"}, "001"),
    valued("reward.history_reward_assign", {True: "once", False: "end"}, "004"),
    moved("reward.model.gt_success_bonus", "reward.gt_success_bonus", "004"),
    converted("reward.model.image_size", _side, "001"),
    ignored("env.*.reward_render_mode", "every frame is drawn where episodes are recorded", "002", accepts=("always",)),
)


@dataclass
class Translator:
    """Translates the leaves of one file, or of one command line, and remembers what it did."""

    source: str
    rows: Sequence[Row] = ROWS
    recipe: str = ""  # rows for another one do not count
    worlds: Mapping[str, str] = field(default_factory=dict)  # env_type of env.train and env.eval
    done: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    implied: dict[Path, Leaf] = field(default_factory=dict)
    spelling: dict[Path, str] = field(default_factory=dict)  # canonical path: how it was written here

    def __call__(self, path: Path, leaf: Leaf) -> tuple[Path, Leaf] | None:
        """The canonical path and leaf; None when the key is accepted without effect."""
        old_path, old_value = path, leaf.value
        if isinstance(leaf.value, str):  # what it refers to may have moved, too
            leaf = replace(leaf, value=REFERENCE.sub(lambda found: f"${{{self._moved(found[1])}}}", leaf.value))
        for row in self.rows:
            stars = row.matches(path) if self._counts(row, path) else None
            if stars is None:
                continue
            if leaf.value in row.drops:
                return None
            if row.new is None:
                self._without_effect(row, path, leaf)
                return None
            for key, value in row.implies if leaf.value is not False else ():  # what is off implies nothing
                origin = replace(leaf.origin, older=dotted(path))
                self.implied.setdefault(tuple(key.split(".")), Leaf(value, origin))
            path = _filled(row.new, stars)
            value = row.convert(leaf.value) if row.convert else _new_value(leaf.value, row.values or {})
            leaf = replace(leaf, value=value)
        self._check_single(path, dotted(old_path))
        if path != old_path:
            leaf = replace(leaf, origin=replace(leaf.origin, older=dotted(old_path)))
        if leaf.value != old_value:
            self.done.append(f"{dotted(old_path)}={_text(old_value)} → {dotted(path)}={_text(leaf.value)}")
        elif path != old_path:
            self.done.append(f"{dotted(old_path)} → {dotted(path)}")
        return path, leaf

    def target(self, path: Path) -> Path:
        """The canonical path alone, for a key that is to be deleted."""
        for row in self.rows:
            stars = row.matches(path) if self._counts(row, path) else None
            if stars is not None and row.new is not None:
                path = _filled(row.new, stars)
        return path

    def _counts(self, row: Row, path: Path) -> bool:
        world = self.worlds.get(path[1], PANDA) if path[0] == "env" and len(path) > 1 else None
        return row.recipe in (None, self.recipe) and row.world in (None, world)

    def _moved(self, key: str) -> str:
        return dotted(self.target(tuple(key.split("."))))

    def summary(self) -> list[str]:
        """The notices of this source: one for all translations, one for each key without effect."""
        lines = [f"older keys translated ({self.source}): {', '.join(dict.fromkeys(self.done))}"] if self.done else []
        return lines + self.notices

    def _without_effect(self, row: Row, path: Path, leaf: Leaf) -> None:
        what = f"{dotted(path)} ({leaf.origin})"
        if row.refused:
            raise ConfigError(f"{what} of the older documents is refused: {row.because}")
        if row.accepts is not None and leaf.value not in row.accepts:
            raise ConfigError(f"{what} has no effect here and accepts only {row.accepts[0]}: {row.because}; remove it")
        self.notices.append(f"{what} has no effect: {row.because}; remove it")

    def _check_single(self, path: Path, written: str) -> None:
        """A key may be given twice on a command line, but not under two names."""
        first = self.spelling.setdefault(path, written)
        if first != written:
            raise ConfigError(
                f"{first} and {written} are both set ({self.source}) and mean the same: keep only {dotted(path)}"
            )


def _regex(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\*", r"([^.]+)"))


def _filled(pattern: str, stars: tuple[str, ...]) -> Path:
    parts = iter(stars)
    return tuple(next(parts) if part == "*" else part for part in pattern.split("."))


def _new_value(value: Any, values: Values) -> Any:
    if isinstance(value, list):
        return [_new_value(entry, values) for entry in value]
    return values.get(value, value) if isinstance(value, str | int | float | bool) else value


def _text(value: Any) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list) else str(value)
