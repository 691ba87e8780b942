"""Windows against a slow reading, trends by hand, and files that hold only arrays and plain values."""

import io
import json
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from episodes.examples import make_episode
from referee.config.datasets import WindowConfig
from referee.datasets.windows import build_windows, success_to_go, trends, windows
from referee.episodes import Episode, EpisodeStore
from referee.errors import RefereeError
from referee.labels.log import LabelLog


def test_windows_by_hand() -> None:
    assert windows(6, 5, 1).tolist() == [[0, 5], [1, 6]]
    assert windows(10, 4, 3).tolist() == [[0, 4], [3, 7], [6, 10]]
    assert windows(11, 4, 3).tolist() == [[0, 4], [3, 7], [6, 10]]
    assert windows(11, 4, 3, tail="shift").tolist() == [[0, 4], [3, 7], [6, 10], [7, 11]]
    assert windows(11, 4, 3, tail="short").tolist() == [[0, 4], [3, 7], [6, 10], [9, 11]]
    assert windows(3, 5, 1).tolist() == windows(3, 5, 1, tail="shift").tolist() == []
    assert windows(3, 5, 1, tail="short").tolist() == [[0, 3]]
    assert windows(0, 5, 1, tail="short").shape == (0, 2)
    assert windows(10, 2, 6, tail="short").tolist() == [[0, 2], [6, 8]]  # the next would begin behind the end
    for wrong in ((5, 0, 1, "drop"), (5, 1, 0, "drop"), (5, 1, 1, "bend")):
        with pytest.raises(ValueError, match="windows need"):
            windows(*wrong[:3], tail=wrong[3])


@given(
    length=st.integers(0, 40),
    size=st.integers(1, 9),
    stride=st.integers(1, 9),
    tail=st.sampled_from(["drop", "shift", "short"]),
)
def test_windows_equal_a_slow_reading(length: int, size: int, stride: int, tail: str) -> None:
    expected, start = [], 0
    while start + size <= length:
        expected.append([start, start + size])
        start += stride
    reached = expected[-1][1] if expected else 0
    if reached < length and tail == "shift" and length >= size:
        expected.append([length - size, length])
    if reached < length and tail == "short" and start < length:
        expected.append([start, length])
    found = windows(length, size, stride, tail=tail)
    assert found.tolist() == expected and found.dtype.kind == "i"
    if tail != "drop" and length >= size and stride <= size:
        assert sorted({frame for a, b in expected for frame in range(a, b)}) == list(range(length))


def test_windows_need_no_torch() -> None:
    code = "import sys, referee.datasets.windows; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_success_to_go_by_hand() -> None:
    success = np.array([0, 0, 1, 0, 0, 1, 1, 0], bool)
    np.testing.assert_allclose(success_to_go(success, 0.5), [0.25, 0.5, 1, 0.25, 0.5, 1, 1, 0])
    assert success_to_go(np.zeros(3, bool), 1.0).tolist() == [0, 0, 0]
    assert success_to_go(np.array([False, True, False]), 1.0).tolist() == [1, 1, 0]


def test_trends_by_hand() -> None:
    progress = np.array([0.0, 0.1, 0.5, 0.55, 0.5, 0.2])
    change, names = trends(progress, windows(6, 3, 1), 0.05)
    np.testing.assert_allclose(change, [0.5, 0.45, 0.0, -0.35])
    assert names == ["positive", "positive", "unclear", "negative"]
    exact = trends(np.array([0.0, 0.25]), np.array([[0, 2]]), 0.25)[1]
    assert exact == ["unclear"]  # more than the threshold is needed


def rising_and_falling(count: int = 6, steps: int = 9, **more: Any) -> list[Episode]:
    """Progress up by 0.1 a state until state 5, and down by 0.1 from there to state 9."""
    progress = np.array([0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.4, 0.3, 0.2, 0.1], np.float32)
    return [
        replace(make_episode(steps, seed=i, success_from=5, id=f"e{i}", **more), signals={"progress": progress})
        for i in range(count)
    ]


class OnlyArrays(pickle.Unpickler):
    """Refuses everything but arrays."""

    def find_class(self, module: str, name: str) -> Any:
        assert module.split(".")[0] == "numpy" and name in ("_reconstruct", "ndarray", "dtype"), (module, name)
        return super().find_class(module, name)


def rows(root: Path, side: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The rows of a manifest, with the content of their files."""
    lines = [json.loads(line) for line in (root / side / "segments.jsonl").read_text().splitlines()]
    samples = [OnlyArrays(io.BytesIO((root / line["pkl_path"]).read_bytes())).load() for line in lines]
    assert len(list((root / side / "pkl").iterdir())) == len(lines)
    return list(zip(lines, samples, strict=True))


def test_files_are_as_documented(tmp_path: Path) -> None:
    episodes = {episode.meta.id: episode for episode in rising_and_falling(extra_views=2)}
    store = EpisodeStore(tmp_path / "store")
    for episode in episodes.values():
        store.append(episode)
    root = tmp_path / "data"
    summary = build_windows(store, root, WindowConfig(val_split=0.34, balance=False))
    # 10 states, windows of 5: starts 0..5, changes +.4 +.4(1→5) +.2 0 -.2 -.4
    assert summary.train == {"positive": 4 * 3, "negative": 4 * 2, "unclear": 4}
    assert summary.eval == {"positive": 2 * 3, "negative": 2 * 2, "unclear": 2}
    info = json.loads((root / "dataset_info.json").read_text())
    assert info["label_counts"] == {"train": summary.train, "eval": summary.eval} and info["window_size"] == 5
    assert info["source"] == str(store.root) and info["delta_threshold"] == 0.05 and info["stride"] == 1
    assert sorted(info["episodes"]["train"] + info["episodes"]["eval"]) == sorted(episodes)
    assert not set(info["episodes"]["train"]) & set(info["episodes"]["eval"])
    for side in ("train", "eval"):
        found = rows(root, side)
        assert {row["episode"] for row, _ in found} == set(info["episodes"][side])
        for row, sample in found:
            start, stop = row["start"], row["stop"]
            expected = {0: 0.4, 1: 0.4, 2: 0.2, 3: 0.0, 4: -0.2, 5: -0.4}[start]
            assert stop == start + 5 and row["change"] == pytest.approx(expected, abs=1e-6)
            label = "positive" if expected > 0.05 else "negative" if expected < -0.05 else "unclear"
            assert row["answer"] == row["label"] == sample["label"] == label
            assert row["task"] == sample["task"] == "Pick it." and row["progress"] == "recorded"
            for name in ("main_images", "extra_view_images"):
                np.testing.assert_array_equal(sample[name], episodes[row["episode"]].observations[name][start:stop])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "store"]


def test_training_is_balanced_and_validation_is_not(tmp_path: Path) -> None:
    summary = build_windows(rising_and_falling(), tmp_path / "data", WindowConfig(val_split=0.34))
    assert summary.train == {"positive": 4, "negative": 4, "unclear": 4}
    assert summary.eval == {"positive": 6, "negative": 4, "unclear": 2}
    again = build_windows(rising_and_falling()[::-1], tmp_path / "again", WindowConfig(val_split=0.34))
    assert again.train == summary.train

    def kept(root: Path) -> list[tuple[str, int]]:
        return sorted((row["episode"], row["start"]) for row, _ in rows(root, "train"))

    assert kept(tmp_path / "data") == kept(tmp_path / "again")


def test_reversed_positives_are_negatives_of_training(tmp_path: Path) -> None:
    episodes = {episode.meta.id: episode for episode in rising_and_falling()}
    options = WindowConfig(val_split=0.34, balance=False, reverse_positives=True)
    summary = build_windows(episodes.values(), tmp_path / "data", options)
    assert summary.train == {"positive": 12, "negative": 8 + 12, "unclear": 4}
    assert summary.eval == {"positive": 6, "negative": 4, "unclear": 2}
    turned = [(row, sample) for row, sample in rows(tmp_path / "data", "train") if row["reversed"]]
    assert len(turned) == 12
    for row, sample in turned:
        images = episodes[row["episode"]].observations["main_images"][row["start"] : row["stop"]]
        np.testing.assert_array_equal(sample["main_images"], images[::-1])
        assert row["change"] < 0 and row["label"] == "negative"


@pytest.mark.parametrize("turned", [False, True])
def test_few_frames_of_long_windows(tmp_path: Path, turned: bool) -> None:
    episodes = {episode.meta.id: episode for episode in rising_and_falling()}
    options = WindowConfig(window_size=8, keep_frames=3, val_split=0.34, balance=False, reverse_positives=turned)
    build_windows(episodes.values(), tmp_path / "data", options)
    found = rows(tmp_path / "data", "train")
    assert {row["reversed"] for row, _ in found} == ({False, True} if turned else {False})
    for row, sample in found:
        assert row["stop"] - row["start"] == 8 and row["frames"] == 3
        kept = [row["start"] + place for place in (0, 4, 7)]  # 3.5 is rounded to even
        images = episodes[row["episode"]].observations["main_images"][kept]
        np.testing.assert_array_equal(sample["main_images"], images[::-1] if row["reversed"] else images)
    for wrong in (1, 9, -1):
        with pytest.raises(RefereeError, match=r"keep_frames is .*: it must be 0, or 2 to window_size \(8\)"):
            WindowConfig(window_size=8, keep_frames=wrong)


def test_success_to_go_stands_in_for_progress(tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path / "store")
    for i in range(4):
        store.append(replace(make_episode(9, seed=i, id=f"e{i}"), success=None, signals={}))
    log = LabelLog.of(store)
    for i in range(4):
        log.append(f"e{i}", False, source="web")
        log.append(f"e{i}", True, source="web", frames=(6, 9))
    options = WindowConfig(window_size=3, val_split=0.5, discount=0.5, balance=False, delta_threshold=0.1)
    summary = build_windows(store, tmp_path / "data", options)
    # To go: 1/64 1/32 1/16 1/8 1/4 1/2 1 1 1 0; changes over two steps: .047 .094 .1875 .375 .75 .5 0 -1
    assert summary.train == {"positive": 2 * 4, "negative": 2, "unclear": 2 * 3}
    assert {row["progress"] for row, _ in rows(tmp_path / "data", "train")} == {"success"}


def test_the_tail_may_be_called_unclear(tmp_path: Path) -> None:
    options = WindowConfig(val_split=0.34, balance=False, tail_unclear_ratio=0.5)
    summary = build_windows(rising_and_falling(), tmp_path / "data", options)
    assert summary.eval == {"positive": 6, "negative": 0, "unclear": 6}


def test_samples_of_an_episode_keep_the_last_window(tmp_path: Path) -> None:
    options = WindowConfig(val_split=0.34, balance=False, num_samples_per_episode=2)
    build_windows(rising_and_falling(), tmp_path / "data", options)
    assert {row["start"] for row, _ in rows(tmp_path / "data", "train")} == {0, 5}


@pytest.mark.parametrize(("stride", "tail"), [(1, "drop"), (3, "shift"), (7, "shift")])
def test_windows_of_one_episode_share_no_frame_across_the_sides(tmp_path: Path, stride: int, tail: str) -> None:
    wave = (0.5 - 0.5 * np.cos(np.arange(400) / 10)).astype(np.float32)
    episode = replace(make_episode(399, seed=1, id="long"), signals={"progress": wave})
    options = WindowConfig(stride=stride, tail=tail, balance=False)
    build_windows([episode], tmp_path / "data", options)
    seen = {
        side: {frame for row, _ in rows(tmp_path / "data", side) for frame in range(row["start"], row["stop"])}
        for side in ("train", "eval")
    }
    assert seen["train"] and seen["eval"] and not seen["train"] & seen["eval"]


def test_what_cannot_be_built_is_refused(tmp_path: Path) -> None:
    flat = [replace(e, signals={"progress": np.zeros(10, np.float32)}) for e in rising_and_falling(4)]
    with pytest.raises(RefereeError, match="no positive window"):
        build_windows(flat, tmp_path / "data")
    with pytest.raises(RefereeError, match="e1 is there twice"):
        build_windows(rising_and_falling(3) + rising_and_falling(2)[1:], tmp_path / "data")
    copies = [replace(e, meta=replace(e.meta, id=f"c{e.meta.id}")) for e in rising_and_falling(3)]
    with pytest.raises(RefereeError, match="are also in"):
        build_windows(rising_and_falling(3) + copies, tmp_path / "data", WindowConfig(val_split=0.5))
    broken = [replace(e, signals={"progress": np.full(10, np.nan, np.float32)}) for e in rising_and_falling(2)]
    with pytest.raises(RefereeError, match="e0: signal progress"):
        build_windows(broken, tmp_path / "data")
    with pytest.raises(RefereeError, match="window_size is 11, but the longest episode has 10 states"):
        build_windows(rising_and_falling(4), tmp_path / "data", WindowConfig(window_size=11))
    assert not list(tmp_path.iterdir())
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("x")
    with pytest.raises(RefereeError, match="holds something else"):
        build_windows(rising_and_falling(), tmp_path / "mine")
    for wrong in ({"window_size": 1}, {"stride": 0}, {"tail": "bend"}, {"discount": 0.0}):
        with pytest.raises(RefereeError):
            WindowConfig(**wrong)  # type: ignore[arg-type]


def test_a_dataset_is_replaced_whole(tmp_path: Path) -> None:
    build_windows(rising_and_falling(), tmp_path / "data", WindowConfig(balance=False))
    build_windows(iter(rising_and_falling(4)), tmp_path / "data", WindowConfig(window_size=8, balance=False))
    info = json.loads((tmp_path / "data/dataset_info.json").read_text())
    assert info["window_size"] == 8 and sum(map(len, info["episodes"].values())) == 4
    assert {row["stop"] - row["start"] for row, _ in rows(tmp_path / "data", "train")} == {8}
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
