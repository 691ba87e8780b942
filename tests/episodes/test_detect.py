"""`read_any`: every format is recognised, and every problem is one line that names the file."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from episodes.examples import assert_same, make_episode
from referee.episodes import Episode, EpisodeError, EpisodeStore
from referee.episodes.collection import open_sink
from referee.episodes.formats import lerobot, native
from referee.episodes.formats.detect import read_any, read_named
from referee.episodes.formats.npy import NpyWriter
from referee.episodes.formats.pickled import EpisodePickleWriter, FramesPickleWriter, write_data


def one(path: Path, **options: Path) -> Episode:
    (episode,) = read_any(path, **options)
    return episode


def refused(path: Path, **options: Path) -> str:
    with pytest.raises(EpisodeError) as error:
        list(read_any(path, **options))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_store_and_its_files(tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path / "store")
    ids = [store.append(make_episode(seed=seed)) for seed in range(3)]
    assert [episode.meta.id for episode in read_any(str(tmp_path / "store"))] == ids
    assert [episode.meta.id for episode in read_any(tmp_path)] == ids  # found in a folder, too
    assert_same(one(store.path(ids[1])), store.read(ids[1]))
    store.path(ids[2]).write_bytes(store.path(ids[2]).read_bytes()[:-10])
    assert ids[2] in refused(tmp_path / "store")


def test_older_formats(tmp_path: Path) -> None:
    good, bad = make_episode(3, success_from=2), make_episode(3, success_from=None, seed=1)
    frames = FramesPickleWriter(tmp_path / "frames")
    npy = NpyWriter(tmp_path / "npy" / "positive", tmp_path / "npy" / "negative")
    for episode in (good, bad):
        frames.append(episode)
        npy.append(episode)
        EpisodePickleWriter(tmp_path / "lists").append(episode)
    write_data(tmp_path / "data.pkl", [good, bad])
    for source in ("frames", "npy", "lists", "data.pkl"):
        successes = [episode.success_once for episode in read_any(tmp_path / source)]
        assert sorted(map(bool, successes)) == [False, True], source
    for path in tmp_path.rglob("*.*"):
        assert all(len(episode) == 3 for episode in read_any(path)), path
    assert len(list(read_any(tmp_path))) == 8


def test_folders_are_read_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ("b/2.pkl", "b/10.pkl", "a/deep/down/1.pickle", "c.pkl"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_data(path, [make_episode(2, pixels=0, task=name)])
    (tmp_path / "b" / ".hidden.pkl").write_bytes(b"left by a killed run")
    (tmp_path / "readme.txt").write_text("not an episode")
    tasks = [episode.meta.task for episode in read_any(tmp_path)]
    assert tasks == ["a/deep/down/1.pickle", "b/10.pkl", "b/2.pkl", "c.pkl"]


def test_a_broken_file_ends_a_folder(tmp_path: Path) -> None:
    for name in ("a.pkl", "c.pkl"):
        write_data(tmp_path / name, [make_episode(2, pixels=0)])
    (tmp_path / "b.pkl").write_bytes((tmp_path / "a.pkl").read_bytes()[:-40])
    found = read_any(tmp_path)
    assert len(next(found)) == 2
    with pytest.raises(EpisodeError, match=r"b\.pkl: is cut off"):
        next(found)


def test_pictures_take_labels(tmp_path: Path) -> None:
    for index in range(3):
        path = tmp_path / "pictures" / "run_1" / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (index, 0, 0)).save(path)
    labels = tmp_path / "labels.csv"
    labels.write_text("episode,frame,success\nrun_1,2,1\n")
    episode = one(tmp_path / "pictures", labels=labels)
    assert episode.observations["main_images"][:, 0, 0, 0].tolist() == [0, 1, 2]
    assert episode.success is not None and episode.success.tolist() == [False, False, True]
    (tmp_path / "pictures" / "run_1" / "1.png").write_bytes(b"broken")
    assert "1.png" in refused(tmp_path / "pictures")


def test_a_lerobot_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "set" / "meta").mkdir(parents=True)
    (tmp_path / "set" / "meta" / "info.json").write_text("{}")
    (tmp_path / "set" / "data").mkdir()
    assert "info.json" in refused(tmp_path)
    monkeypatch.setattr(lerobot, "read", lambda path: iter([make_episode(2, task=path.name)]))
    assert one(tmp_path).meta.task == one(tmp_path / "set").meta.task == "set"


def all_formats(root: Path) -> dict[str, tuple[Path, str]]:
    """The same two episodes in every format that holds labels of its own, and what it calls the second."""
    episodes = [make_episode(4, pixels=8, id=f"e{i}", success_from=3, seed=i) for i in range(2)]
    store = EpisodeStore(root / "store")
    store.append_many(episodes)
    sinks = {name: open_sink(name, root / name) for name in ("npy", "pickle", "pickle_frames", "lerobot")}
    for name, sink in sinks.items():
        for episode in episodes:
            sink.append(episode)
        if name == "lerobot":
            sink.close()  # type: ignore[attr-defined]
    write_data(root / "data.pkl", episodes)
    names = {"store": "e1", "npy": "000001", "pickle": "*_1_success", "pickle_frames": "episode_000001", "lerobot": "1"}
    return {**{name: (root / name, called) for name, called in names.items()}, "data": (root / "data.pkl", "data/1")}


@pytest.mark.parametrize("name", ["store", "npy", "pickle", "pickle_frames", "lerobot", "data"])
def test_every_format_takes_labels(tmp_path: Path, name: str) -> None:
    """Over the labels that were recorded: frames without a row keep theirs."""
    source, called = all_formats(tmp_path)[name]
    labels = tmp_path / "labels.csv"
    labels.write_text(f"episode,start,stop,success\n{called},1,3,1\n{called},4,5,0\n")
    first, second = read_any(source, labels=labels)
    assert first.success is not None and first.success.tolist() == [False, False, False, True, True]
    assert second.success is not None and second.success.tolist() == [False, True, True, True, False]
    assert second.meta.extra["success_from"] == "labels labels.csv"
    labels.write_text(f"episode,start,stop,success\n{called},1,3,1\nstranger,4,5,0\n")
    with pytest.raises(EpisodeError, match=rf"^{labels}: line 3 is about 'stranger', but the episodes are \S+, \S+$"):
        list(read_any(source, labels=labels))


def test_the_end_of_a_name_must_fit_one_episode(tmp_path: Path) -> None:
    for kind, success_from in (("positive", 2), ("negative", None)):
        sink = open_sink("npy", tmp_path / "npy")
        sink.append(make_episode(2, success_from=success_from))
        assert (tmp_path / "npy" / kind / "000000.npy").exists()
    labels = tmp_path / "labels.csv"
    labels.write_text("episode,frame,success\n000000,1,1\n")
    message = "line 2 is about '000000', which is both negative/000000 and positive/000000: write more of its path"
    with pytest.raises(EpisodeError, match=message):
        list(read_any(tmp_path / "npy", labels=labels))
    labels.write_text("episode,frame,success\nnegative/000000,1,1\n")
    negative, positive = read_any(tmp_path / "npy", labels=labels)
    assert [each.success.tolist() for each in (negative, positive)] == [  # type: ignore[union-attr]
        [False, True, False], [False, False, True],
    ]  # fmt: skip


def test_names_say_where_an_episode_lies(tmp_path: Path) -> None:
    EpisodeStore(tmp_path / "day1").append(make_episode(2, id="e0"))
    write_data(tmp_path / "day2" / "all.pkl", [make_episode(2, seed=i) for i in range(3)])
    write_data(tmp_path / "one.pkl", [make_episode(2)])
    names = [name for name, _ in read_named(tmp_path)]
    assert names == ["day1/e0", "day2/all/0", "day2/all/1", "day2/all/2", "one"]
    assert [name for name, _ in read_named(tmp_path / "day2" / "all.pkl")] == ["all/0", "all/1", "all/2"]


def test_datasets_of_frames_are_no_episodes(tmp_path: Path) -> None:
    payload = {"images": [torch.zeros(3, 4, 4)] * 7, "labels": [0] * 7, "metadata": {}}
    torch.save(payload, tmp_path / "train.pt")
    assert "train.pt: is a dataset of 7 frames" in refused(tmp_path / "train.pt")
    torch.save({"model_state_dict": {}}, tmp_path / "train.pt")
    assert "train.pt: holds no episodes" in refused(tmp_path)


def test_what_is_no_episode_is_named(tmp_path: Path) -> None:
    assert "away: there is no such file" in refused(tmp_path / "away")
    assert f"{tmp_path}: holds no episodes" in refused(tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    assert "notes.txt: its ending" in refused(tmp_path / "notes.txt")
    for name, data in {"a.pkl": b"", "b.npy": b"", "c.pt": b"", "d.safetensors": b"", "e.pkl": b"hello"}.items():
        (tmp_path / name).write_bytes(data)
        assert name in refused(tmp_path / name)
    np.save(tmp_path / "f.npy", np.zeros(3))
    assert "f.npy: is no trajectory" in refused(tmp_path / "f.npy")
    (tmp_path / "g.pkl").write_bytes(pickle.dumps({"segments": []}))
    assert "g.pkl: holds no episode" in refused(tmp_path / "g.pkl")


def test_nothing_hangs_on_links_and_pipes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "back").symlink_to(tmp_path)
    assert "back: is a link to a folder above it" in refused(tmp_path)
    (tmp_path / "a" / "back").unlink()
    os.mkfifo(tmp_path / "a" / "pipe.pkl")
    assert "pipe.pkl: is no file" in refused(tmp_path)
    (tmp_path / "a" / "pipe.pkl").unlink()
    (tmp_path / "a" / "gone.pkl").symlink_to(tmp_path / "away")
    assert "gone.pkl: is no file" in refused(tmp_path)


def test_native_files_in_a_plain_folder(tmp_path: Path) -> None:
    native.write(tmp_path / "x.safetensors", make_episode(2, task="kept"))
    assert one(tmp_path).meta.task == "kept"
