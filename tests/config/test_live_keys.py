"""`referee config show` prints the keys that act in the chosen setting, and no others."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from referee.config import Loaded, load, presets, show
from referee.config.keys import specs
from referee.config.leaves import dotted
from referee.config.schema import RECIPES

Path = tuple[str, ...]
Condition = tuple[Path, str]


def leaves(section: Any, path: Path = (), around: tuple[Condition, ...] = ()) -> Iterator[tuple[Path, Any, Any]]:
    """Each leaf of a typed tree: path, value, and the conditions of the key and of the sections around it."""
    for name, spec in specs(type(section)).items():
        value, here = getattr(section, name), (*path, name)
        conditions = (*around, (path, spec.key.only_if)) if spec.key.only_if else around
        if spec.entries and value:
            for entry, child in value.items() if spec.named else enumerate(value):
                yield from leaves(child, (*here, str(entry)), conditions)
        elif spec.classes and not spec.entries and value is not None:
            yield from leaves(value, here, conditions)
        else:
            yield here, value, conditions


class Setting:
    """What acts in a configuration, by the schema alone."""

    def __init__(self, loaded: Loaded) -> None:
        self.reads = [tuple(read.split(".")) for read in RECIPES[loaded.config.runner.recipe].reads]
        self.leaves = {path: (value, conditions) for path, value, conditions in leaves(loaded.config)}

    def acts(self, path: Path) -> bool:
        return any(path[: len(read)] == read for read in self.reads) and self._met(path)

    def _met(self, path: Path) -> bool:
        conditions = self.leaves[path][1] if path in self.leaves else ()
        return all(any(self._holds(each, place) for each in text.split(" or ")) for place, text in conditions)

    def _holds(self, option: str, section: Path) -> bool:
        name, _, wanted = option.partition("=")
        differs, name = name.endswith("!"), name.removesuffix("!")
        key = tuple(name.split(".")) if "." in name else (*section, name)
        value = self.leaves[key][0] if key in self.leaves else None
        says = str(value).lower() == wanted.lower() if wanted else bool(value)
        return says is not differs and self._met(key)


def printed(loaded: Loaded, **how: bool) -> set[str]:
    def walk(tree: dict[str, Any], prefix: str = "") -> Iterator[str]:
        for name, value in tree.items():
            yield from walk(value, f"{prefix}{name}.") if isinstance(value, dict) else (f"{prefix}{name}",)

    return set(walk(yaml.safe_load(show(loaded, **how))))


@pytest.mark.parametrize("preset", presets())
def test_every_printed_leaf_acts(preset: str) -> None:
    loaded = load(preset)
    setting = Setting(loaded)
    assert printed(loaded) == {dotted(path) for path in setting.leaves if setting.acts(path)}


@pytest.mark.parametrize(("preset", "live"), [("panda_ppo_mlp_resnet_reward", 118), ("realworld_collect_dataset", 72)])
def test_how_many_there_are(preset: str, live: int) -> None:
    """Of 218 and 221 leaves that were printed or saved, when `runner` had the keys of all recipes."""
    loaded = load(preset)
    assert len(printed(loaded)) == live
    assert printed(loaded) < set(loaded.sources) and not loaded.told
    assert printed(loaded, everything=True) == set(loaded.sources)


def test_conditions_are_followed_to_their_end() -> None:
    """`env_reward_weight` acts with `combine_mode=weighted`, which itself acts with a reward model only."""
    loaded = load("panda_ppo_mlp", ["reward.env_reward_weight=0.5"])
    assert loaded.notices == [
        "reward.env_reward_weight (command line) has no effect: it acts only with reward.use_reward_model=true, "
        "which is false here"
    ]
    assert loaded.told == {"reward.env_reward_weight"} <= loaded.dead
