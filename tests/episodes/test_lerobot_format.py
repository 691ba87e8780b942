"""LeRobotDataset v3: what we write comes back to the bit, others find what they expect, broken files are refused."""

import contextlib
import json
import resource
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from episodes.examples import assert_same, episodes, make_episode
from episodes.foreign_files import foreign
from referee.episodes import Episode, EpisodeError
from referee.episodes.formats import lerobot_writer
from referee.episodes.formats.lerobot import LeRobotWriter, read
from referee.errors import MissingDependency

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("av")


def write(root: Path, *some: Episode, **options: Any) -> Path:
    with LeRobotWriter(root, **options) as writer:
        for episode in some:
            writer.append(episode)
    return root


def scene(steps: int, *, pixels: int = 32, seed: int = 0, **meta: Any) -> Episode:
    """An episode whose pictures are smooth, as a camera's are, and tell their frame by their brightness."""
    episode = make_episode(steps, pixels=pixels, seed=seed, **meta)
    ramp = np.linspace(0, 60, pixels)
    grey = 20 * np.arange(steps + 1)[:, None, None] % 160 + 10 * seed + ramp[:, None] * 0.5 + ramp[None, :] * 0.5
    images = np.stack([grey, grey + 10, grey], axis=-1).clip(0, 255).astype(np.uint8)
    views = {"main_images": images, "extra_view_images": images[:, None, ::-1]}
    return replace(episode, observations={**episode.observations, **views})


# --- round trips ---


@settings(deadline=None, max_examples=15)
@given(episode=episodes())
def test_an_episode_comes_back_to_the_bit(tmp_path_factory: pytest.TempPathFactory, episode: Episode) -> None:
    root = write(tmp_path_factory.mktemp("lerobot") / "d", episode)
    (again,) = read(root)
    assert_same(episode, again)


def test_many_episodes_of_different_lengths(tmp_path: Path) -> None:
    written = [make_episode(1 + i % 5, pixels=4, seed=i, id=f"e{i}", description=f"task {i % 3}") for i in range(140)]
    again = list(read(write(tmp_path / "d", *written)))
    assert len(again) == 140
    for one, other in zip(written, again, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("video", [False, True])
def test_files_end_at_a_size_and_the_next_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, video: bool) -> None:
    monkeypatch.setattr(lerobot_writer, "DATA_MB", 0.001)
    monkeypatch.setattr(lerobot_writer, "VIDEO_MB", 0.00001)
    monkeypatch.setattr(lerobot_writer, "FILES_PER_CHUNK", 2)
    written = [scene(6, seed=i) for i in range(5)]
    root = write(tmp_path / "d", *written, video=video)
    files = sorted(path.relative_to(root).as_posix() for path in root.glob("data/*/*"))
    assert "data/chunk-001/file-000.parquet" in files
    if video:
        assert (root / "videos/observation.images.side/chunk-001/file-000.mp4").exists()
    for one, other in zip(written, read(root), strict=True):
        difference = one.observations["main_images"].astype(int) - other.observations["main_images"]
        assert np.abs(difference).mean() < (3 if video else 1e-9)
        np.testing.assert_array_equal(one.actions, other.actions)


def test_unusual_arrays_keep_their_shapes_and_types(tmp_path: Path) -> None:
    n = 4
    episode = replace(
        make_episode(n - 1, pixels=4, extra_views=2, cameras=()),
        observations={
            "states": np.arange(n, dtype=np.float64)[:, None] / 3,
            "one": np.arange(n, dtype=np.int8),
            "matrix": np.arange(n * 6, dtype=np.float16).reshape(n, 2, 3),
            "main_images": np.full((n, 3, 5, 3), 7, np.uint8),
            "extra_view_images": np.zeros((n, 2, 3, 5, 3), np.uint8),
        },
        actions=np.zeros((n - 1, 0), np.float32),
        success=None,
        signals={"flag": np.ones((n, 1), bool), "none": np.zeros((n, 0), np.uint32)},
    )
    (again,) = read(write(tmp_path / "d", episode))
    assert_same(episode, again)


def test_films_lose_little_and_no_frame_changes_its_place(tmp_path: Path) -> None:
    written = [scene(5, seed=0), scene(1, seed=1), scene(9, seed=2)]
    again = list(read(write(tmp_path / "d", *written, video=True)))
    for one, other in zip(written, again, strict=True):
        for name in ("main_images", "extra_view_images"):
            difference = one.observations[name].astype(int) - other.observations[name]
            per_frame = np.abs(difference).reshape(len(one) + 1, -1).mean(axis=1)
            assert per_frame.max() < 3  # neighbours differ by 20
        images = {name: one.observations[name] for name in ("main_images", "extra_view_images")}
        assert_same(one, replace(other, observations={**other.observations, **images}))


def test_films_of_odd_sizes(tmp_path: Path) -> None:
    (again,) = read(write(tmp_path / "d", scene(4, pixels=33), video=True))
    assert again.observations["main_images"].shape == (5, 33, 33, 3)


def test_cameras_can_be_chosen(tmp_path: Path) -> None:
    episode = make_episode(extra_views=2)
    root = write(tmp_path / "d", episode)
    (again,) = read(root, cameras=["wrist", "front"])
    assert again.meta.cameras == ("wrist", "front")
    np.testing.assert_array_equal(again.view("wrist"), episode.view("wrist"))
    np.testing.assert_array_equal(again.view("front"), episode.view("front"))
    with pytest.raises(EpisodeError, match="no camera 'top': it has front, side, wrist"):
        read(root, cameras=["top"])


# --- what others find ---


def test_the_rows_are_those_that_lerobot_expects(tmp_path: Path) -> None:
    episode = replace(
        make_episode(3, pixels=4, success_from=2),
        actions=np.array([[1, 2], [3, 4], [5, 6]], np.float32),
        rewards=np.array([0.1, 0.2, 0.3], np.float32),
        terminated=np.array([False, False, True]),
        truncated=np.array([False, False, False]),
    )
    root = write(tmp_path / "d", episode, episode, fps=10)
    rows = pq.read_table(root / "data/chunk-000/file-000.parquet").to_pydict()
    assert rows["action"][:4] == [[1, 2], [3, 4], [5, 6], [5, 6]]
    assert rows["next.reward"][:4] == pytest.approx([0.1, 0.2, 0.3, 0])
    assert rows["next.done"][:4] == [False, False, True, True]
    assert rows["referee.success"][:4] == [False, False, True, True]
    assert rows["next.success"][:4] == [False, True, True, True]
    assert rows["referee.is_last_state"] == [False, False, False, True] * 2
    assert rows["timestamp"][:4] == pytest.approx([0, 0.1, 0.2, 0.3])
    assert rows["frame_index"] == [0, 1, 2, 3] * 2 and rows["index"] == list(range(8))
    assert rows["episode_index"] == [0] * 4 + [1] * 4 and rows["task_index"] == [0] * 8
    assert rows["observation.images.front"][1]["bytes"][:8] == b"\x89PNG\r\n\x1a\n"
    assert pq.ParquetFile(root / "data/chunk-000/file-000.parquet").num_row_groups == 2  # one per episode
    index = pq.read_table(root / "meta/episodes/chunk-000/file-000.parquet").to_pydict()
    assert index["length"] == [4, 4] and index["tasks"] == [["Pick it."]] * 2
    assert index["dataset_from_index"] == [0, 4] and index["dataset_to_index"] == [4, 8]
    tasks = pq.read_table(root / "meta/tasks.parquet").to_pydict()
    assert tasks == {"task_index": [0], "__index_level_0__": ["Pick it."]}


def test_info_describes_every_column(tmp_path: Path) -> None:
    root = write(tmp_path / "d", make_episode(3, fps=12.5), video=True, robot_type="panda")
    info = json.loads((root / "meta/info.json").read_text())
    assert (info["codebase_version"], info["fps"], info["robot_type"]) == ("v3.0", 12.5, "panda")
    assert (info["total_episodes"], info["total_frames"], info["splits"]) == (1, 4, {"train": "0:1"})
    columns = pq.read_schema(root / "data/chunk-000/file-000.parquet").names
    films = {key for key, feature in info["features"].items() if feature["dtype"] == "video"}
    assert films == {"observation.images.front", "observation.images.side"}
    assert set(info["features"]) == set(columns) | films
    assert info["features"]["observation.state"] == {"dtype": "float32", "shape": [4], "names": None}
    assert info["features"]["observation.images.front"]["shape"] == [8, 8, 3]


def test_statistics_are_those_of_numpy(tmp_path: Path) -> None:
    some = [make_episode(4 + i, seed=i) for i in range(3)]
    stats = json.loads((write(tmp_path / "d", *some) / "meta/stats.json").read_text())
    states = np.concatenate([each.observations["states"] for each in some]).astype(np.float64)
    mine = stats["observation.state"]
    np.testing.assert_allclose(mine["mean"], states.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(mine["std"], states.std(axis=0), rtol=1e-12)
    np.testing.assert_allclose(mine["min"], states.min(axis=0))
    assert mine["count"] == [len(states)]
    images = np.concatenate([each.observations["main_images"] for each in some]) / 255
    front = stats["observation.images.front"]
    assert np.shape(front["mean"]) == (3, 1, 1)
    np.testing.assert_allclose(np.ravel(front["mean"]), images.mean(axis=(0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(np.ravel(front["std"]), images.std(axis=(0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(np.ravel(front["max"]), images.max(axis=(0, 1, 2)))


def test_one_episode_has_the_quantiles_of_numpy(tmp_path: Path) -> None:
    episode = make_episode(60, pixels=16, extra_views=0)
    stats = json.loads((write(tmp_path / "d", episode) / "meta/stats.json").read_text())
    wanted = np.quantile([*episode.rewards.tolist(), 0.0], 0.9)
    np.testing.assert_allclose(stats["next.reward"]["q90"], [wanted], rtol=1e-6)
    pixels = episode.observations["main_images"].reshape(-1, 3) / 255
    for name, q in (("q01", 0.01), ("q50", 0.5), ("q99", 0.99)):
        wanted = np.quantile(pixels, q, axis=0, method="inverted_cdf")
        np.testing.assert_allclose(np.ravel(stats["observation.images.front"][name]), wanted)


# --- datasets of others ---


@pytest.mark.parametrize("film", [False, True])
def test_a_dataset_of_others_has_no_final_state(tmp_path: Path, film: bool) -> None:
    first, second = read(foreign(tmp_path / "d", film=film))
    assert len(second) == 2 and second.states_count == 3
    np.testing.assert_array_equal(second.observations["states"][:, 0], [3, 4, 5])
    np.testing.assert_array_equal(second.actions, [[3, 3], [4, 4]])
    np.testing.assert_allclose(second.rewards, [0.3, 0.4])
    assert second.success is not None and second.success.tolist() == [False, False, True]
    assert second.terminated.tolist() == [False, True]
    np.testing.assert_allclose(second.signals["next.reward"], [0.3, 0.4, 0.5])  # also the last
    assert (first.meta.description, second.meta.description) == ("push", "pull")
    assert second.meta.cameras == ("top",) and second.meta.fps == 5 and second.meta.episode == 1
    np.testing.assert_allclose(second.view("top").mean(axis=(1, 2, 3)), [110, 140, 170], atol=2 if film else 0)


def test_what_is_no_picture_and_no_number_is_named(tmp_path: Path) -> None:
    root = foreign(tmp_path / "d")
    info = json.loads((root / "meta/info.json").read_text())
    info["features"]["note"] = {"dtype": "string", "shape": [1], "names": None}
    info["features"]["observation.images.top"]["info"] = {"video.is_depth_map": True}
    (root / "meta/info.json").write_text(json.dumps(info))
    first, _ = read(root)
    assert first.meta.extra["skipped"] == ["observation.images.top", "note"] and first.meta.cameras == ()


# --- the writer ---


def test_nothing_is_there_before_close(tmp_path: Path) -> None:
    writer = LeRobotWriter(tmp_path / "d")
    writer.append(make_episode())
    assert not (tmp_path / "d").exists()
    writer.close()
    writer.close()
    assert [path.name for path in tmp_path.iterdir()] == ["d"]
    with pytest.raises(EpisodeError, match="is finished"):
        writer.append(make_episode())


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(EpisodeError, match="give them plain names"):
        write(tmp_path / "d", make_episode(), make_episode(cameras=("a/b", "c")), video=True)
    assert list(tmp_path.iterdir()) == []
    writer = LeRobotWriter(tmp_path / "e")
    writer.append(make_episode())
    del writer
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(EpisodeError, match="has no episodes"):
        LeRobotWriter(tmp_path / "f").close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_something_in_it_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "mine").write_text("")
    with pytest.raises(EpisodeError, match="is there already"):
        LeRobotWriter(tmp_path / "d")
    (tmp_path / "d" / "mine").unlink()
    assert len(list(read(write(tmp_path / "d", make_episode())))) == 1


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (make_episode(pixels=0), "lacks observation.images.front"),
        (make_episode(pixels=9), r"observation.images.front as image\[9, 9, 3\], those before image\[8, 8, 3\]"),
        (replace(make_episode(), success=None), "lacks next.success"),
        (make_episode(fps=5.0), "5 frames per second, the dataset 10"),
        (replace(make_episode(), actions=np.zeros((5, 7), np.float32)), r"action as float32\[7\]"),
    ],
)
def test_episodes_must_be_alike(tmp_path: Path, other: Episode, message: str) -> None:
    with LeRobotWriter(tmp_path / "d") as writer:
        writer.append(make_episode(fps=10.0))
        with pytest.raises(EpisodeError, match=message):
            writer.append(other)
    assert len(list(read(tmp_path / "d"))) == 1


def test_cameras_need_plain_names(tmp_path: Path) -> None:
    with pytest.raises(EpisodeError, match="give them plain names"):
        write(tmp_path / "d", make_episode(cameras=("../front", "side")))


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependency, match=r"pip install 'referee-rl\[lerobot\]'"):
        LeRobotWriter(tmp_path / "d")
    with pytest.raises(MissingDependency, match=r"reading a LeRobot dataset needs pyarrow"):
        read(tmp_path / "d")


# --- broken and hostile files ---


def test_an_older_version_is_refused(tmp_path: Path) -> None:
    root = foreign(tmp_path / "d")
    (root / "meta/info.json").write_text('{"codebase_version": "v2.1"}')
    with pytest.raises(EpisodeError, match=r"info.json: has the version v2.1, not v3.0: convert it"):
        read(root)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("meta/info.json", "info.json"),
        ("meta/episodes/chunk-000/file-000.parquet", "the dataset is not complete"),
        ("data/chunk-000/file-000.parquet", "No such file|cannot be read"),
        ("videos/observation.images.top/chunk-000/file-000.mp4", "No such file"),
    ],
)
def test_a_missing_file_is_named(tmp_path: Path, name: str, message: str) -> None:
    root = foreign(tmp_path / "d", film=True)
    (root / name).unlink()
    with pytest.raises(EpisodeError, match=message):
        list(read(root))


@pytest.mark.parametrize(
    "name", ["data/chunk-000/file-000.parquet", "videos/observation.images.top/chunk-000/file-000.mp4"]
)
@pytest.mark.parametrize("part", [0.0, 0.5, 0.8])
def test_half_a_file_is_refused_by_name(tmp_path: Path, name: str, part: float) -> None:
    root = foreign(tmp_path / "d", film=True)
    content = (root / name).read_bytes()
    (root / name).write_bytes(content[: int(part * len(content))])
    with pytest.raises(EpisodeError, match=name.rpartition("/")[2]):
        list(read(root))


def test_a_film_that_ends_early_is_refused(tmp_path: Path) -> None:
    root = foreign(tmp_path / "d", film=True)
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(path).to_pydict() | {"videos/observation.images.top/from_timestamp": [0.0, 0.8]}
    pq.write_table(pa.table(table), path)
    with pytest.raises(EpisodeError, match=r"file-000.mp4: ends after 2 of 3 frames from 0.800 s"):
        list(read(root))


def edit_info(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def edit(root: Path) -> None:
        info = json.loads((root / "meta/info.json").read_text())
        change(info)
        (root / "meta/info.json").write_text(json.dumps(info))

    return edit


def edit_table(name: str, **columns: Any) -> Callable[[Path], None]:
    def edit(root: Path) -> None:
        path = root / f"{name}/chunk-000/file-000.parquet"
        table = pq.read_table(path)
        for key, value in columns.items():
            table = table.set_column(table.schema.get_field_index(key), key, value)
        pq.write_table(table, path)

    return edit


def long_lists(root: Path) -> None:
    """A file of a few KB whose rows would unfold to gigabytes."""
    path = root / "data/chunk-000/file-000.parquet"
    zeros = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(6_000_000, np.float32)), 1_000_000)
    table = pq.read_table(path)
    table = table.set_column(table.schema.get_field_index("action"), "action", zeros)
    pq.write_table(table, path, compression="zstd")
    assert path.stat().st_size < 100_000


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (edit_info(lambda info: info.update(data_path="../../{chunk_index:03d}.parquet")), "leads elsewhere"),
        (edit_info(lambda info: info.update(data_path="/etc/passwd")), "leads elsewhere"),
        (edit_info(lambda info: info.update(data_path="data/{chunk_index.__class__}")), "not understood"),
        (edit_info(lambda info: info.update(fps=0)), "fps is 0"),
        (edit_info(lambda info: info.update(features=[])), "lacks features"),
        (edit_info(lambda info: info["features"].update(action={"dtype": "float32", "shape": [-1]})), "usable shape"),
        (edit_info(lambda info: info["features"].update(action={"dtype": "float32", "shape": [1 << 31]})), "GiB"),
        (edit_info(lambda info: info["features"].update(action={"dtype": "float32", "shape": [3]})), "3 numbers"),
        (edit_info(lambda info: info["features"].update({"a/../b": {"dtype": "video", "shape": [2, 2, 3]}})), "slash"),
        (edit_info(lambda info: info["features"].update(gone={"dtype": "float32", "shape": [1]})), "column 'gone'"),
        (edit_info(lambda info: info["features"]["observation.images.top"].update(shape=[3, 8, 8])), "is not 8×8"),
        (edit_table("meta/episodes", length=pa.array([3, 2_000_000])), "too many"),
        (edit_table("meta/episodes", length=pa.array([3, -1])), "length of an episode is -1"),
        (edit_table("meta/episodes", length=pa.array([3, 4])), "ends at frame 3 of episode 1"),
        (edit_table("meta/episodes", length=pa.array([2, 3])), "frames of another episode"),
        (edit_table("meta/episodes", length=pa.array([1, 3])), "episode 0 has 1 frames"),
        (edit_table("data", action=pa.array([[0.0, 1.0]] * 5 + [None])), "has gaps"),
        (edit_table("data", action=pa.array(["a"] * 6)), "2 numbers"),
        (long_lists, "6000000 numbers in 6 rows"),
    ],
)  # fmt: skip
def test_absurd_contents_are_refused_at_once(tmp_path: Path, damage: Callable[[Path], None], message: str) -> None:
    root = foreign(tmp_path / "d")
    damage(root)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(EpisodeError, match=message) as caught:
        list(read(root))
    assert str(root) in str(caught.value) and "\n" not in str(caught.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KB


def test_a_text_that_repeats_is_not_unfolded(tmp_path: Path) -> None:
    """A hundred thousand tasks of a megabyte each, in a small file."""
    root = foreign(tmp_path / "d")
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(100_000, np.int32)), ["x" * 1_000_000])
    pq.write_table(pa.table({"task": texts, "task_index": np.arange(100_000)}), root / "meta/tasks.parquet",
                   compression="zstd")  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    first, _ = read(root)
    assert first.meta.description == "x" * 1_000_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KB


@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_no_bytes_can_do_more_than_be_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    whole = tmp_path_factory.getbasetemp() / "whole"
    if not whole.exists():
        write(whole / "films", make_episode(3, pixels=16), make_episode(2, pixels=16), video=True)
        write(whole / "pictures", make_episode(3, pixels=4), make_episode(2, pixels=4))
    kind = data.draw(st.sampled_from(["films", "pictures"]))
    root = tmp_path_factory.getbasetemp() / "fuzz"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(whole / kind, root)
    path = data.draw(st.sampled_from(sorted(path for path in root.rglob("*") if path.is_file())))
    content = bytearray(path.read_bytes())
    # The end of a parquet file is its footer: that is where sizes are declared.
    begin = data.draw(st.sampled_from([0, len(content) * 3 // 4]))
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(begin, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
    with contextlib.suppress(EpisodeError):  # anything else that is raised fails the test
        list(read(root))
