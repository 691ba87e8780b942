"""A Rerun recording holds every frame and line, and a missing library is told in one line."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from episodes.examples import make_episode
from referee.episodes import EpisodeError
from referee.episodes.rerun import save_recording
from referee.errors import MissingDependency


def contents(path: Path) -> dict[str, Any]:
    """The rows of each entity, by its path, as record batches."""
    chunk = pytest.importorskip("rerun.chunk")
    batches: dict[str, Any] = {}
    for each in chunk.RrdReader(str(path)).stream().to_chunks():
        batches.setdefault(each.entity_path, []).append(each.to_record_batch())
    return batches


def numbers(batches: list[Any], name: str) -> list[float]:
    rows: dict[int, float] = {}
    for batch in batches:
        column = next(key for key in batch.schema.names if name in key)
        rows |= dict(zip(batch.column("frame").to_pylist(), batch.column(column).to_pylist(), strict=True))
    return [np.ravel(rows[i])[0] for i in sorted(rows)]


def test_frames_and_lines_are_in_the_recording(tmp_path: Path) -> None:
    pytest.importorskip("rerun")
    first, second = make_episode(5, pixels=16), make_episode(3, pixels=16, seed=1, success_from=None)
    save_recording(tmp_path / "a.rrd", [first, replace(second, success=None)])
    found = contents(tmp_path / "a.rrd")
    for view in ("front", "side"):
        assert sum(batch.num_rows for batch in found[f"/0000/images/{view}"]) == 6
        assert sum(batch.num_rows for batch in found[f"/0001/images/{view}"]) == 4
    assert numbers(found["/0000/success"], "scalars") == [0, 0, 0, 1, 1, 1]
    np.testing.assert_allclose(numbers(found["/0000/progress"], "scalars"), np.linspace(0, 1, 6), atol=1e-6)
    np.testing.assert_allclose(numbers(found["/0000/reward"], "scalars"), first.rewards)
    rewarded = [i for batch in found["/0000/reward"] for i in batch.column("frame").to_pylist()]
    assert sorted(rewarded) == [1, 2, 3, 4, 5]  # a reward stands beside the frame that it was paid for
    assert "/0001/success" not in found
    assert [path.name for path in tmp_path.iterdir()] == ["a.rrd"]


def test_episodes_without_images(tmp_path: Path) -> None:
    pytest.importorskip("rerun")
    save_recording(tmp_path / "a.rrd", [make_episode(2, pixels=0)])
    assert "/0000/success" in contents(tmp_path / "a.rrd")


def test_an_error_leaves_no_file(tmp_path: Path) -> None:
    pytest.importorskip("rerun")

    def broken() -> Any:
        yield make_episode(2)
        raise EpisodeError("the second is broken")

    with pytest.raises(EpisodeError, match="the second is broken"):
        save_recording(tmp_path / "a.rrd", broken())
    assert list(tmp_path.iterdir()) == []


def test_the_ending_is_checked(tmp_path: Path) -> None:
    pytest.importorskip("rerun")
    with pytest.raises(EpisodeError, match=r"ends in \.rrd"):
        save_recording(tmp_path / "a.mp4", [])


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rerun", None)
    with pytest.raises(MissingDependency, match=r"a Rerun recording needs rerun: pip install 'referee-rl\[rerun\]'"):
        save_recording(tmp_path / "a.rrd", [])
