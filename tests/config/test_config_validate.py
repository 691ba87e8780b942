"""Validation: unknown keys, types, limits and choices, each refused in one line that names key and source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from referee.config import Config, PandaEnvConfig, load
from referee.config.declare import key
from referee.config.effects import _option
from referee.config.keys import known_keys, nearest_key, specs, walk
from referee.config.leaves import COMMAND_LINE, Leaf, Path, dotted
from referee.config.reward_training import RewardActorConfig
from referee.config.schema import RECIPES
from referee.config.validate import build, complete
from referee.errors import ConfigError, RefereeError
from referee.training.recipe import WARMUP_STEPS

pytestmark = pytest.mark.usefixtures("quick")

Error = Callable[..., str]
KNOWN = known_keys()


def test_typed_and_frozen() -> None:
    config = load("panda_expert").config
    assert isinstance(config, Config) and isinstance(config.env.eval, PandaEnvConfig)
    with pytest.raises(FrozenInstanceError):
        config.runner.seed = 3  # type: ignore[misc]
    assert issubclass(ConfigError, RefereeError)


def test_every_key_is_documented() -> None:
    for path, spec in walk(Config):
        assert spec.key.help, path
    for recipe in RECIPES.values():
        assert {*recipe.reads, *recipe.needs} <= set(KNOWN)


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("env.eval.num_env=3", "env.eval.num_envs"),
        ("env.evl.num_envs=3", "env.eval.num_envs"),
        ("env.trian.task=Reach", "env.train.task"),
        ("num_envs=3", "env.eval.num_envs"),
        ("runner.num_envs=3", "env.eval.num_envs"),
        ("env.eval.num_episodes=3", "runner.num_episodes"),
        ("+sed=3", "runner.seed"),
        ("runner.log_path=x", "runner.logger.log_path"),
        ("env.eval.randomize.light=1", "env.eval.randomise.light"),
        ("++env.eval.randomise.cameras=1", "env.eval.randomise.camera"),
    ],
)
def test_unknown_key_names_the_nearest(error: Error, override: str, meant: str) -> None:
    wrong = override.strip("+").split("=")[0]
    assert error("panda_expert", override) == f"unknown key {wrong} (command line): did you mean {meant}?"


def test_unknown_key_in_a_file_names_the_file(mine: Callable[[str], str], error: Error) -> None:
    line = error(mine("  sede: 3\n"))
    assert line == "unknown key runner.sede (mine.yaml): did you mean runner.seed?"


def test_a_key_like_nothing_still_gets_a_way_on(error: Error) -> None:
    line = error("panda_expert", "foo=1")
    assert "the nearest is " in line and "`referee config show PRESET` lists all keys" in line


def test_dots_in_yaml_keys_and_keys_below_values(mine: Callable[[str], str], error: Error) -> None:
    assert "write it nested in YAML" in error(mine("env.eval.task: Reach\n"))
    assert "runner.seed is a single value" in error("panda_expert", "runner.seed.x=1")
    assert "is a list; give all of it, as env.eval.cameras=[front, side]" in error(
        "panda_expert", "env.eval.cameras.0=side"
    )


def one_edit(text: str) -> st.SearchStrategy[str]:
    """The text with one letter dropped, added, changed, or swapped with its neighbour."""
    letters = st.sampled_from("abcdefghijklmnopqrstuvwxyz_")
    places = st.integers(0, len(text) - 1).filter(lambda i: text[i] != ".")
    return st.one_of(
        places.map(lambda i: text[:i] + text[i + 1 :]),
        st.builds(lambda i, c: text[:i] + c + text[i:], places, letters),
        st.builds(lambda i, c: text[:i] + c + text[i + 1 :], places, letters),
        places.filter(lambda i: i + 1 < len(text) and text[i + 1] != ".").map(
            lambda i: text[:i] + text[i + 1] + text[i] + text[i + 2 :]
        ),
    )


@settings(max_examples=60)
@given(st.sampled_from(KNOWN).flatmap(lambda known: st.tuples(st.just(known), one_edit(known))))
@example(("env.eval.randomise.camera", "env.eval.randomise.cameras"))
def test_any_single_letter_typo_names_the_key(pair: tuple[str, str]) -> None:
    known, typo = pair
    if typo not in KNOWN and all(typo.split(".")):
        assert nearest_key(typo, KNOWN) == (known, True)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("env.eval.num_envs='16'", 'must be an integer, got "16": remove the quotes'),
        ("env.eval.num_envs=true", "must be an integer, got true"),
        ("env.eval.num_envs=2.0", "must be an integer, got 2.0"),
        ("env.eval.num_envs=null", "must be an integer, got null"),
        ("env.eval.num_envs=[1]", "must be an integer, got [1]"),
        ("env.eval.num_envs=0", "must be at least 1, got 0"),
        ("runner.seed=-1", "must be at least 0, got -1"),
        ("runner.film=1", "must be true or false, got 1"),
        ("runner.film='true'", 'must be true or false, got "true": remove the quotes'),
        ("runner.film=yes", 'must be true or false, got "yes"'),
        ("runner.expert_noise=nan", "must be a finite number, got NaN"),
        ("runner.expert_noise=inf", "must be a finite number, got Infinity"),
        ("runner.expert_noise=" + "9" * 400, "must be a finite number, got 999"),
        ("runner.expert_noise=true", "must be a number, got true"),
        ("runner.expert_noise=-0.1", "must be at least 0, got -0.1"),
        ("env.eval.randomise.light=1.5", "must be between 0 and 1, got 1.5"),
        ("env.eval.randomise.distractors=5", "must be between 0 and 4, got 5"),
        ("env.eval.randomise.seed=x", 'must be an integer or null, got "x"'),
        ("env.eval.task=pickcube", "must be one of Reach, PushCube, PickCube, PegInsertion, got"),
        ("env.eval.task=pickcube", "did you mean PickCube?"),
        ("env.eval.image_size=65", "must be one of 64, 128, 224, got 65"),
        ("env.eval.env_type=pando", "must be one of panda, maniskill, franka, gymnasium, custom, got"),
        (
            "runner.recipe=evaluat",
            "must be one of evaluate, demo, train_policy, train_reward, train_vlm, collect_labels, collect_data, "
            "teleop, got",
        ),
        ("runner.logger.experiment_name=12", "must be a string or null, got 12: quote it"),
        ("env.eval.cameras=front", "must be a list, as [front, side], got"),
        ("env.eval.cameras=[]", "must have at least 1 of front, side, wrist, got []"),
        ("env.eval.cameras=[front,front]", "names front twice"),
        ("env.eval.cameras=[front,top]", 'must be one of front, side, wrist, got "top"'),
        ("env.eval.cameras=[1]", "must hold strings, got 1"),
        ("runner.seed=???", "is marked ???, to be given: set it to an integer"),
        ("runner=5", "is a section with keys (recipe, seed, task_type, imports, …), got 5"),
        ("runner=null", "is empty: remove the line or give it keys"),
    ],
)
def test_wrong_values_name_key_source_and_value(error: Error, override: str, says: str) -> None:
    line = error("panda_expert", override)
    assert line.startswith(f"{override.split('=')[0]} (command line) ")
    assert says in line


def test_strict_types_in_files_too(mine: Callable[[str], str], error: Error) -> None:
    line = error(mine('  seed: "3"\n'))
    assert line.startswith('runner.seed (mine.yaml) must be an integer, got "3"')


def test_an_integer_is_a_number() -> None:
    noise = load("panda_expert", ["runner.expert_noise=1"]).config.runner.expert_noise
    assert noise == 1.0 and type(noise) is float


def test_missing_keys(error: Error) -> None:
    assert (
        error("panda_expert", "~runner.recipe")
        == "runner.recipe is missing: set it to one of evaluate, demo, train_policy, train_reward, train_vlm, "
        "collect_labels, collect_data, teleop"
    )
    line = error("panda_expert", "env.eval=null")
    assert line.startswith("env.eval is missing (command line): recipe evaluate needs it; add a group")


# A second world, as later issues bring: one line in the union is all it takes.


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A kind with a key of its own."""

    env_type: str = key("arm", "which", tag=True)
    robot_ip: str = key("", "its address")


@dataclass(frozen=True, kw_only=True)
class Sim:
    """Another kind."""

    env_type: str = key("sim", "which", tag=True)
    threads: int = key(1, "how many", high=9)


@dataclass(frozen=True, kw_only=True)
class Root:
    """A root over both."""

    env: Arm | Sim = key(Arm, "the world")  # noqa: RUF009


def built(**values: object) -> Root:
    leaves = {("env", name): Leaf(value, COMMAND_LINE) for name, value in values.items()}
    return build(Root, complete(leaves, Root))


def test_the_tag_chooses_the_class() -> None:
    assert built(env_type="sim", threads=2) == Root(env=Sim(threads=2))
    assert built(robot_ip="x") == built(env_type="arm", robot_ip="x") == Root(env=Arm(robot_ip="x"))
    assert set(specs(Root)["env"].tagged) == {"arm", "sim"}


def test_a_key_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown key env.threads .* a key of another kind of env"):
        built(env_type="arm", threads=2)
    with pytest.raises(ConfigError, match=r"env.env_type .* must be one of arm, sim"):
        built(env_type="car")
    with pytest.raises(ConfigError, match=r"env.threads .* must be at most 9, got 10"):
        built(env_type="sim", threads=10)


CONDITIONS = [
    (dotted(path), key, wanted)
    for path, spec in walk(Config)
    for option in (spec.key.only_if or "").split(" or ")
    if option
    for key, wanted in [_option(option, path[:-1])]
]


@pytest.mark.parametrize(("named", "key", "wanted"), CONDITIONS, ids=lambda value: str(value))
def test_a_condition_names_a_known_key_and_a_value_that_it_can_have(named: str, key: Path, wanted: str) -> None:
    key = (*key[:-1], key[-1].removesuffix("!"))  # a condition may also exclude a value
    specs_there = [spec for path, spec in walk(Config) if path == key]
    assert specs_there, f"{named} acts only with {dotted(key)}, which is no key"
    choices = [choice for spec in specs_there for choice in spec.key.choices or ()]
    tags = [str(spec.default) for spec in specs_there if spec.key.tag]
    if choices or tags:
        assert not wanted or wanted in (*choices, *tags), f"{named}: {dotted(key)} is never {wanted}"


def test_what_a_frozen_encoder_is_told_is_heard() -> None:
    said = ["actor.feature_copies=2", "actor.encoder_warmup_steps=5"]
    assert load("train_reward_model", said).notices == []
    lines = load("reward_training", said).notices
    assert len(lines) == 2 and all("acts only with actor.model.freeze_encoder=true" in line for line in lines)


def test_the_help_of_the_warm_up_says_its_number() -> None:
    help = specs(RewardActorConfig)["encoder_warmup_steps"].key.help
    assert f"null = {WARMUP_STEPS} without pretrained weights" in help
