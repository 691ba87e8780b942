"""Keys and options that an error, a warning or a note advises exist: nobody is sent to type what is refused."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from referee.cli import _parser
from referee.config.arm import FrankaEnvConfig
from referee.config.gym import CustomEnvConfig, GymEnvConfig
from referee.config.keys import known_keys
from referee.config.maniskill import ManiSkillEnvConfig
from referee.config.schema import Config, PandaEnvConfig
from referee.config.translator import Translator
from referee.train_reward_model import parser as older_parser

SOURCE = Path(__file__).parents[1] / "src/referee"
KEYS = {".".join(key.split(".")[:n]) for key in known_keys(Config) for n in range(1, key.count(".") + 2)}
HEADS = "|".join(sorted({key.split(".")[0] for key in KEYS}))
DOTTED = re.compile(rf"(?<![\w./-])((?:{HEADS})(?:\.(?:[a-z_\d]+|\*))+)\b(?!\()")
MARKUP = re.compile(r"</?\w")
ASSIGNED = re.compile(r"(?<![\w./\-'\"{\[])([a-z]\w*)=(?!=)")
OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z-]+)")
WORLDS: dict[str, type] = {
    "envs/gym/": GymEnvConfig, "envs/panda/": PandaEnvConfig, "envs/maniskill/": ManiSkillEnvConfig,
    "envs/franka/": FrankaEnvConfig, "envs/make.py": CustomEnvConfig,
    "recipes/collect_data.py": FrankaEnvConfig, "recipes/collect_labels.py": FrankaEnvConfig,
    "demo/": PandaEnvConfig,
}  # fmt: skip
"""Whose environment the messages of a module are about; those of all other modules must fit every kind."""
WORLD_KEYS = {
    kind: {".".join(key.split(".")[:n]) for key in known_keys(kind) for n in range(1, key.count(".") + 2)}
    for kind in {*WORLDS.values()}
}
OTHERS = {
    "render_mode": "an argument of gymnasium.make",
    "autoreset_mode": "an argument of Gymnasium's vector environments",
    "--head": "an option of `ray start`",
    "--port": "an option of `ray start`",
    "--index-url": "an option of pip",
    "--force-reinstall": "an option of pip",
    "--no-deps": "an option of pip",
    "env.metadata": "an attribute of Gymnasium's environments",
    "data.pkl": "a file",
    "reward.data.positive_dir": "a key of the configuration that RLinf's guides hand to EmbodiedRewardWorker",
    "key": "stands for any key",
    "r": "a key of a LoRA adapter's own file",
    "lora_alpha": "a key of a LoRA adapter's own file",
    "start": "a parameter of a request",
    "session": "a parameter of a request",
    "stalled": "a parameter of a request",
}
"""What looks like a key or an option of ours, and what it is."""


@dataclass(frozen=True)
class Message:
    """The text of an error, a warning, a note or a constant, with a blank for each value in it."""

    place: str
    text: str
    arguments: frozenset[str]
    """Names of arguments and fields in the same module: a program sets those."""
    advice: bool = True
    """Whether `name=` in it is meant to be typed; in a constant it may be code."""


def messages(path: Path) -> Iterator[Message]:
    """What the errors say that a module raises, what it logs, and the texts that it returns or holds as constants."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    named = {each.arg for each in ast.walk(tree) if isinstance(each, ast.arg)}
    named |= {each.target.id for each in ast.walk(tree) if isinstance(each, ast.AnnAssign)
              and isinstance(each.target, ast.Name)}  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for argument in node.exc.args:
                text = "".join(_text(argument))
                if text:
                    place = f"{path.relative_to(SOURCE)}:{node.lineno}"
                    yield Message(place, text, frozenset(named))
    others = [(each, False) for node in tree.body if isinstance(node, ast.Assign) for each in _strings(node.value)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "warning":
            others += [(each, True) for each in _strings(node.args[0])]
        elif isinstance(node, ast.Return | ast.Yield) and node.value is not None:
            others += [(each, True) for each in _strings(node.value)]
    for each, advice in others:
        text = "".join(_text(each))
        if text and not MARKUP.search(text):
            yield Message(f"{path.relative_to(SOURCE)}:{each.lineno}", text, frozenset(named), advice)


def _strings(node: ast.expr) -> Iterator[ast.expr]:
    """The texts that an expression is, or chooses from, or lists; not those inside a call or a table."""
    if isinstance(node, ast.JoinedStr | ast.BinOp) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        yield node
    elif isinstance(node, ast.IfExp):
        yield from (*_strings(node.body), *_strings(node.orelse))
    elif isinstance(node, ast.List | ast.Tuple):
        for each in node.elts:
            yield from _strings(each)
    elif isinstance(node, ast.ListComp | ast.GeneratorExp):
        yield from _strings(node.elt)


def _text(node: ast.AST) -> Iterator[str]:
    """The literal parts of an expression, in order; a value between them is a blank."""
    if isinstance(node, ast.Constant):
        yield node.value if isinstance(node.value, str) else ""
    elif isinstance(node, ast.FormattedValue):
        yield " … "
    else:
        for child in ast.iter_child_nodes(node):
            yield from _text(child)


def options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """All options of a parser and of its verbs."""
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from options(each)


def wrong(message: Message, every: set[str]) -> Iterator[str]:
    """What a message advises that does not exist."""
    kinds = [kind for place, kind in WORLDS.items() if message.place.startswith(place)] or list(WORLD_KEYS)
    for found in DOTTED.findall(message.text):
        key = re.sub(r"^env\.\*", "env.train", found)
        own = key.split(".", 2)
        if own[0] == "env" and len(own) == 3 and found not in OTHERS:
            strange = [kind.__name__ for kind in kinds if own[2] not in WORLD_KEYS[kind]]
            older = ".".join(Translator("here").target(tuple(own))) != key
            if strange and not older and any(own[2] in keys for keys in WORLD_KEYS.values()):
                yield f"{message.place}: {', '.join(sorted(strange))} has no key {found}"
                continue
        free = key.startswith("cluster.component_placement.")
        made = ".".join(Translator("here").target(tuple(key.split("."))))  # older spellings count
        if made not in KEYS and key not in OTHERS and not free:
            yield f"{message.place}: there is no key {found}"
    leaves = {key.rpartition(".")[2] for key in KEYS}
    for name in ASSIGNED.findall(message.text) if message.advice else ():
        if name not in leaves | message.arguments and name not in OTHERS:
            yield f"{message.place}: there is no key {name}"
    for option in OPTION.findall(message.text):
        if option not in every and option not in OTHERS:
            yield f"{message.place}: there is no option {option}"


@pytest.fixture(scope="module")
def said() -> list[Message]:
    return [message for path in sorted(SOURCE.rglob("*.py")) for message in messages(path)]


@pytest.fixture(scope="module")
def every() -> set[str]:
    return {*options(_parser()), *options(older_parser())}


def test_errors_advise_what_exists(said: list[Message], every: set[str]) -> None:
    assert len(said) > 400 and sum(bool(DOTTED.search(each.text)) for each in said) > 40
    assert not [line for message in said for line in wrong(message, every)]


def test_constants_warnings_and_notes_are_read_too(said: list[Message]) -> None:
    for place, text in (
        ("envs/gym/share.py", "env.*.keep_final_images=true"),  # a constant
        ("envs/gym/env.py", "set env.*.success_key"),  # a warning
        ("envs/maniskill/tasks.py", "set env.train.success=visible"),  # a note that is returned
    ):
        assert [each for each in said if each.place.startswith(place) and text in each.text]
    elsewhere = Message("envs/maniskill/tasks.py:1", "set env.*.success_key=solved", frozenset())
    assert list(wrong(elsewhere, set())) == [
        "envs/maniskill/tasks.py:1: ManiSkillEnvConfig has no key env.*.success_key",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("train with image_size=64 or resize=bilinear", "there is no key resize"),
        ("set reward.model.resize=bilinear", "there is no key reward.model.resize"),
        ("leave them out (--skip-trained)", "there is no option --skip-trained"),
        ("this run is on Push: set env.train.task=Reach", "GymEnvConfig has no key env.train.task"),
        ("set env.*.keep_images=true", "there is no key env.*.keep_images"),
    ],
)
def test_invented_advice_is_noticed(every: set[str], text: str, line: str) -> None:
    assert list(wrong(Message("here", text, frozenset()), every)) == [f"here: {line}"]


def test_what_is_excused_is_still_said(said: list[Message]) -> None:
    text = " ".join(message.text for message in said)
    assert not [name for name in OTHERS if name not in text]
