"""Each recipe has its own keys under `runner`; a file that holds those of all recipes still loads."""

from pathlib import Path

import pytest
import yaml

from referee.config import load, to_yaml
from referee.config.keys import specs
from referee.config.runner import RECIPE_NAMES, RUNNERS
from referee.config.schema import RECIPES
from referee.errors import ConfigError, RefereeError

ALL = {name: spec for cls in RUNNERS.values() for name, spec in specs(cls).items()}


def test_each_recipe_has_one_class() -> None:
    assert tuple(RUNNERS) == RECIPE_NAMES == tuple(RECIPES)
    assert {type(load(preset).config.runner) for preset in ("panda_expert", "reward_training")} == {
        RUNNERS["evaluate"], RUNNERS["train_reward"],
    }  # fmt: skip


def test_a_file_with_the_keys_of_all_recipes_loads(tmp_path: Path) -> None:
    """As runs saved it when there was one section for all recipes."""
    tree = yaml.safe_load(to_yaml(load("panda_ppo_mlp")))
    mine = set(tree["runner"])
    for name, spec in ALL.items():
        if not spec.classes:
            default = list(spec.default) if isinstance(spec.default, tuple) else spec.default
            tree["runner"].setdefault(name, default)
    tree["runner"]["early_stop"] = {"patience": 0, "min_delta": 0.0}
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(tree))
    loaded = load(str(file))
    assert loaded.config == load("panda_ppo_mlp").config and loaded.notices == []
    assert set(loaded.tree()["runner"]) == mine and "max_epochs" not in mine


def test_a_key_of_another_recipe_is_told() -> None:
    line = "runner.max_epochs (command line) has no effect: it acts only with runner.recipe=train_reward or train_vlm"
    assert load("panda_ppo_mlp", ["runner.max_epochs=3"]).notices == [f"{line}, which is train_policy here"]
    line = "runner.early_stop.patience (command line) has no effect: it acts only with runner.recipe=train_reward or"
    assert load("panda_expert", ["runner.early_stop.patience=3"]).notices[0].startswith(line)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("runner.max_epochs=x", "must be an integer or null"),
        ("runner.max_epochs=0", "must be at least 1"),
        ("+runner.early_stop.patient=1", "did you mean runner.early_stop.patience?"),
    ],
)
def test_a_wrong_value_of_another_recipe_is_refused(override: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says.replace("?", r"\?")):
        load("panda_ppo_mlp", [override])


def test_one_of_ours_may_refer_to_one_of_theirs() -> None:
    assert load("panda_ppo_mlp", ["runner.max_epochs=3", "runner.seed=${runner.max_epochs}"]).config.runner.seed == 3


def test_sections_made_by_hand_are_checked() -> None:
    with pytest.raises(RefereeError, match="max_steps is 0, but it must be a number at least 1"):
        RUNNERS["train_policy"](recipe="train_policy", max_steps=0)
    with pytest.raises(RefereeError, match="policy is 'exprt', but it must be one of expert"):
        RUNNERS["evaluate"](recipe="evaluate", policy="exprt")
    RUNNERS["evaluate"](recipe="evaluate", policy="mine:policy")
