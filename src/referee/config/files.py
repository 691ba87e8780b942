"""Finding presets, users' own files and groups, and naming where a value came from."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from referee.config import yamltext
from referee.config.declare import nearest_word
from referee.config.leaves import Origin
from referee.config.yamltext import YAMLError, problem
from referee.errors import ConfigError

HERE = Path(__file__).resolve().parent
PRESETS = HERE / "presets"
GROUPS = HERE / "groups"


@dataclass(frozen=True)
class Start:
    """The file that composition starts from: `name` (without .yaml) in `directory`."""

    directory: Path
    name: str

    @property
    def file(self) -> Path:
        return self.directory / f"{self.name}.yaml"


def presets() -> list[str]:
    """Names of the presets that come with Referee."""
    return sorted(file.stem for file in PRESETS.glob("*.yaml"))


def locate(preset: str, config_path: str | os.PathLike[str] | None, config_name: str | None) -> Start:
    """The file meant by a preset's name, a path to a YAML file, or Hydra's config_path and config_name."""
    if preset and config_name and preset != config_name:
        raise ConfigError(f"preset {preset} and config_name {config_name} are both given: give only one of them")
    name = config_name or preset
    if not name:
        raise ConfigError("no preset is given: `referee config list` shows all presets")
    if config_path is not None:
        return _in_directory(Path(config_path).expanduser(), name)
    if name.endswith((".yaml", ".yml")) or "/" in name or os.sep in name:
        file = Path(name).expanduser()
        return _in_directory(file.parent, file.name)
    if name not in presets():
        raise _unknown_preset(name)
    return Start(PRESETS, name)


def _in_directory(directory: Path, name: str) -> Start:
    if name.endswith(".yml"):
        raise ConfigError(f"{directory / name}: rename it to {name[:-4]}.yaml, the ending that Hydra reads")
    start = Start(directory.resolve(), name.removesuffix(".yaml"))
    try:
        if start.file.is_file():
            return start
    except OSError as error:
        raise ConfigError(f"{name[:200]} cannot be a file ({error.strerror}): check the path") from error
    if not directory.is_dir():
        raise ConfigError(f"no directory {directory} to look for {name} in: check the path")
    if start.name in presets():
        return Start(PRESETS, start.name)  # as Hydra would: our presets stand at the end of the search path
    near = nearest_word(start.name, (file.stem for file in directory.glob("*.yaml")))
    hint = f"did you mean {directory / near}.yaml?" if near else "check the path, or see `referee config list`"
    raise ConfigError(f"no file {directory / start.name}.yaml: {hint}")


def _unknown_preset(name: str) -> ConfigError:
    near = nearest_word(name, presets())
    hint = f"did you mean {near}? " if near else ""
    here = len(name) < 200 and Path(f"{name}.yaml").is_file()
    own = f"for the file here write ./{name}.yaml; " if here else ""
    return ConfigError(f"unknown preset {name[:200]}: {hint}{own}`referee config list` shows all presets")


def read(file: Path) -> dict[str, Any]:
    """The tree in a YAML file, interpolations unresolved."""
    check(file)
    try:
        config = OmegaConf.load(file)
    except YAMLError as error:
        raise not_yaml(file, error) from error
    except (OmegaConfBaseException, OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{shown(file)} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(config, DictConfig):
        raise ConfigError(f"{shown(file)} holds a list: it must hold keys, as `runner:`")
    tree = OmegaConf.to_container(config, resolve=False)
    return {str(name): child for name, child in tree.items()} if isinstance(tree, dict) else {}


def check(file: Path) -> None:
    """Refuse a user's file that would take too long to read: too large, too deep, or a bomb of aliases."""
    if HERE in file.parents:
        return
    try:
        if not file.is_file():
            raise ConfigError(f"{shown(file)} is no file: give a file of YAML")
        with file.open("rb") as opened:
            yamltext.check(opened.read(yamltext.MAX_BYTES + 1))
    except yamltext.TooLarge as error:
        raise ConfigError(f"{shown(file)} {error}: make it smaller") from error
    except YAMLError:
        return  # whoever reads it says where it stopped
    except (OSError, ValueError) as error:
        raise ConfigError(f"{shown(file)} cannot be read: {' '.join(str(error).split())}") from error


def not_yaml(file: Path, error: Exception) -> ConfigError:
    """The error for a file that YAML cannot read, with the line where it stopped."""
    where, reason = problem(error)
    return ConfigError(f"{shown(Path(where) if where else file)} is not valid YAML: {reason}; fix that line")


def search_path(start: Start) -> tuple[Path, ...]:
    """Where groups and presets are looked for: beside the user's file, in its hydra.searchpath, then ours."""
    places = [start.directory, *_own_search_path(start.file), PRESETS, GROUPS]
    return tuple(dict.fromkeys(places))


def _own_search_path(file: Path) -> list[Path]:
    hydra = read(file).get("hydra")
    entries = hydra.get("searchpath") if isinstance(hydra, dict) else None
    if entries is None:
        return []
    try:
        entries = OmegaConf.to_container(OmegaConf.create({"e": entries}), resolve=True)["e"]  # type: ignore[index, call-overload]
    except OmegaConfBaseException as error:
        raise ConfigError(f"hydra.searchpath ({shown(file)}): {str(error).splitlines()[0]}; set it") from error
    if not isinstance(entries, list) or not all(isinstance(e, str) and not e.startswith("pkg:") for e in entries):
        raise ConfigError(
            f"hydra.searchpath ({shown(file)}) must be a list of directories, as [file:///home/me/groups]"
        )
    return [Path(entry.removeprefix("file://")).resolve() for entry in entries]


def find(config: str, places: tuple[Path, ...]) -> Path | None:
    """The file of a group or preset, in the order in which Hydra looks."""
    return next((f for place in places if (f := place / f"{config.removesuffix('.yaml')}.yaml").is_file()), None)


def options(group: str, places: tuple[Path, ...]) -> list[str]:
    """What a group offers."""
    return sorted({file.stem for place in places for file in (place / group).glob("*.yaml")})


def origin(config: str, file: Path, *, primary: bool) -> Origin:
    """How a file is called in sources and messages."""
    if file.parent == PRESETS:
        return Origin("preset", file.stem)
    if GROUPS in file.parents:
        return Origin("group", config)
    if primary or "/" not in config:
        return Origin("file", shown(file))
    return Origin("group", f"{config} ({shown(file)})")


def shown(file: Path) -> str:
    """A path as a person at this place would write it."""
    try:
        return str(file.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(file)
