"""What the configuration tests share: a directory of one's own, and the one line of an error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from referee.config import compose, load
from referee.config.files import PRESETS, Start
from referee.errors import ConfigError

ANSWERS: dict[str, Any] = {}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asks Hydra only once for the files of each preset; for tests of what happens after composition."""
    ask = compose._defaults_list

    def remembered(start: Start, places: tuple[Path, ...], groups: Sequence[Any]) -> Any:
        if groups or (start.directory != PRESETS and start.name != "mine"):  # the head of mine.yaml is fixed
            return ask(start, places, groups)
        if start.name not in ANSWERS:
            ANSWERS[start.name] = ask(start, places, groups)
        return ANSWERS[start.name]

    monkeypatch.setattr(compose, "_defaults_list", remembered)


@pytest.fixture
def error() -> Callable[..., str]:
    """Loads, expecting a refusal, and gives back its line."""

    def refused(preset: str, *overrides: str, **places: str) -> str:
        with pytest.raises(ConfigError) as caught:
            load(preset, overrides, **places)
        line = str(caught.value)
        assert line and "\n" not in line
        return line

    return refused


MINE = """\
defaults:
- env/panda@env.eval
- override hydra/job_logging: stdout
runner:
  recipe: evaluate
"""


@pytest.fixture
def mine(here: Path) -> Callable[[str], str]:
    """Writes mine.yaml: a documents-style head plus the given lines; gives back its name."""

    def write(rest: str = "") -> str:
        (here / "mine.yaml").write_text(MINE + rest, encoding="utf-8")
        return "mine.yaml"

    return write
