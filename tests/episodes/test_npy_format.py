"""`.npy` trajectories: what the format holds comes back, and files of others are read as documented."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from episodes.examples import episodes, make_episode
from referee.episodes import Episode, EpisodeError
from referee.episodes.formats import npy
from referee.episodes.formats.npy import NpyWriter


def document(path: Path, images: dict[str, np.ndarray], labels: np.ndarray) -> Path:
    """A file as the documents describe it, written with numpy alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, {"images": images, "labels": labels}, allow_pickle=True)  # type: ignore[arg-type]
    return path


def writer(root: Path, **limits: int) -> NpyWriter:
    return NpyWriter(root / "positive", root / "negative", **limits)  # type: ignore[arg-type]


@settings(deadline=None, max_examples=25)
@given(episode=episodes().filter(lambda episode: "main_images" in episode.observations))
def test_frames_and_labels_come_back(tmp_path_factory: pytest.TempPathFactory, episode: Episode) -> None:
    root = tmp_path_factory.mktemp("npy")
    path = writer(root).append(episode)
    assert path is not None and path.parent.name == ("positive" if episode.success_once else "negative")
    (again,) = npy.read(path)
    np.testing.assert_array_equal(again.observations["main_images"], episode.observations["main_images"])
    if episode.observations["extra_view_images"].shape[1]:
        extra = again.observations["extra_view_images"]
        np.testing.assert_array_equal(extra, episode.observations["extra_view_images"])
    np.testing.assert_array_equal(again.success, episode.success)
    assert again.meta.cameras == episode.meta.cameras and len(again) == len(episode)
    assert again.actions.shape == (len(episode), 0) and not again.rewards.any() and again.truncated[-1]
    assert again.meta.extra["missing"] == ["actions", "rewards", "terminated", "truncated"]


def test_the_file_is_as_documented(tmp_path: Path) -> None:
    episode = make_episode(3, pixels=8)
    path = writer(tmp_path).append(episode)
    assert path == tmp_path / "positive" / "000000.npy"
    value = np.load(path, allow_pickle=True).item()
    assert value.keys() == {"images", "labels"} and list(value["images"]) == ["front", "side"]
    front = value["images"]["front"]
    assert front.dtype == np.float32 and front.shape == (4, 3, 8, 8) and 0 <= front.min() <= front.max() <= 1
    assert front[2, 1, 5, 6] == np.float32(episode.observations["main_images"][2, 5, 6, 1]) / np.float32(255)
    assert value["labels"].dtype == np.float32 and value["labels"].tolist() == [0, 0, 0, 1]


def test_every_colour_comes_back(tmp_path: Path) -> None:
    images = np.arange(256, dtype=np.uint8).repeat(3).reshape(1, 16, 16, 3).repeat(2, axis=0)
    path = document(tmp_path / "x.npy", {"a": np.moveaxis(images, -1, 1).astype(np.float32) / 255}, np.zeros(2))
    np.testing.assert_array_equal(npy.read_file(path).observations["main_images"], images)


def test_files_of_others(tmp_path: Path) -> None:
    one = np.zeros((3, 3, 2, 3), np.float32)  # a picture three pixels wide: its channels are still the first axis
    one[2, 0, 1, 2] = 1.0
    other = np.full((3, 3, 5, 4), 0.5, np.float32)
    path = document(tmp_path / "negative" / "000012.npy", {"base_camera": one, "wrist": other}, np.array([0, 0.4, 0.6]))
    (episode,) = npy.read(tmp_path)
    assert episode.observations["main_images"].shape == (3, 2, 3, 3)
    assert np.argwhere(episode.observations["main_images"]).tolist() == [[2, 1, 2, 0]]
    assert episode.observations["wrist"].shape == (3, 5, 4, 3) and (episode.observations["wrist"] == 128).all()
    assert episode.success is not None and episode.success.tolist() == [False, False, True]
    assert episode.meta.cameras == ("base_camera",) and episode.meta.episode == 12 and episode.meta.source == str(path)


def test_numbers_go_on_and_limits_count_what_is_there(tmp_path: Path) -> None:
    good, bad = make_episode(2, success_from=1), make_episode(2, success_from=None)
    first = writer(tmp_path)
    assert [path.name for path in map(first.append, [good, good, bad]) if path] == [
        "000000.npy",
        "000001.npy",
        "000000.npy",
    ]
    (tmp_path / "positive" / "000000.npy").unlink()
    (tmp_path / "positive" / "notes.txt").touch()
    again = writer(tmp_path, max_positive=2, max_negative=1)
    assert again.append(good) == tmp_path / "positive" / "000002.npy"
    assert again.append(good) is None and again.append(bad) is None
    assert len(list(npy.read(tmp_path))) == 3
    assert not list(tmp_path.rglob(".*"))


def test_writers_side_by_side_replace_nothing(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        made = list(
            pool.map(lambda seed: writer(tmp_path).append(make_episode(2, seed=seed, success_from=0)), range(24))
        )
    assert len(set(made)) == 24
    assert sorted(path.stem for path in made if path) == [f"{number:06d}" for number in range(24)]


def test_cameras_are_chosen_by_name(tmp_path: Path) -> None:
    episode = make_episode(2, success_from=1)
    path = NpyWriter(tmp_path / "p", tmp_path / "n", cameras=["side"]).append(episode)
    assert path is not None
    again = npy.read_file(path)
    assert again.meta.cameras == ("side",) and "extra_view_images" not in again.observations
    np.testing.assert_array_equal(again.observations["main_images"], episode.view("side"))
    with pytest.raises(EpisodeError, match="no camera top"):
        NpyWriter(tmp_path / "p", tmp_path / "n", cameras=["top"]).append(episode)


def test_what_the_format_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EpisodeError, match="needs images"):
        writer(tmp_path).append(make_episode(2, pixels=0))
    with pytest.raises(EpisodeError, match="needs labels"):
        writer(tmp_path).append(replace(make_episode(2), success=None))
    assert not list(tmp_path.rglob("*.npy"))


@pytest.mark.parametrize(
    ("images", "labels", "reason"),
    [
        ({"a": np.zeros((3, 3, 4, 4), np.float32)}, np.zeros(2), "3 frames, but there are 2 labels"),
        ({"a": np.zeros((1, 3, 4, 4), np.float32)}, np.zeros(1), "one state only"),
        ({"a": np.zeros((2, 4, 4, 3), np.float32)}, np.zeros(2), r"float32\[N,3,H,W\]"),
        ({"a": np.full((2, 3, 4, 4), 200.0, np.float32)}, np.zeros(2), "uint8 or 0..1"),
        ({"a": np.full((2, 3, 4, 4), np.nan, np.float32)}, np.zeros(2), "uint8 or 0..1"),
        ({"a": "text"}, np.zeros(2), r"float32\[N,3,H,W\]"),
        ({}, np.zeros(2), "no images"),
        ({"a": np.zeros((2, 3, 4, 4), np.float32)}, "text", "labels holds a str"),
        (None, np.zeros(2), "is no trajectory"),
    ],
)
def test_broken_trajectories_are_named(tmp_path: Path, images: object, labels: object, reason: str) -> None:
    path = document(tmp_path / "000003.npy", images, labels)  # type: ignore[arg-type]
    with pytest.raises(EpisodeError, match=rf"000003\.npy: .*{reason}"):
        npy.read_file(path)
