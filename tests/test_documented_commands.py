"""Every command and Python block of the README and of docs/ is run; what cannot be is named here, with the reason.

Commands are run as they stand there, in a folder that has what they name (tests/documented/world.py), with small sizes
behind them (tests/documented/smaller.py). A command that nobody knows how to run fails.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from docs.site_docstrings import as_list
from tests.documented.pages import (
    PYTHON,
    ROOT,
    SHELL,
    Block,
    Command,
    all_commands,
    blocks,
    commands,
    inline,
    name,
    pages,
    prose,
)
from tests.documented.stage import Stage
from tests.documented.world import World

from referee.cli import _parser
from referee.config.keys import known_keys
from referee.config.schema import Config
from referee.config.translator import Translator

NOT_RUN = {
    r"^\. \.venv/bin/activate": "changes the shell that it is typed in",
    r"^referee demo ": "takes minutes; tests/test_cli.py tells the same story, shortened",
    r"^tensorboard ": "another project's server, which runs until Ctrl-C",
    r"--install-swiftshader": "downloads a package; `make setup` does it, tests/envs/test_maniskill.py needs it",
    r"^umask 077": "one of the lines for two machines: tests/runtime/test_two_nodes.py does them on one",
    r"^ray (get-auth-token|start) ": "two machines: tests/runtime/test_two_nodes.py starts both nodes on one",
    r"^mkdir -p ~/\.ray && scp ": "another machine",
    r"cluster\.address=192\.168\.": "a cluster at that address; tests/runtime/test_two_nodes.py has one",
    r"runner\.imports=\[mine\]": "a module of the reader's; tests/recipes/test_own_modules.py writes it, and runs this",
    r"reward\.api\.api_base=": "a server of others; tests/recipes/test_trend_reward.py has one",
}
"""Commands that are not run, by a pattern, and why. One that fits no command any more fails the tests."""
COMMANDS = all_commands()
FROM_ELSEWHERE = re.compile(r"<(?:script|img|iframe)[^>]+src=[\"']?https?:[^>]+|<link[^>]+stylesheet[^>]+https?:[^>]+")


def not_run(text: str) -> bool:
    return any(re.search(pattern, text) for pattern in NOT_RUN)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def ran() -> set[str]:
    """Commands that have been run on one page, and need not be on another."""
    return set()


@pytest.fixture
def stage(world: World, ran: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    with Stage(world, tmp_path, monkeypatch, ran) as stage:
        yield stage


def with_code(page: Path) -> bool:
    return any(block.language in (*SHELL, *PYTHON) for block in blocks(page))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", [page for page in pages() if with_code(page)], ids=name)
def test_all_that_a_page_tells_to_type_works(page: Path, stage: Stage) -> None:
    stage.open(name(page))
    for block in blocks(page):
        if block.language in SHELL:
            stage.shell(block, skip=not_run)
        elif block.language in PYTHON:
            stage.python(block)


def test_what_is_not_run_is_still_documented() -> None:
    for pattern, reason in NOT_RUN.items():
        assert reason
        assert any(re.search(pattern, each.text) for each in COMMANDS), f"stale: {pattern}"


def test_there_is_something_to_run() -> None:
    """A fence that the pattern misses would hide its commands."""
    fences = sum(page.read_text().count("```") for page in pages())
    found = [block for page in pages() for block in blocks(page)]
    assert 2 * len(found) == fences
    assert len(COMMANDS) > 100 and sum(block.language in PYTHON for block in found) > 10
    other = [block for block in found if block.language not in (*SHELL, *PYTHON)]
    # gymnasium-robotics cannot be installed beside the simulation: benchmarks/fetch.py types these
    other = [block for block in other if "FetchReach-v4" not in block.text]
    typed = re.compile(r"^\s*(referee|python|pip|make) \S", re.MULTILINE)
    hidden = [f"{block.page}:{block.line}" for block in other if typed.search(block.text)]
    hidden += [
        name(page) for page in pages() if re.search(r"^ {4}(referee|python|pip|make) \S", prose(page), re.MULTILINE)
    ]
    assert not hidden, f"commands in blocks that are not called bash: {hidden}"


def test_comments_and_continued_lines() -> None:
    text = "referee run a \\\n    'b={c: 1}'   # why\n# only a comment\nX=1 make demo #1\ncurl '#a' b#c\n"
    found = [each.text for each in all_commands_of(text)]
    assert found == ["referee run a 'b={c: 1}'", "X=1 make demo", "curl '#a' b#c"]


def all_commands_of(text: str) -> list[Command]:
    return list(commands(Block("page", 1, "bash", text)))


def test_commands_named_in_the_text_exist() -> None:
    """In text there are placeholders, so these are only parsed."""
    parser = _parser()
    for page in pages():
        for text in inline(page):
            words = text.replace("…", "").split()
            try:
                known(parser, words[1:])
            except ValueError as error:
                raise AssertionError(f"{name(page)}: `{text}`: {error}") from error


def known(parser: argparse.ArgumentParser, words: list[str]) -> None:
    """ValueError where a verb or an option is none of the parser's."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) and words:
            if words[0] not in action.choices and not words[0].isupper():
                raise ValueError(f"there is no {words[0]}")
            if words[0] in action.choices:
                return known(action.choices[words[0]], words[1:])
    options = {option for action in parser._actions for option in action.option_strings}
    for word in words:
        if word.startswith("--") and word.split("=")[0] not in options:
            raise ValueError(f"there is no {word}")
    return None


def test_links_work_on_the_page_of_the_repository() -> None:
    """The site's own are checked when it is built; pages under docs/reference are for the site alone."""
    for page in (each for each in pages() if each.parent.name != "reference"):
        for target in re.findall(r"\]\(([^)#\s]+)|<img src=\"([^\"]+)", prose(page)):
            link = "".join(target)
            assert link.startswith("https:") or (page.parent / link).exists(), f"{name(page)}: {link} is not there"


def test_keys_named_in_the_text_exist() -> None:
    """`reward.reward_mode`, `runner.max_steps=64`; older spellings that are translated count, too."""
    whole = {".".join(key.split(".")[:length]) for key in known_keys(Config) for length in range(1, key.count(".") + 2)}
    heads = "|".join(sorted({key.split(".")[0] for key in whole}))
    named = re.compile(rf"`((?:{heads})(?:\.[a-z_]+)+)(?:=[^`]*)?`")
    for page in (each for each in pages() if each.name != "keys.md"):  # that one lists keys of others
        for key in sorted(set(named.findall(prose(page)))):
            made = ".".join(Translator("docs").target(tuple(key.split("."))))
            free = key.startswith("cluster.component_placement.") or key.endswith((".py", ".pkl"))
            assert made in whole or free, f"{name(page)}: there is no key {key}"


def test_arguments_in_docstrings_become_a_list() -> None:
    text = "What it does.\n\nimages: pictures, or\n    a folder.\nlow, high: bounds.\n\nThe rest."
    wanted = "What it does.\n\n- `images`: pictures, or\n    a folder.\n- `low`, `high`: bounds.\n\nThe rest."
    assert as_list(text) == wanted
    assert as_list("One line: alone.") == "One line: alone."
    assert as_list("Two things.\nsize: in pixels.") == "Two things.\n\n- `size`: in pixels."


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_without_the_network(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stdout + done.stderr
    found = list((tmp_path / "site").rglob("*.html"))
    assert len(found) > 40
    for page in found:
        taken = FROM_ELSEWHERE.findall(page.read_text(encoding="utf-8"))
        assert not taken, f"{page.name} takes {taken} from the network"
