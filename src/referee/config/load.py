"""Loading a preset: compose, complete, resolve, check, in the order in which `load` reads."""

from __future__ import annotations

import os
from collections.abc import Sequence

from referee.config import files
from referee.config.arm import with_serials
from referee.config.batches import decide_batch
from referee.config.cluster import several_rewards
from referee.config.compose import compose
from referee.config.effects import check_needs, effects, of_other_recipes
from referee.config.endings import decide
from referee.config.fine_tuning import decide_fine_tuning
from referee.config.guides import imply
from referee.config.interpolate import expand_sections, resolve
from referee.config.keys import walk
from referee.config.leaves import dotted
from referee.config.loaded import Loaded
from referee.config.schema import Config
from referee.config.validate import build, complete

TAGS = {path[-1] for path, spec in walk(Config) if spec.key.tag} | {
    spec.key.by[0].rpartition(".")[2] for _, spec in walk(Config) if spec.key.by
}


def load(
    preset: str = "",
    overrides: Sequence[str] = (),
    *,
    config_path: str | os.PathLike[str] | None = None,
    config_name: str | None = None,
) -> Loaded:
    """The checked configuration of a preset with overrides in Hydra's syntax on top.

    preset: a name from `presets()`, or a path to one's own YAML file, which may use our groups and presets.
    overrides: `env.eval.task=Reach`, `+key=value`, `~key`, `env@env.eval=panda` (`env=panda`: wherever used).
    config_path, config_name: directory and name of the file, as Hydra's options of these names.

    Raises ConfigError, one line that names the key, its source and what to do.
    """
    start = files.locate(preset, config_path, config_name)
    composed = compose(start, overrides, Config)
    leaves = expand_sections(composed.leaves, Config)
    leaves = resolve(leaves, Config, only=TAGS)  # which keys exist depends on them
    elsewhere = of_other_recipes(leaves, Config)
    leaves = complete({path: leaf for path, leaf in leaves.items() if path not in elsewhere}, Config)
    leaves = resolve(leaves | elsewhere, Config)  # one of ours may refer to one of theirs
    elsewhere = {path: leaves.pop(path) for path in elsewhere}
    leaves, meant, implied = imply(leaves, composed.translated)
    leaves = decide_fine_tuning(decide_batch(with_serials(decide(leaves))))
    config = build(Config, leaves)
    check_needs(leaves, config.runner.recipe)
    found = effects(leaves, config.runner.recipe, Config, elsewhere)
    notices = composed.notices + meant + found.lines
    notices += several_rewards(config.cluster)
    sources = {dotted(path): str(leaf.origin) for path, leaf in leaves.items()}
    return Loaded(
        config, start.file.stem, sources, notices, composed.translated, tuple(implied), found.dead, found.told
    )
