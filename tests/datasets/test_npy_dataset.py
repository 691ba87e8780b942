"""Folders of .npy trajectories: every frame a sample with its own label, counted by folder."""

from pathlib import Path

import numpy as np
import pytest

from referee.config.datasets import FrameConfig
from referee.datasets import npy
from referee.datasets.frames import build_frames
from referee.datasets.payload import RewardBinaryDataset
from referee.episodes import EpisodeError


def write(folder: Path, labels: list[list[int]], seed: int) -> None:
    """As the documents say: one dict of float images [T,C,H,W] and float labels [T]."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    for number, values in enumerate(labels):
        images = random.integers(0, 256, (len(values), 3, 8, 8)).astype(np.float32) / 255
        content = {"images": {"base_camera": images}, "labels": np.array(values, np.float32)}
        np.save(folder / f"{number:06d}.npy", np.array(content, dtype=object), allow_pickle=True)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    write(tmp_path / "positive", [[0, 0, 1], [0, 1, 1, 1], [0, 0, 0, 1, 0]], seed=0)
    write(tmp_path / "negative", [[0, 0, 0, 0], [0, 0]], seed=1)
    return tmp_path / "positive", tmp_path / "negative"


def test_frames_expand_with_their_own_labels(folders: tuple[Path, Path]) -> None:
    samples, counts = npy.expand(*folders)
    positive, negative = folders
    assert len(samples) == 18 and samples[2] == (positive / "000000.npy", 2, 1)
    assert [sample.label for sample in samples if sample.trajectory == positive / "000002.npy"] == [0, 0, 0, 1, 0]
    assert counts[0] == npy.FolderCounts(positive, trajectories=3, frames=12, ones=5, zeros=7)
    assert counts[1] == npy.FolderCounts(negative, trajectories=2, frames=6, ones=0, zeros=6)
    assert str(counts[0]) == f"{positive}: 3 trajectories, 12 frames, label=1: 5, label=0: 7"


def test_trajectories_become_a_frames_dataset(folders: tuple[Path, Path], tmp_path: Path) -> None:
    summary = build_frames(npy.read(*folders), tmp_path / "data", FrameConfig(val_split=0.4))
    assert (summary.success, summary.fail) == (5, 13)
    train = RewardBinaryDataset(tmp_path / "data/train.pt")
    val = RewardBinaryDataset(tmp_path / "data/val.pt")
    names = set(train.metadata["episodes"]) | set(val.metadata["episodes"])
    assert names == {"positive/000000", "positive/000001", "positive/000002", "negative/000000", "negative/000001"}
    assert train.metadata["cameras"] == ["base_camera"] and len(train) + len(val) == 18
    image, label = train[0]
    meta = train.metadata
    path = tmp_path / f"{meta['episodes'][meta['episode_of_sample'][0]]}.npy"
    content = np.load(path, allow_pickle=True).item()
    frame = meta["frame_of_sample"][0]
    np.testing.assert_array_equal(
        image.permute(2, 0, 1).numpy(), np.rint(content["images"]["base_camera"][frame] * 255)
    )
    assert label == content["labels"][frame]


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EpisodeError, match=r"holds no \.npy"):
        npy.expand(tmp_path)
