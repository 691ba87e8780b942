"""Damaged files of every kind that is read back are read, or refused in one line; none runs, hangs or fills memory."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import campaign_files
from campaign_samples import KINDS

SLOW = ("LoRA config", "LoRA weights")
"""They load a model each time."""


@pytest.mark.parametrize("name", [name for name in KINDS if name not in SLOW])
def test_damaged_files_are_read_or_refused(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, so that starting one for each kind costs nothing."""
    monkeypatch.chdir(tmp_path)
    campaign_files.work(name, 0, 12, tmp_path)
    results = campaign_files.results_of(tmp_path / "report.jsonl")
    assert [each.seed for each in results] == list(range(12))
    assert not [each for each in results if each.outcome in campaign_files.BAD]
    assert {each.outcome for each in results} <= {"ok", "refused"}


@pytest.mark.parametrize(
    ("name", "seed"),
    [("refine log", 216), ("windows index", 45), pytest.param("LoRA config", 202, marks=pytest.mark.slow)],
)
def test_files_that_once_ended_in_a_traceback_are_refused(
    tmp_path: Path, name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    campaign_files.work(name, seed, seed + 1, tmp_path)
    (result,) = campaign_files.results_of(tmp_path / "report.jsonl")
    assert result.outcome in ("ok", "refused"), result.detail


def test_what_goes_wrong_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that fails, runs code, hangs or dies is found out, and attributed to its file."""
    monkeypatch.setattr(campaign_files, "SECONDS", 12.0)
    monkeypatch.setenv(campaign_files.EXTRA, str(Path(__file__).with_name("damaged_doubles.py")))
    results = campaign_files.run(0, 8, tmp_path, ["faulty"])
    assert [each.outcome for each in results] == [
        "ok",
        "refused",
        "traceback",
        "hang",
        "crash",
        "executed",
        "memory",
        "ok",
    ]
    assert [each.seed for each in results] == list(range(8))
    assert "ZeroDivisionError" in results[2].detail


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_damaged_adapters_are_read_or_refused(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("peft")
    monkeypatch.chdir(tmp_path)
    campaign_files.work(name, 0, 40, tmp_path)
    results = campaign_files.results_of(tmp_path / "report.jsonl")
    assert len(results) == 40 and not [each for each in results if each.outcome in campaign_files.BAD]
