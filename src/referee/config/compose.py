"""Composition with Hydra: which files make up a preset, in which order, and the command line on top.

Hydra decides the order (its defaults list, with packages, relative groups and group overrides); we lay the
files over each other ourselves, because only then is it known of each value which file it came from.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf.errors import OmegaConfBaseException

from referee.config import files, overrides
from referee.config.declare import nearest_word
from referee.config.files import Start
from referee.config.leaves import Leaf, Leaves, Origin, flatten, put
from referee.config.translator import COMMAND, Translated, Translator
from referee.config.yamltext import YAMLError
from referee.errors import ConfigError

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader
    from hydra.core.override_parser.types import Override

HYDRA_UNUSED = "has no effect: Hydra only composes here; logs and runs are set under runner"


@dataclass(frozen=True)
class Composed:
    """The untyped leaves of a configuration, older keys already translated."""

    leaves: Leaves
    notices: list[str]
    translated: tuple[Translated, ...] = ()


@dataclass(frozen=True)
class Layer:
    """One file laid over those before it, at `package` (env.eval)."""

    file: Path
    package: str
    origin: Origin


def compose(start: Start, lines: Sequence[str], root: type) -> Composed:
    """Lay the files of a preset and the override lines over each other."""
    places = files.search_path(start)
    given = overrides.parse(lines, places)
    layers = list(_layers(start, places, given.groups))
    values = [each for each in given.values if not each.is_delete()]
    first = _laid(layers, replace(given, values=values), root, partial(Translator)).leaves
    recipe = first.get(("runner", "recipe"))
    worlds = {path[1]: str(leaf.value) for path, leaf in first.items() if path[0::2] == ("env", "env_type")}
    meaning = partial(Translator, recipe=str(recipe.value) if recipe else "", worlds=worlds)
    return _laid(layers, given, root, meaning)


def _laid(
    layers: Sequence[Layer], given: overrides.Overrides, root: type, translator: Callable[..., Translator]
) -> Composed:
    """All layers, with older keys translated; what some of them mean depends on the recipe and on the worlds."""
    translators: dict[str, Translator] = {}
    leaves: Leaves = {}
    notices: list[str] = []
    for layer in layers:
        source = str(layer.origin)
        own = translators.setdefault(source, translator(source, identity=str(layer.file.resolve())))
        notices += _lay(layer, leaves, own, root)
    notices += [f"{line} (command line) {HYDRA_UNUSED}" for line in given.hydra]
    on_top = translators[COMMAND] = translator(COMMAND)
    overrides.apply(given.values, leaves, on_top, root)
    for each in translators.values():
        for path, leaf in each.implied.items():
            if path not in leaves:
                put(leaves, path, leaf)
    notices += [line for each in translators.values() for line in each.notices(leaves)]
    translated = [each.translated() for each in translators.values()]
    return Composed(leaves, notices, tuple(each for each in translated if each is not None))


def _lay(layer: Layer, leaves: Leaves, translate: Translator, root: type) -> list[str]:
    tree = files.read(layer.file)
    tree.pop("defaults", None)
    hydra = tree.pop("hydra", None)
    prefix = tuple(layer.package.split(".")) if layer.package else ()
    for path, value in flatten(tree, prefix):
        translated = translate(path, Leaf(value, layer.origin)) if path else None
        if translated is not None:
            overrides.lay(leaves, *translated, root)
    unused = [name for name in hydra or () if name != "searchpath"]
    return [f"hydra.{name} ({layer.origin}) {HYDRA_UNUSED}" for name in unused]


def _layers(start: Start, places: tuple[Path, ...], groups: Sequence[Override]) -> Iterator[Layer]:
    for config, package, primary in _defaults_list(start, places, groups):
        file = files.find(config, places)
        if file is None:
            raise ConfigError(f"{config} is named in a defaults list but found nowhere: check the name")
        yield Layer(file, package, files.origin(config, file, primary=primary))


def _defaults_list(start: Start, places: tuple[Path, ...], groups: Sequence[Override]) -> list[tuple[str, str, bool]]:
    """Hydra's order of files: (config, package, whether it is the one we started from)."""
    from hydra.errors import HydraException, MissingConfigException
    from hydra.types import RunMode

    quoted = ",".join("'file://" + str(place).replace("'", "\\'") + "'" for place in places[1:])
    searchpath = f"hydra.searchpath=[{quoted}]"
    try:
        with _our_hydra(start.directory) as loader:
            _check_what_is_loaded(loader, places)
            chosen: list[str] = []
            if groups:  # MULTIRUN, because the files may leave a choice open (???)
                base = loader.compute_defaults_list(start.name, [searchpath], RunMode.MULTIRUN)
                chosen = [line for group in groups for line in _group_lines(group, base, places)]
            result = loader.compute_defaults_list(start.name, [searchpath, *chosen], RunMode.RUN)
    except MissingConfigException as error:
        raise _missing(start, error, places) from error
    except YAMLError as error:
        raise files.not_yaml(start.file, error) from error
    except RecursionError as error:
        raise ConfigError(
            f"{files.shown(start.file)}: its defaults list leads back to itself: remove that entry"
        ) from error
    except (HydraException, OmegaConfBaseException, ValueError, AssertionError, OSError) as error:
        reason = " ".join(str(error).split()) or "the defaults list is malformed"
        raise ConfigError(f"{files.shown(start.file)} cannot be composed: {reason}") from error
    ours = [item for item in result.defaults if not item.config_path.startswith("hydra/")]
    return [(item.config_path, item.package or "", item.primary) for item in ours]


def _check_what_is_loaded(loader: Any, places: tuple[Path, ...]) -> None:
    """Have Hydra read no file of a user before it is known to be of a size that can be read."""
    from hydra._internal.config_repository import ConfigRepository

    class Checked(ConfigRepository):
        def load_config(self, config_path: str) -> Any:
            file = files.find(config_path, places)
            if file is not None:
                files.check(file)
            return super().load_config(config_path)

    loader.repository = Checked(loader.config_search_path)


@contextmanager
def _our_hydra(directory: Path) -> Iterator[ConfigLoader]:
    """A Hydra of our own; one that the calling program has under way is put back untouched."""
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.utils import JobRuntime
    from hydra.version import VersionBase

    theirs = GlobalHydra.instance()
    hydra, base, job = theirs.hydra, VersionBase.instance().version_base, JobRuntime.instance().conf.copy()
    theirs.clear()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a defaults list without _self_: the file itself goes last
            with initialize_config_dir(str(directory), job_name="referee", version_base="1.3"):
                yield GlobalHydra.instance().config_loader()
    finally:
        theirs.hydra = hydra
        GlobalHydra.set_instance(theirs)
        VersionBase.instance().version_base = base
        JobRuntime.instance().conf = job


def _group_lines(group: Override, base: Any, places: tuple[Path, ...]) -> list[str]:
    """A group override in the form that fits this defaults list: replacing what is there, else adding to it.

    `env=panda` without a package is meant for every place that uses the group.
    """
    name = group.key_or_group
    used_at = sorted(base.overrides.known_choices_per_group.get(name, ()))
    at = [f"{name}@{group.package}"] if group.package else used_at
    if not at:
        raise ConfigError(f"{group.input_line} (command line): say where the group goes, as {name}@PLACE=…")
    if group.is_delete():
        return [f"~{key}" for key in at]
    value = group.value()
    if not isinstance(value, str):
        raise ConfigError(f"{group.input_line} (command line): name a group, or drop it with ~{at[0]}")
    if files.find(f"{name}/{value}", places) is None:
        raise _unknown_group(name, value, "command line", places)
    for item in base.defaults:
        in_place = item.package == group.package and item.config_path.startswith(f"{name}/")
        if in_place and not item.override_key:
            raise _fixed(group, item, places)
    return [f"{key}={value}" if key in base.overrides.known_choices else f"+{key}={value}" for key in at]


def _fixed(group: Override, item: Any, places: tuple[Path, ...]) -> ConfigError:
    """Hydra replaces `- env@env.eval: panda`, but not `- env/panda@env.eval`."""
    where = files.shown(files.find(item.parent, places) or Path(item.parent))
    choice = item.config_path.removeprefix(f"{group.key_or_group}/")
    return ConfigError(
        f"{group.input_line} (command line): {where} fixes {item.config_path}@{group.package}; "
        f"write it in its defaults as `{group.key_or_group}@{group.package}: {choice}` to make it replaceable"
    )


def _missing(start: Start, error: Any, places: tuple[Path, ...]) -> ConfigError:
    group, _, name = str(error.missing_cfg_file or "").rpartition("/")
    return _unknown_group(group, name, files.shown(start.file), places)


def _unknown_group(group: str, name: str, source: str, places: tuple[Path, ...]) -> ConfigError:
    offered = files.options(group, places)
    near = nearest_word(name, offered)
    hint = f"did you mean {near}? " if near else ""
    if not group:
        return ConfigError(f"unknown preset {name} ({source}): {hint}`referee config list` shows all presets")
    there = f"{group}/ holds {', '.join(offered)}" if offered else "there is no such group"
    return ConfigError(f"unknown group {group}/{name} ({source}): {hint}{there}")
