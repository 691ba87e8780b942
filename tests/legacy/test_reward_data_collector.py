"""A trajectory is positive if `success_once` is true or any `success_frame` is at least 0.5, and negative otherwise."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from referee.compat import RewardDataCollector
from referee.episodes.formats.npy import NpyWriter
from referee.episodes.formats.pickled import EpisodePickleWriter, FramesPickleWriter, read


def outputs(frames: list[float], *, done: bool = True) -> list[dict[str, Any]]:
    """What one environment shows, one dict per frame."""
    images = np.random.default_rng(0).random((len(frames), 1, 3, 8, 8)).astype(np.float32)
    return [
        {
            "obs": {"base_camera": images[t]},
            "success_frame": np.array([label], np.float32),
            "dones": np.array([done and t == len(frames) - 1]),
        }
        for t, label in enumerate(frames)
    ]


def collect(folder: Path, frames: list[float], once: list[bool], *, labelled: bool = True) -> tuple[str, list[float]]:
    """The folder in which the trajectory is, and its labels."""
    collector = RewardDataCollector(folder / "positive", folder / "negative", image_keys=["base_camera"])
    for output, flag in zip(outputs(frames), once, strict=True):
        if not labelled:
            del output["success_frame"]
        paths = collector.add_env_output(output, {"success_once": np.array([flag])}, is_last_step=False)
    (path,) = paths
    value = np.load(path, allow_pickle=True).item()
    assert value["images"]["base_camera"].shape == (len(frames), 3, 8, 8)
    return path.parent.name, value["labels"].tolist()


@pytest.mark.parametrize(
    ("frames", "once", "folder"),
    [
        ([0, 0, 0], [False, False, True], "positive"),
        ([0, 0, 0], [False, True, False], "positive"),  # it was one, whatever is said at the end
        ([0, 0.5, 0], [False, False, False], "positive"),
        ([0, 1, 0], [False, True, True], "positive"),
        ([0, 0.49, 0], [False, False, False], "negative"),
    ],
)
def test_either_makes_it_positive(tmp_path: Path, frames: list[float], once: list[bool], folder: str) -> None:
    kind, labels = collect(tmp_path, frames, once)
    assert kind == folder
    assert labels == [float(label >= 0.5) for label in frames]  # labels are those of the frames, in either case


def test_without_labels_the_last_frame_gets_one(tmp_path: Path) -> None:
    assert collect(tmp_path / "a", [0, 0, 0], [False, True, True], labelled=False) == ("positive", [0, 0, 1])
    assert collect(tmp_path / "b", [0, 0, 0], [False] * 3, labelled=False) == ("negative", [0, 0, 0])


def test_a_flag_belongs_to_its_own_episode(tmp_path: Path) -> None:
    collector = RewardDataCollector(tmp_path / "positive", tmp_path / "negative")
    for once in (True, False):
        for output in outputs([0, 0, 0]):
            collector.add_env_output(output, {"success_once": np.array([once])})
    assert [len(list((tmp_path / kind).iterdir())) for kind in ("positive", "negative")] == [1, 1]


def test_limits_count_both_kinds_of_positives(tmp_path: Path) -> None:
    collector = RewardDataCollector(tmp_path / "positive", tmp_path / "negative", max_positive_trajectories=1)
    for frames in ([0, 1, 0], [0, 0, 0]):
        for output in outputs(frames):
            collector.add_env_output(output, {"success_once": np.array([True])})
    assert [path.name for path in (tmp_path / "positive").iterdir()] == ["000000.npy"]
    assert not (tmp_path / "negative").exists()


def episode_file(path: Path, success: bool) -> Path:
    image = np.zeros((8, 8, 3), np.uint8)
    frame = {"obs": {"main_images": image}, "action": np.zeros(2), "reward": 0.0, "done": False, "success": False}
    path.write_bytes(pickle.dumps({"frames": [frame] * 3, "success": success, "label": int(success)}))
    return path


@pytest.mark.parametrize("success", [True, False])
def test_exports_keep_what_a_file_says_of_its_episode(tmp_path: Path, success: bool) -> None:
    """Its frames are labelled as failures, but the episode as a whole is a success."""
    (episode,) = read(episode_file(tmp_path / "x.pkl", success))
    assert episode.success is not None and not episode.success.any() and episode.success_once is success
    as_frames = FramesPickleWriter(tmp_path / "frames").append(episode)
    assert as_frames is not None and as_frames.parent.name == ("success" if success else "failure")
    value = pickle.loads(as_frames.read_bytes())
    assert (value["success"], value["label"]) == (success, int(success))
    as_lists = EpisodePickleWriter(tmp_path / "lists").append(episode)
    assert as_lists.stem.endswith("success" if success else "fail")
    assert pickle.loads(as_lists.read_bytes())["success"] is success
    as_npy = NpyWriter(tmp_path / "positive", tmp_path / "negative").append(episode)
    assert as_npy is not None and as_npy.parent.name == ("positive" if success else "negative")
    for path in (as_frames, as_lists):
        assert next(iter(read(path))).success_once is success
