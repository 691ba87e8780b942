"""Keys and values of the older documents, each translated to its canonical home by one row of one table.

A later section adds rows to ROWS, one line each. Each file, and the command line, is translated before they
are laid over each other, so an older key in a user's file beats a newer one in a group, as it should.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from referee.config.keys import specs
from referee.config.leaves import Leaf, Path, dotted
from referee.config.schema import DataCollectionConfig, PandaEnvConfig
from referee.errors import ConfigError

Values = Mapping[Any, Any]


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
    implies: tuple[str, Any] | None = None  # a key and the value that it takes, unless somebody sets it

    def matches(self, path: Path) -> tuple[str, ...] | None:
        """What the stars stand for, or None."""
        match = _regex(self.old).fullmatch(dotted(path))
        return match.groups() if match else None


def moved(
    old: str, new: str, document: str, values: Values | None = None, implies: tuple[str, Any] | None = None
) -> Row:
    """A key that has another name now, and perhaps meant another key's value too."""
    return Row(old, new, document, values, implies=implies)


def valued(key: str, values: Values, document: str) -> Row:
    """Values (or entries of a list) that have other names now."""
    return Row(key, key, document, values)


def ignored(old: str, because: str, document: str, accepts: tuple[Any, ...] | None = None) -> Row:
    """A key that needs no counterpart; it is accepted and reported."""
    return Row(old, None, document, because=because, accepts=accepts)


def refused(old: str, because: str, document: str) -> Row:
    """A key that we cannot honour; the reason ends with what to do."""
    return Row(old, None, document, because=because, refused=True)


SAME_NAME = [name for name, spec in specs(PandaEnvConfig).items() if not spec.key.tag and not spec.classes]
COLLECTION = list(specs(DataCollectionConfig))
AS_NPY = ("env.train.data_collection.export_format", "npy")
AS_FRAMES = ("env.train.data_collection.export_format", "pickle_frames")
OLD_TASKS = {f"{task}-v1": task for task in specs(PandaEnvConfig)["task"].key.choices or ()}

ROWS: tuple[Row, ...] = (
    *(moved(f"env.*.init_params.{name}", f"env.*.{name}", "002") for name in SAME_NAME),
    moved("env.*.init_params.id", "env.*.task", "002", OLD_TASKS | {"PegInsertionSide-v1": "PegInsertion"}),
    ignored("env.*.init_params.render_mode", "images are rendered on demand", "002", accepts=("rgb_array", None)),
    valued("env.*.control_mode", {"pd_ee_delta_pos": "ee_delta", "pd_joint_delta_pos": "joint_delta"}, "002"),
    valued("env.*.cameras", {"base_camera": "front"}, "000"),
    *(moved(f"env.data_collection.{name}", f"env.train.data_collection.{name}", "004") for name in COLLECTION),
    moved("reward.collect_data", "env.train.data_collection.enabled", "000", implies=AS_NPY),
    *(
        moved(f"reward.data_collection.{old}", f"env.train.data_collection.{new}", "000", values, AS_NPY)
        for old, new, values in (
            ("positive_dir", "positive_dir", None),
            ("negative_dir", "negative_dir", None),
            ("image_keys", "cameras", {"base_camera": "front"}),
            ("max_positive_trajectories", "target_success", None),
            ("max_negative_trajectories", "target_failure", None),
        )
    ),
    *(
        moved(f"reward_data_collection.{name}", f"env.train.data_collection.{name}", "002", implies=AS_FRAMES)
        for name in COLLECTION
    ),
    ignored("env.*.reward_render_mode", "every frame is drawn where episodes are recorded", "002", accepts=("always",)),
)


@dataclass
class Translator:
    """Translates the leaves of one file, or of one command line, and remembers what it did."""

    source: str
    rows: Sequence[Row] = ROWS
    done: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    implied: dict[Path, Leaf] = field(default_factory=dict)
    spelling: dict[Path, str] = field(default_factory=dict)  # canonical path: how it was written here

    def __call__(self, path: Path, leaf: Leaf) -> tuple[Path, Leaf] | None:
        """The canonical path and leaf; None when the key is accepted without effect."""
        old_path, old_value = path, leaf.value
        for row in self.rows:
            stars = row.matches(path)
            if stars is None:
                continue
            if row.new is None:
                self._without_effect(row, path, leaf)
                return None
            if row.implies is not None:
                key, value = row.implies
                origin = replace(leaf.origin, older=dotted(path))
                self.implied.setdefault(tuple(key.split(".")), Leaf(value, origin))
            path = _filled(row.new, stars)
            leaf = replace(leaf, value=_new_value(leaf.value, row.values or {}))
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
            stars = row.matches(path)
            if stars is not None and row.new is not None:
                path = _filled(row.new, stars)
        return path

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
