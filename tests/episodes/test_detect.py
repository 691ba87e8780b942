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
from referee.episodes.formats import hdf5, lerobot, media, native
from referee.episodes.formats.detect import read_any
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


def test_pictures_films_and_hdf5_take_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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

    asked: list[tuple[object, ...]] = []
    for module in (media, hdf5):
        monkeypatch.setattr(module, "read", lambda *given: iter([asked.append(given) or make_episode(2)]))  # type: ignore[func-returns-value]
    for name in ("a.mp4", "b.hdf5", "c.h5"):
        (tmp_path / name).touch()
        one(tmp_path / name, labels=labels)
        assert asked[-1] == (tmp_path / name, labels)


def test_a_lerobot_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "set" / "meta").mkdir(parents=True)
    (tmp_path / "set" / "meta" / "info.json").write_text("{}")
    (tmp_path / "set" / "data").mkdir()
    assert "info.json" in refused(tmp_path)
    monkeypatch.setattr(lerobot, "read", lambda path: iter([make_episode(2, task=path.name)]))
    assert one(tmp_path).meta.task == one(tmp_path / "set").meta.task == "set"


def test_labels_are_refused_where_they_would_not_be_read(tmp_path: Path) -> None:
    write_data(tmp_path / "data.pkl", [make_episode(2)])
    store = EpisodeStore(tmp_path / "store")
    store.append(make_episode(2))
    for path in (tmp_path / "data.pkl", tmp_path / "store", tmp_path):
        assert "holds its own labels" in refused(path, labels=tmp_path / "labels.csv")


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
