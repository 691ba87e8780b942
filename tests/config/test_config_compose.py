"""Composition: presets, groups, users' files, overrides, and living beside another Hydra."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import JobRuntime
from hydra.version import VersionBase
from omegaconf import OmegaConf

from referee.config import load, presets
from referee.config.files import GROUPS, PRESETS

Error = Callable[..., str]
quick = pytest.mark.usefixtures("quick")


def test_every_preset_loads_without_notices() -> None:
    assert {"panda_expert", "panda_random", "demo"} <= set(presets())
    for name in presets():
        loaded = load(name)
        assert loaded.preset == name
        assert (loaded.notices, loaded.translated, loaded.implied) == ([], (), ())


def test_presets_say_what_they_promise() -> None:
    expert = load("panda_expert").config
    assert (expert.runner.recipe, expert.runner.policy) == ("evaluate", "expert")
    assert expert.env.eval.task == "PickCube" and expert.env.train is None
    assert load("panda_random").config.runner.policy == "random"
    assert load("demo").config.runner.recipe == "demo"


@pytest.mark.parametrize(
    ("preset", "overrides"), [("panda_expert", []), ("panda_random", ["+env@env.train=panda"]), ("demo", [])]
)
def test_values_are_those_of_hydras_own_compose(preset: str, overrides: list[str]) -> None:
    searchpath = f"hydra.searchpath=['file://{GROUPS}']"
    with initialize_config_dir(str(PRESETS), version_base="1.3"):
        theirs = OmegaConf.to_container(compose(preset, [searchpath, *overrides]))
    ours = load(preset, overrides).tree()

    def same(a: dict, b: dict) -> None:
        for name, value in a.items():
            if isinstance(value, dict):
                same(value, b[name])
            else:
                assert b[name] == value

    assert isinstance(theirs, dict) and theirs["env"]
    same(theirs, ours)


@quick
@pytest.mark.parametrize("prefix", ["", "+", "++"])
def test_plain_and_plus_overrides_set_a_key(prefix: str) -> None:
    loaded = load("panda_expert", [f"{prefix}env.eval.task=Reach", f"{prefix}env.eval.obs_mode=rgb"])
    assert (loaded.config.env.eval.task, loaded.config.env.eval.obs_mode) == ("Reach", "rgb")
    assert loaded.sources["env.eval.task"] == "command line"


@quick
def test_the_last_override_wins() -> None:
    assert load("panda_expert", ["runner.seed=1", "runner.seed=2"]).config.runner.seed == 2


@quick
def test_deleting_a_key_gives_its_default() -> None:
    loaded = load("panda_random", ["~runner.policy"])
    assert loaded.config.runner.policy == "expert"
    assert loaded.sources["runner.policy"] == "default"
    assert load("panda_random", ["~runner.policy=random"]).config.runner.policy == "expert"
    assert load("panda_random", ["~runner.seed"]).config.runner.seed == 0


@quick
def test_deleting_goes_wrong_in_words(error: Error) -> None:
    assert error("panda_expert", "~runner.sed").endswith("did you mean runner.seed?")
    assert "has another value; write ~runner.policy" in error("panda_expert", "~runner.policy=random")
    assert "env.eval is missing (default): recipe evaluate needs it" in error("panda_expert", "~env.eval")


@quick
def test_a_section_can_be_given_as_one_value() -> None:
    loaded = load("panda_expert", ["env.eval={task: Reach, randomise: {light: 1}}", "runner={seed: 7}"])
    assert loaded.config.env.eval.task == "Reach"
    assert loaded.config.env.eval.randomise.light == 1.0
    assert loaded.config.env.eval.num_envs == 16
    assert (loaded.config.runner.seed, loaded.config.runner.recipe) == (7, "evaluate")


@pytest.mark.parametrize("override", ["env@env.eval=panda", "+env@env.eval=panda", "env=panda"])
def test_group_overrides(override: str) -> None:
    loaded = load("panda_expert", [override, "env.eval.task=Reach"])
    assert loaded.sources["env.eval.num_envs"] == "group env/panda"
    assert loaded.config.env.eval.task == "Reach"


def test_a_group_can_be_added_and_dropped(error: Error) -> None:
    assert load("panda_expert", ["env@env.train=panda"]).config.env.train is not None
    assert "recipe evaluate needs it" in error("panda_expert", "~env@env.eval")


def test_group_mistakes_name_what_there_is(error: Error) -> None:
    assert error("panda_expert", "env@env.eval=pandaa") == (
        "unknown group env/pandaa (command line): did you mean panda? "
        "env/ holds gymnasium, maniskill, panda, realworld_bin_relocation, realworld_peg_insertion"
    )
    assert "there is no such group" in error("panda_expert", "envs@env.eval=panda")
    assert "drop it with ~env@env.eval" in error("panda_expert", "env@env.eval=null")
    assert "choose a group, as env@env.eval=NAME" in error("panda_expert", "env.eval=panda")


def test_documents_style_file_finds_our_groups(mine: Callable[[str], str]) -> None:
    loaded = load(mine("  seed: 3\nenv:\n  eval:\n    task: Reach\n"))
    assert (loaded.preset, loaded.config.runner.seed, loaded.config.env.eval.task) == ("mine", 3, "Reach")
    assert loaded.sources["env.eval.task"] == "mine.yaml"
    assert loaded.sources["env.eval.num_envs"] == "group env/panda"


def test_absolute_group_and_our_presets_in_a_users_file(here: Path) -> None:
    (here / "a.yaml").write_text("defaults: [/env/panda@env.eval]\nrunner: {recipe: demo}\n")
    assert load("./a.yaml").config.runner.recipe == "demo"
    (here / "b.yaml").write_text("defaults: [panda_random]\nrunner: {seed: 9}\n")
    loaded = load(str(here / "b.yaml"))
    assert loaded.sources["runner.policy"] == "preset panda_random"
    assert loaded.sources["runner.recipe"] == "preset panda_expert"
    assert loaded.config.runner.seed == 9


def test_users_own_groups_and_search_path(here: Path) -> None:
    (here / "more" / "env").mkdir(parents=True)
    (here / "more" / "env" / "dark.yaml").write_text("task: Reach\n")
    (here / "a.yaml").write_text(
        "defaults: [env@env.eval: dark]\nhydra: {searchpath: [file://more]}\nrunner: {recipe: evaluate}\n"
    )
    loaded = load("a.yaml")
    assert loaded.config.env.eval.task == "Reach"
    assert loaded.sources["env.eval.task"] == "group env/dark (more/env/dark.yaml)"
    assert load("a.yaml", ["env=panda"]).config.env.eval.task == "PickCube"


def test_a_group_left_open_must_be_chosen(here: Path, error: Error) -> None:
    (here / "a.yaml").write_text('defaults: [env@env.eval: "???"]\nrunner: {recipe: evaluate}\n')
    assert load("a.yaml", ["env@env.eval=panda"]).config.env.eval.task == "PickCube"
    assert "You must specify 'env@env.eval'" in error("a.yaml")


def test_a_fixed_group_says_how_to_make_it_replaceable(mine: Callable[[str], str], error: Error) -> None:
    assert "say where the group goes, as env@PLACE=…" in error(mine(""), "env=panda")
    line = error(mine(""), "env@env.eval=panda")
    assert "mine.yaml fixes env/panda@env.eval" in line
    assert "write it in its defaults as `env@env.eval: panda`" in line


def test_config_path_and_config_name(here: Path, mine: Callable[[str], str], error: Error) -> None:
    mine("  seed: 5\n")
    assert load(config_path=here, config_name="mine").config.runner.seed == 5
    assert load("mine", config_path=".").config.runner.seed == 5
    assert load("panda_expert", config_path=".").sources["runner.recipe"] == "preset panda_expert"
    assert load(config_name="panda_expert").preset == "panda_expert"
    assert error("mina", config_path=".") == "no file mina.yaml: did you mean mine.yaml?"
    assert "no directory nowhere" in error("mine", config_path="nowhere")
    assert "give only one" in error("a", config_name="b")


def test_unknown_presets_and_files(here: Path, error: Error) -> None:
    assert error("panda_exprt") == (
        "unknown preset panda_exprt: did you mean panda_expert? `referee config list` shows all presets"
    )
    (here / "zzz.yaml").write_text("")
    assert "for the file here write ./zzz.yaml" in error("zzz")
    assert error("") == "no preset is given: `referee config list` shows all presets"
    assert error("gone.yaml").startswith("no file gone.yaml: ")
    assert "rename it to x.yaml" in error("x.yml")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("runner:\n  recipe: [\n", "a.yaml:3 is not valid YAML"),
        ("runner: {seed: 1}\nrunner: {seed: 2}\n", "a.yaml:2 is not valid YAML: found duplicate key runner"),
        ("- a\n- b\n", "a.yaml holds a list"),
        ("3", "a.yaml cannot be read"),
        ("", "runner.recipe is missing: set it to one of evaluate, demo"),
        ("defaults: [a]\n", "a.yaml: its defaults list leads back to itself"),
        ("defaults: [env/pandaa@env.eval]\n", "unknown group env/pandaa (a.yaml): did you mean panda?"),
        ("defaults: [panda_exprt]\n", "unknown preset panda_exprt (a.yaml): did you mean panda_expert?"),
        ("defaults: {a: b}\n", "a.yaml cannot be composed: Invalid defaults list"),
        ("hydra: {searchpath: 3}\n", "hydra.searchpath (a.yaml) must be a list of directories"),
    ],
)
def test_broken_files_are_one_line(here: Path, error: Error, text: str, says: str) -> None:
    (here / "a.yaml").write_text(text)
    assert says in error("a.yaml")


def test_broken_group_file_is_named(here: Path, error: Error) -> None:
    (here / "env").mkdir()
    (here / "env" / "bad.yaml").write_text("task: [\n")
    (here / "a.yaml").write_text("defaults: [env@env.eval: bad]\n")
    assert error("a.yaml").startswith("env/bad.yaml:2 is not valid YAML")


@pytest.mark.parametrize("line", ["seed", "--multirun", "=3", "runner.seed=[", "a b=1", "runner.seed=" + "9" * 5000])
def test_unreadable_overrides(error: Error, line: str) -> None:
    text = error("panda_expert", line)
    assert text.startswith("cannot read override") and "write key=value" in text
    assert len(text) < 200


@pytest.mark.parametrize("line", ["runner.seed=1,2", "runner.seed=range(3)"])
def test_sweeps_are_refused(error: Error, line: str) -> None:
    assert "is a sweep" in error("panda_expert", line)


@quick
def test_hydras_own_settings_are_reported(mine: Callable[[str], str]) -> None:
    loaded = load(mine("hydra:\n  run: {dir: .}\n"), ["hydra.job.name=x"])
    assert [notice.split(" has no effect")[0] for notice in loaded.notices] == [
        "hydra.run (mine.yaml)",
        "hydra.job.name=x (command line)",
    ]


def test_another_hydra_under_way_is_left_alone(here: Path) -> None:
    (here / "theirs.yaml").write_text("x: 1\n")
    with initialize_config_dir(str(here), job_name="theirs", version_base="1.2"):
        before = GlobalHydra.instance(), GlobalHydra.instance().hydra, VersionBase.instance().version_base
        load("panda_expert")
        load("demo")
        after = GlobalHydra.instance(), GlobalHydra.instance().hydra, VersionBase.instance().version_base
        assert all(a is b for a, b in zip(before, after, strict=True))
        assert JobRuntime.instance().get("name") == "theirs"
        assert compose("theirs").x == 1
    load("demo")
    assert not GlobalHydra.instance().is_initialized()


def test_loading_is_deterministic_and_warns_of_nothing(mine: Callable[[str], str]) -> None:
    name = mine("")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(name, ["runner.seed=1"]) == load(name, ["runner.seed=1"])


@pytest.mark.alone
def test_loading_is_fast() -> None:
    """The aim is half a second with imports; the bound leaves room for a busy machine."""
    code = """
        import time; start = time.perf_counter()
        from referee.config import load
        load("panda_expert", ["env.eval.task=Reach"])
        print(time.perf_counter() - start)
    """
    run = [sys.executable, "-c", textwrap.dedent(code)]
    best = min(float(subprocess.check_output(run, text=True)) for _ in range(2))
    assert best < 1.5
