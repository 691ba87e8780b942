"""Recipes return what they made; the command prints it, and nothing is printed by who only calls the recipe."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from rich.console import Console

from episodes.examples import make_episode
from referee import printing, printing_data
from referee.cli import main
from referee.datasets.convert import ConvertOptions, convert
from referee.datasets.frames import FramesSummary, SideCounts
from referee.episodes import EpisodeStore
from referee.errors import RefereeError
from referee.recipes import RECIPES, check_episodes, datasets, episodes

Capture = pytest.CaptureFixture[str]
VERBS = {
    "audit": ("audit", "compare"),
    "audit_vlm": ("audit_vlm",),
    "datasets": ("frames", "windows"),
    "episodes": ("ls", "merge"),
    "check_episodes": ("check",),
    "view": ("view",),
    "play": ("play",),
    "refine": ("refine",),
    "refine_log": ("log",),
    "score": ("score",),
    "text": ("score_text",),
    "trained": ("judge",),
}
"""Recipes behind verbs of the command, by module of `referee.recipes`."""
REPORT_WHILE_THEY_RUN = {"demo", "teleop", "train_policy"}
"""Their text is the run itself: a line for each step or iteration."""
SIDES = {"train": (3, 9, 9, ""), "val": (1, 3, 3, "")}
"""Of four episodes: episodes, success, fail, hash."""


def recipes() -> Iterator[tuple[str, Callable[..., Any]]]:
    names = {**{name: (name,) for name in RECIPES if name not in REPORT_WHILE_THEY_RUN}, **VERBS}
    for module, functions in names.items():
        for function in functions:
            yield f"{module}.{function}", getattr(import_module(f"referee.recipes.{module}"), function)
    yield "datasets.convert", convert


@pytest.mark.parametrize("recipe", [pytest.param(recipe, id=name) for name, recipe in recipes()])
def test_a_recipe_returns_something_typed_that_the_command_can_print(recipe: Callable[..., Any]) -> None:
    result = get_type_hints(inspect.unwrap(recipe))["return"]
    assert result is not type(None) and result is not Any
    if result in printing.show.registry:
        assert dataclasses.is_dataclass(result) and result.__dataclass_params__.frozen  # type: ignore[attr-defined]
    else:  # what one line of the command says
        assert result.__name__ in ("Comparison", "int", "Outcomes", "Rate"), f"{result} has no text"


def test_recipes_that_report_while_they_run_are_named() -> None:
    assert set(RECIPES) >= REPORT_WHILE_THEY_RUN
    assert printing.show is printing_data.show


@pytest.fixture
def store(tmp_path: Path) -> EpisodeStore:
    store = EpisodeStore(tmp_path / "store")
    for seed in range(4):
        store.append(make_episode(seed=seed))
    return store


def test_recipes_over_episodes_say_nothing_and_hold_what_the_command_prints(
    store: EpisodeStore, tmp_path: Path, capsys: Capture
) -> None:
    console = Console()
    listing, checked = episodes.ls(store.root), check_episodes.check(store.root)
    merged = episodes.merge([store.root], tmp_path / "merged", console)
    converted = convert(store.root, tmp_path / "converted", console, ConvertOptions(export_format="pickle"))
    assert capsys.readouterr().out == ""
    assert len(listing.rows) == checked.episodes == checked.total == converted.episodes == 4
    assert (merged.before, merged.copied, merged.total) == (0, 4, 4)
    assert [row.id for row in listing.rows] == list(store.rows) and not checked.broken
    assert main(["episodes", "merge", str(store.root), "--out", str(tmp_path / "merged")]) == 0
    assert "4 were there, 0 episodes copied, 4 in all" in capsys.readouterr().out.replace("\n", " ")


def test_a_broken_store_is_shown_and_then_refused(store: EpisodeStore, capsys: Capture) -> None:
    path = store.path(next(iter(store.rows)))
    path.write_bytes(path.read_bytes()[:-9])
    checked = check_episodes.check(store.root)
    assert len(checked.broken) == 1 and capsys.readouterr().out == ""
    with pytest.raises(RefereeError, match="1 of 4 episodes"):
        checked.refuse()
    assert main(["episodes", "check", str(store.root)]) == 2
    said = capsys.readouterr()
    assert "✗" in said.out and "whole" not in said.out and "1 of 4 episodes" in said.err


def test_what_is_said_of_a_dataset(store: EpisodeStore, tmp_path: Path, capsys: Capture) -> None:
    words = ["dataset", "frames", "--raw-data-path", str(store.root), "--output-dir", str(tmp_path / "frames")]
    assert main(words) == 0
    printed = capsys.readouterr().out.splitlines()
    sides = [SideCounts(tmp_path / "frames" / f"{name}.pt", *counts) for name, counts in SIDES.items()]
    summary = FramesSummary(sides[0], sides[1], 12, 12, 0, 0, ())
    printing.show(datasets.BuiltDataset(folder=tmp_path, left_out=(), summary=summary), Console())
    assert capsys.readouterr().out.splitlines() == printed
    damaged = datasets.BuiltDataset(folder=tmp_path, left_out=("one is broken",), summary=summary)
    printing.show(damaged, Console())
    assert capsys.readouterr().out.splitlines() == ["warning: one is broken", *printed]
