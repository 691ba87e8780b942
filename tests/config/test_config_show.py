"""What people see: sources, notices, the saved file and the table of presets."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from referee.config import list_presets, load, presets, show, to_yaml
from referee.config.yamltext import scalar

pytestmark = pytest.mark.usefixtures("quick")

NOISE = ["runner.expert_noise=0.3"]


def test_sources_cover_every_leaf() -> None:
    loaded = load("panda_random", ["runner.seed=3"])
    leaves = {line.split(":")[0] for line in _dotted(loaded.tree())}
    assert leaves == set(loaded.sources)
    assert loaded.sources["runner.seed"] == "command line"
    assert loaded.sources["runner.policy"] == "preset panda_random"
    assert loaded.sources["runner.film"] == "default"
    assert loaded.sources["env.eval.num_envs"] == "group env/panda"


def _dotted(tree: dict, prefix: str = "") -> list[str]:
    return [
        leaf
        for name, value in tree.items()
        for leaf in (_dotted(value, f"{prefix}{name}.") if isinstance(value, dict) else [prefix + name])
    ]


RECORDING = ("save_dir", "export_format", "only_success", "target_success", "target_failure", "cameras",
             "positive_dir", "negative_dir", "queue_size")  # fmt: skip


def _less(tree: dict, dotted: set[str], prefix: str = "") -> dict:
    return {
        name: _less(value, dotted, f"{prefix}{name}.") if isinstance(value, dict) else value
        for name, value in tree.items()
        if prefix + name not in dotted
    }


def test_show_is_yaml_with_aligned_sources() -> None:
    loaded = load("panda_expert", ["env.eval.task=Reach"])
    text = show(loaded)
    shown, tree = yaml.safe_load(text), loaded.tree()
    # What has no effect is left out, unless somebody has set it.
    dead = {"runner.task_type", "env.eval.randomise.seed", *(f"env.eval.data_collection.{name}" for name in RECORDING)}
    kept = _less(tree, {*dead, "runner.logger.project_name", "runner.logger.logger_backends"})
    assert shown == {"runner": kept["runner"], "env": {"eval": kept["env"]["eval"]}}
    assert yaml.safe_load(show(loaded, everything=True)) == tree
    idle = show(load("panda_expert", ["algorithm.gamma=0.5"]))
    assert yaml.safe_load(idle)["algorithm"] == {"gamma": 0.5}
    assert re.search(r"^  gamma: 0.5 +# command line, no effect$", idle, re.MULTILINE)
    assert re.search(r"^    task: Reach +# command line$", text, re.MULTILINE)
    assert re.search(r"^  recipe: evaluate +# preset panda_expert$", text, re.MULTILINE)
    columns = {line.index("#") for line in text.splitlines() if " # " in line}
    assert len(columns) == 1


def test_show_keeps_its_shape_beside_a_long_value() -> None:
    text = show(load("panda_expert", [f"runner.logger.log_path=/{'x' * 90}"]))
    assert max(line.index("#") for line in text.splitlines() if "# default" in line) <= 50


def test_show_ends_with_the_notices() -> None:
    loaded = load("panda_random", NOISE)
    assert show(loaded).splitlines()[-1] == f"# note: {loaded.notices[0]}"
    assert yaml.safe_load(show(loaded))["runner"]["expert_noise"] == 0.3
    assert "expert_miss" not in show(loaded) and "expert_miss" in show(loaded, everything=True)


def test_list_presets_is_a_table() -> None:
    head, *rows = list_presets().splitlines()
    assert head.split() == ["PRESET", "RECIPE", "WHAT", "IT", "DOES"]
    assert [row.split()[0] for row in rows] == presets() == sorted(presets())
    column = head.index("WHAT")
    assert all(row[column - 1] == " " and row[column] != " " and row.endswith(".") for row in rows)
    assert {row.split()[0]: row.split()[1] for row in rows}["panda_random"] == "evaluate"  # inherited


# Keys without effect


@pytest.mark.parametrize(
    ("preset", "overrides", "notice"),
    [
        (
            "panda_random",
            NOISE,
            "runner.expert_noise (command line) has no effect: "
            "it acts only with runner.policy!=random, which is random here",
        ),
        (
            "panda_expert",
            ["runner.film=false", "runner.film_episodes=2"],
            "runner.film_episodes (command line) has no effect: "
            "it acts only with runner.film=true, which is false here",
        ),
        (
            "panda_expert",
            ["env.eval.randomise.seed=1"],
            "env.eval.randomise.seed (command line) has no effect: "
            "it acts only with one of env.eval.randomise.{light, colours, camera, distractors} on",
        ),
        (
            "realworld_teleop",
            ["reward.model.model_path=MODEL", "runner.num_episodes=3"],
            "runner.num_episodes (command line) has no effect: "
            "it acts only with runner.recipe=evaluate or demo, which is teleop here",
        ),
        (
            "panda_expert",
            ["env.eval.data_collection.only_success=true"],
            "env.eval.data_collection.only_success (command line) has no effect: "
            "it acts only with env.eval.data_collection.enabled=true or runner.recipe=collect_data",
        ),
        (
            "panda_expert",
            ["env.train.task=Reach"],
            "env.train.task (command line) has no effect: recipe evaluate reads only runner, env.eval, robot; "
            "env.train acts with recipe train_policy; did you mean env.eval.task?",
        ),
        (
            "panda_expert",
            ["env.train={task: Reach, num_envs: 3}"],
            "env.train.task, env.train.num_envs (command line) have no effect: "
            "recipe evaluate reads only runner, env.eval, robot; env.train acts with recipe train_policy",
        ),
    ],
)
def test_a_key_without_effect_is_reported(preset: str, overrides: list[str], notice: str) -> None:
    assert load(preset, overrides).notices == [notice]


@pytest.mark.parametrize(
    "overrides",
    [
        ["env@env.train=panda"],
        ["runner.policy=random"],
        ["runner.film=false"],
        NOISE,
        ["env.eval.randomise.seed=1", "env.eval.randomise.distractors=2"],
        ["env.eval.randomise.seed=1", "env.eval.randomise.light=0.5"],
        ["env.eval.data_collection.save_dir=null"],
    ],
)
def test_keys_that_act_and_keys_not_set_are_not_reported(overrides: list[str]) -> None:
    assert load("panda_expert", overrides).notices == []


def test_a_null_that_takes_away_what_a_file_has_is_no_mistake() -> None:
    """As run_reward_training.sh --data says it."""
    file = Path(__file__).parents[2] / "examples" / "reward" / "config" / "reward_training.yaml"
    lines = ["data.data_path=somewhere", "data.train_data_paths=null", "data.val_data_paths=null"]
    assert load(str(file), lines).notices == []


def test_users_files_are_reported_unless_they_spell_out_a_default(mine: Callable[[str], str]) -> None:
    loaded = load(mine("  policy: random\n  expert_noise: 0.5\n"))
    assert [notice.split(":")[0] for notice in loaded.notices] == ["runner.expert_noise (mine.yaml) has no effect"]
    assert load(mine("  policy: random\n  expert_noise: 0.0\n")).notices == []


# The saved file


@pytest.mark.parametrize("preset", ["panda_expert", "panda_random", "demo"])
def test_a_saved_config_loads_the_same(here: Path, preset: str) -> None:
    loaded = load(preset, ["env.eval.randomise.light=0.00001", "env@env.train=panda", "env.eval.num_envs=3"])
    (here / "config.yaml").write_text(to_yaml(loaded), encoding="utf-8")
    again = load("config.yaml")
    assert again.config == loaded.config
    assert again.notices == []
    (here / "shown.yaml").write_text(show(loaded, everything=True), encoding="utf-8")
    assert load("shown.yaml").config == loaded.config
    (here / "live.yaml").write_text(show(loaded), encoding="utf-8")
    live = load("live.yaml").config
    assert (live.runner, live.env.eval, live.env.train) == (loaded.config.runner, loaded.config.env.eval, None)


TEXT = st.one_of(
    st.text(max_size=12),
    st.text(alphabet="\\${}ab:#'\" .1e-+", max_size=12),
    st.sampled_from(["null", "yes", "1e3", "1_0", "0x1", "2001-01-01", "~", "", " a", "a: b", "a #b", "-", "on"]),
)


@settings(max_examples=60)
@given(TEXT)
@example("${runner.seed}")
@example("\\${a}\\\\${b}\\")
def test_any_string_survives_yaml(text: str) -> None:
    line = f"a: {scalar(text)}\n"
    assert "\n" not in scalar(text)
    assert OmegaConf.create(line).a == text
    if "${" not in text:
        assert yaml.safe_load(line) == {"a": text}


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_any_float_survives_yaml(number: float) -> None:
    assert yaml.safe_load(scalar(number)) == number
    assert type(yaml.safe_load(scalar(number))) is float


CAMERAS = st.lists(st.sampled_from(["front", "side", "wrist"]), min_size=1, unique=True)
IN_ONE_DIRECTORY = settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@IN_ONE_DIRECTORY
@given(TEXT.filter(lambda text: text != "???"), st.floats(0, 1e6), st.integers(0, 2**40), CAMERAS)
def test_any_valid_config_round_trips(tmp_path: Path, name: str, noise: float, seed: int, cameras: list[str]) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    runner = f"{{logger: {{experiment_name: {scalar(name)}}}, seed: {seed}, expert_noise: {scalar(noise)}}}"
    env = f"{{eval: {{cameras: {scalar(cameras)}}}}}"
    first.write_text(f"defaults: [panda_expert]\nrunner: {runner}\nenv: {env}\n", encoding="utf-8")
    loaded = load(str(first))
    assert loaded.config.runner.logger.experiment_name == name
    second.write_text(to_yaml(loaded), encoding="utf-8")
    assert load(str(second)).config == loaded.config
