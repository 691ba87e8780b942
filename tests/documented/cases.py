"""Every key of every block that RLinf's five reward-model guides show, and the check that proves what the key does.

A block is a file of tests/documented/guides/blocks. A case is one key of one block with the value that it has there. A
check is a function that loads the block and measures the effect: it is registered for a key by `@effect`, and runs
once for each case with that key. A key without effect is registered by `no_effect`, with the reason that users get.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pytest
from docs import make_keys

from referee.config import Config, Loaded, compose, load
from referee.config.leaves import dotted

ROOT = Path(__file__).parents[2]
BLOCKS = {block.name: block for block in make_keys.blocks()}
VARIABLES = {"EMBODIED_PATH": "/somewhere", "DUALVIEW_SFT_DATA_ROOT": "/windows"}
"""What the guides' own scripts export before a block is read."""


@dataclass(frozen=True)
class Case:
    """One key of one block."""

    block: str
    key: str
    value: Any = field(hash=False)

    def __str__(self) -> str:
        return f"{self.block}-{self.key}"

    @property
    def config(self) -> Config:
        """The block, loaded as it stands there."""
        return self.load().config

    def load(self, *overrides: str, preset: str | None = None) -> Loaded:
        """The block over its preset (or over another), with overrides on top."""
        return load_block(self.block, overrides, preset)


def load_block(name: str, overrides: Sequence[str] = (), preset: str | None = None) -> Loaded:
    """A block as a file that a user would write. preset: another than the block is meant for, as for a Panda."""
    block = BLOCKS[name]
    variables = tuple(os.environ.get(name) for name in VARIABLES)
    remembered = (name, tuple(overrides), preset, variables, Path.cwd())
    if remembered not in _LOADED:
        text = block.file() if preset is None else f"defaults:\n  - {preset}\n  - _self_\n{block.text}"
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "mine.yaml").write_text(text)
            _LOADED[remembered] = load(f"{folder}/mine.yaml", [*block.overrides, *overrides])
    return _LOADED[remembered]


_LOADED: dict[Any, Loaded] = {}


@cache
def cases() -> list[Case]:
    """All of them; an empty list stands before the entries that follow, and is no key of its own."""
    return [
        Case(block.name, dotted(path), value)
        for block in BLOCKS.values()
        for path, value in make_keys.leaves(block)
        if value != []
    ]


@dataclass
class Tools:
    """What checks share: a folder, pytest's own, and results of runs that several checks look at."""

    folder: Path
    patch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]
    caplog: pytest.LogCaptureFixture
    shared: Path
    """A folder that is the same for all checks of a session."""

    def once(self, name: str, make: Callable[[Path], Any]) -> Any:
        """The result of `make`, which is called once in a session, with a folder of its own."""
        if name not in _MADE:
            _MADE[name] = make(Path(tempfile.mkdtemp(dir=self.shared)))
        return _MADE[name]

    @cached_property
    def here(self) -> Path:
        """The check's own folder, which is now the working directory."""
        self.patch.chdir(self.folder)
        return self.folder


_MADE: dict[str, Any] = {}
Check = Callable[[Case, Tools], None]


@dataclass(frozen=True)
class Effect:
    """A check, and the keys and blocks that it is for (patterns, `*` for anything)."""

    check: Check
    keys: tuple[str, ...]
    blocks: tuple[str, ...]
    slow: bool = False

    def covers(self, case: Case) -> bool:
        """Whether it is for this key of this block."""
        named = any(fnmatchcase(case.key, pattern) for pattern in self.keys)
        return named and any(fnmatchcase(case.block, pattern) for pattern in self.blocks)


EFFECTS: list[Effect] = []


def effect(*keys: str, blocks: str = "*", slow: bool = False) -> Callable[[Check], Check]:
    """Register a check for keys. blocks: patterns, with spaces between them."""

    def register(check: Check) -> Check:
        EFFECTS.append(Effect(check, keys, tuple(blocks.split()), slow))
        return check

    return register


NOTHING = ("no effect", "not needed")
"""How `docs/make_keys.py` begins what it says of a key that changes nothing."""


def no_effect(reason: str, *keys: str, blocks: str = "*") -> None:
    """Register keys that change nothing; the reason is the one that a user is told when the block is loaded."""

    def says(case: Case, tools: Tools) -> None:
        told = make_keys.fate(case.key, case.value, BLOCKS[case.block])
        if not told.startswith(NOTHING):  # no older key, but one that nothing reads in this setting
            place = told.strip("`").split("`")[0] if told.startswith("`") else case.key
            told = next((line for line in case.load().notices if line.startswith(f"{place} (")), "nothing was said")
        assert any(word in told for word in NOTHING) and reason in told

    effect(*keys, blocks=blocks)(says)


def parameters(effects: Sequence[Effect]) -> list[Any]:
    """One test for each case and each check that is for it."""
    return [
        pytest.param(case, each, id=f"{case}", marks=[pytest.mark.slow] if each.slow else [])
        for case in cases()
        for each in effects
        if each.covers(case)
    ]


@pytest.fixture
def tools(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    tmp_path_factory: pytest.TempPathFactory,
) -> Tools:
    """With the variables of the guides' scripts set, and Hydra asked only once for the files of a preset."""
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(compose, "_defaults_list", _remembered(compose._defaults_list))
    if "shared" not in _MADE:
        _MADE["shared"] = tmp_path_factory.mktemp("guides")
    return Tools(tmp_path, monkeypatch, capsys, caplog, _MADE["shared"])


def _remembered(ask: Callable[..., Any]) -> Callable[..., Any]:
    """Which files a file begins from; it takes most of the time of loading one."""

    def answer(start: Any, places: Any, groups: Any) -> Any:
        asked = (start.name, start.file.read_text(), str(groups)) if start.name == "mine" else None
        if asked is None:
            return ask(start, places, groups)
        if asked not in _ASKED:
            _ASKED[asked] = ask(start, places, groups)
        return _ASKED[asked]

    return answer


_ASKED: dict[Any, Any] = {}
