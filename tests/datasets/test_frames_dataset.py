"""Frames out of episodes: every count by hand, every picture with its own label, in little memory."""

import logging
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from episodes.examples import make_episode
from referee.config.datasets import FrameConfig
from referee.datasets.frames import build_frames
from referee.datasets.payload import RewardBinaryDataset
from referee.datasets.source import open_source
from referee.episodes import Episode, EpisodeStore
from referee.episodes.formats import pickled
from referee.episodes.formats.npy import NpyWriter
from referee.errors import RefereeError
from referee.labels.log import LabelLog, Word


def some(count: int = 10, steps: int = 10, success_from: int = 7, **options: object) -> list[Episode]:
    """Every other episode ends in success: 4 success frames of 11."""
    return [
        make_episode(steps, seed=i, success_from=[None, success_from][i % 2], id=f"e{i}", **options)  # type: ignore[arg-type]
        for i in range(count)
    ]


def samples(path: Path) -> list[tuple[str, int, int]]:
    """(episode, frame, label) of each sample."""
    dataset = RewardBinaryDataset(path)
    meta = dataset.metadata
    ids = [meta["episodes"][i] for i in meta["episode_of_sample"]]
    assert len(ids) == len(meta["frame_of_sample"]) == len(dataset)
    return list(zip(ids, meta["frame_of_sample"], dataset.labels.tolist(), strict=True))


def test_every_frame_is_once_on_one_side_with_its_own_label(tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path / "store")
    for episode in some():
        store.append(episode)
    summary = build_frames(store, tmp_path / "data", FrameConfig(split_seed=3))
    train, val = samples(tmp_path / "data/train.pt"), samples(tmp_path / "data/val.pt")
    assert sorted(train + val) == sorted((f"e{i}", t, int(i % 2 and t >= 7)) for i in range(10) for t in range(11))
    assert not {id for id, *_ in train} & {id for id, *_ in val}
    assert (summary.success, summary.fail, summary.unlabelled) == (20, 90, 0)
    # One episode of each kind is a fifth of each kind.
    assert (summary.val.episodes, summary.val.success, summary.val.fail) == (2, 4, 18)
    assert (summary.train.episodes, summary.train.success, summary.train.fail) == (8, 16, 72)
    assert summary.warnings == () and "16 success and 72 fail frames of 8 episodes" in str(summary)
    for side in ("train", "val"):
        dataset = RewardBinaryDataset(tmp_path / f"data/{side}.pt")
        dataset.verify()
        images = dataset.batch(range(len(dataset)))[0].numpy()
        for image, (id, frame, _) in zip(images, samples(dataset.path), strict=True):
            np.testing.assert_array_equal(image, store.read(id).observations["main_images"][frame])


def test_metadata_are_as_documented_and_more(tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path / "store")
    for episode in some():
        store.append(episode)
    summary = build_frames(store, tmp_path, FrameConfig(fail_success_ratio=2, val_split=0.2, split_seed=5))
    meta = torch.load(tmp_path / "train.pt", mmap=True, weights_only=True)["metadata"]
    assert meta["num_success_frames"] == 20 and meta["num_fail_frames"] == 90
    assert (meta["fail_success_ratio"], meta["val_split"], meta["random_seed"]) == (2, 0.2, 5)
    assert meta["num_train_samples"] == 16 + 32 and meta["num_val_samples"] == 22
    assert meta["source"] == str(store.root) and meta["split"] == "train" and meta["num_samples_per_episode"] == 0
    assert meta["cameras"] == ["front"] and meta["image_size"] == [8, 8]
    assert meta["content_hash"] == summary.train.content_hash != summary.val.content_hash


@pytest.mark.parametrize(("ratio", "fails"), [(0, 72), (2, 32), (0.5, 8), (1.3, 21), (4.5, 72), (100, 72), (0.001, 1)])
def test_failures_are_thinned_in_training_only(tmp_path: Path, ratio: float, fails: int) -> None:
    # 16 successes and 72 failures in training; 1.3 × 16 = 20.8.
    summary = build_frames(some(), tmp_path, FrameConfig(fail_success_ratio=ratio))
    assert (summary.train.success, summary.train.fail) == (16, fails)
    assert (summary.val.success, summary.val.fail) == (4, 18)
    kept = [(id, frame) for id, frame, label in samples(tmp_path / "train.pt") if not label]
    assert len(set(kept)) == fails
    if fails == 32:  # from everywhere, not from the first episodes
        assert len({id for id, _ in kept}) == 8


@pytest.mark.parametrize(("wanted", "frames"), [(3, [0, 5, 10]), (1, [10]), (6, [0, 2, 4, 6, 8, 10]), (0, range(11))])
def test_samples_of_an_episode_are_even_and_keep_the_last(tmp_path: Path, wanted: int, frames: list[int]) -> None:
    build_frames(some(), tmp_path, FrameConfig(num_samples_per_episode=wanted))
    found = samples(tmp_path / "train.pt") + samples(tmp_path / "val.pt")
    assert sorted(found) == sorted((f"e{i}", t, int(i % 2 and t >= 7)) for i in range(10) for t in frames)


def test_only_labelled_frames_are_used(tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path / "store")
    for episode in some(6):
        store.append(replace(episode, success=None))
    with pytest.raises(RefereeError, match="the data has no success frame"):
        build_frames(store, tmp_path / "data")
    assert not list((tmp_path / "data").iterdir())
    log = LabelLog.of(store)
    for i in range(4):
        log.append(f"e{i}", False, source="web", frames=(0, 4))
        log.append(f"e{i}", True, source="web", frames=(8, None))
    summary = build_frames(store, tmp_path / "data", FrameConfig(val_split=0.5))
    assert (summary.success, summary.fail, summary.unlabelled) == (12, 16, 66 - 28)
    found = samples(tmp_path / "data/train.pt") + samples(tmp_path / "data/val.pt")
    expected = [(f"e{i}", t, int(t >= 8)) for i in range(4) for t in (0, 1, 2, 3, 8, 9, 10)]
    assert sorted(found) == expected
    summary = build_frames(store, tmp_path / "data", FrameConfig(val_split=0.5, num_samples_per_episode=2))
    assert summary.train.success == summary.train.fail == 2  # frames 0 and 10 of two episodes


@settings(deadline=None, max_examples=20)
@given(
    order=st.permutations(range(8)), seed=st.integers(0, 3), ratio=st.sampled_from([0, 1, 2]), keep=st.integers(0, 5)
)
def test_the_order_of_episodes_does_not_matter(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], seed: int, ratio: float, keep: int
) -> None:
    folder, episodes = tmp_path_factory.mktemp("frames"), some(8)
    options = FrameConfig(split_seed=seed, fail_success_ratio=ratio, num_samples_per_episode=keep)
    build_frames(episodes, folder / "a", options)
    build_frames([episodes[i] for i in order], folder / "b", options)
    for side in ("train", "val"):
        assert sorted(samples(folder / f"a/{side}.pt")) == sorted(samples(folder / f"b/{side}.pt"))


def test_the_same_input_makes_the_same_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        build_frames(some(), tmp_path / name, FrameConfig(fail_success_ratio=2))
    for side in ("train", "val"):
        assert (tmp_path / f"a/{side}.pt").read_bytes() == (tmp_path / f"b/{side}.pt").read_bytes()
    build_frames(some(), tmp_path / "c", FrameConfig(fail_success_ratio=2, split_seed=7))
    assert (tmp_path / "c/train.pt").read_bytes() != (tmp_path / "a/train.pt").read_bytes()


def test_an_iterator_is_read_once(tmp_path: Path) -> None:
    def once() -> Iterator[Episode]:
        yield from some()

    build_frames(some(), tmp_path / "a")
    build_frames(once(), tmp_path / "b")
    for side in ("train", "val"):
        assert (tmp_path / f"a/{side}.pt").read_bytes() == (tmp_path / f"b/{side}.pt").read_bytes()
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["train.pt", "val.pt"]
    nameless = (replace(episode, meta=replace(episode.meta, id="")) for episode in some())
    build_frames(nameless, tmp_path / "c")
    meta = RewardBinaryDataset(tmp_path / "c/train.pt").metadata
    assert set(meta["episodes"]) <= {f"{i:06d}" for i in range(10)}


def test_several_cameras_stand_beside_each_other(tmp_path: Path) -> None:
    episodes = {episode.meta.id: episode for episode in some(extra_views=2)}
    build_frames(episodes.values(), tmp_path, cameras=("wrist", "front"))
    dataset = RewardBinaryDataset(tmp_path / "train.pt")
    assert dataset.metadata["cameras"] == ["wrist", "front"] and dataset.sample_shape == (2, 8, 8, 3)
    id, frame, _ = samples(tmp_path / "train.pt")[20]
    images = dataset.batch([20])[0].numpy()[0]
    np.testing.assert_array_equal(images[0], episodes[id].view("wrist")[frame])
    np.testing.assert_array_equal(images[1], episodes[id].view("front")[frame])
    with pytest.raises(RefereeError, match="no camera 'top'"):
        build_frames(episodes.values(), tmp_path, cameras=("top",))


def test_one_long_episode_is_cut(tmp_path: Path) -> None:
    long = make_episode(99, seed=1, id="long")
    long = replace(long, success=np.arange(100) % 20 >= 10)
    build_frames([long], tmp_path, FrameConfig(val_split=0.2), gap=4)
    train = [frame for _, frame, _ in samples(tmp_path / "train.pt")]
    val = [frame for _, frame, _ in samples(tmp_path / "val.pt")]
    assert val == list(range(val[0], val[0] + 20))
    assert min(abs(a - b) for a in train for b in val) == 5
    labels = samples(tmp_path / "train.pt") + samples(tmp_path / "val.pt")
    assert all(label == int(frame % 20 >= 10) for _, frame, label in labels)


def test_a_copied_episode_stays_on_the_side_of_its_original(tmp_path: Path) -> None:
    original = some(4)
    copies = [replace(episode, meta=replace(episode.meta, id=f"copy of {episode.meta.id}")) for episode in original]
    build_frames(original + copies, tmp_path)
    train, val = (set(RewardBinaryDataset(tmp_path / f"{side}.pt").metadata["episodes"]) for side in ("train", "val"))
    assert len(train) + len(val) == 8 and val
    for side in (train, val):
        assert {f"copy of {id}" for id in side if id.startswith("e")} == {id for id in side if id.startswith("copy")}


def test_wrong_input_leaves_the_old_files(tmp_path: Path) -> None:
    build_frames(some(), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    other = [*some(9), make_episode(10, seed=9, pixels=7, success_from=7, id="e9")]
    blind = [*some(9), make_episode(10, seed=9, pixels=0, success_from=7, id="e9")]
    for episodes, reason in (
        (other, "cannot be in one dataset"),
        (blind, "e9 holds no images"),
        ([], "holds no episodes"),
        (some() * 2, "there twice"),
        ([make_episode(10, seed=i, success_from=None, id=f"e{i}") for i in range(4)], "no success frame"),
    ):
        with pytest.raises(RefereeError, match=reason):
            build_frames(episodes, tmp_path)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    for wrong in ({"fail_success_ratio": -1}, {"val_split": 1}):
        with pytest.raises(RefereeError):
            build_frames(some(), tmp_path, FrameConfig(**wrong))  # type: ignore[arg-type]
    for none in ({"cameras": ()}, {"gap": -1}):
        with pytest.raises(RefereeError):
            build_frames(some(), tmp_path, **none)  # type: ignore[arg-type]


def test_suspicions_are_said_aloud(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    episodes = [replace(e, success=~e.success) for e in some() if e.success is not None]
    with caplog.at_level(logging.WARNING):
        summary = build_frames(episodes, tmp_path)
    assert any("inverted in 5 of 5 episodes" in line for line in summary.warnings)
    assert any("before anything has moved in 10 of 10" in line for line in summary.warnings)
    assert "inverted" in caplog.text and "warning: " in str(summary)


@pytest.mark.slow
def test_memory_is_bounded(tmp_path: Path) -> None:
    """100 episodes of 51 frames are 150 MB; one is 1.5 MB."""

    def many() -> Iterator[Episode]:
        for i in range(100):
            yield make_episode(50, pixels=100, extra_views=0, seed=i, success_from=[None, 30][i % 2], id=f"e{i}")

    tracemalloc.start()
    build_frames(many(), tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6
    assert RewardBinaryDataset(tmp_path / "train.pt").metadata["num_train_samples"] == 80 * 51


@pytest.mark.parametrize("form", ["native", "data", "pickle", "frames", "npy", "log"])
def test_what_was_seen_while_an_arm_held_is_no_failure(tmp_path: Path, form: str) -> None:
    """It may be the old picture of a success: whatever way the episodes take, such frames are left out."""
    held = np.arange(11) >= 9
    episodes = [
        replace(each, success=each.success & ~held, signals={**each.signals, "held": held})  # type: ignore[operator]
        for each in some(4)
    ]
    store = EpisodeStore(tmp_path / "store")
    for episode in episodes:
        store.append(episode)
    source: object = store
    if form == "log":
        LabelLog.of(store).extend([Word("e0", False, 0, "keyboard", "me")])
    elif form == "data":
        pickled.write_data(tmp_path / "data.pkl", store)
        source = open_source(tmp_path / "data.pkl")
    elif form != "native":
        folder = tmp_path / "files"
        writers = {
            "pickle": pickled.EpisodePickleWriter(folder), "frames": pickled.FramesPickleWriter(folder),
            "npy": NpyWriter(folder / "positive", folder / "negative"),
        }  # fmt: skip
        for episode in store:
            writers[form].append(episode)  # type: ignore[attr-defined]
        source = open_source(folder)
    summary = build_frames(source, tmp_path / "out", FrameConfig(val_split=0.5))  # type: ignore[arg-type]
    assert (summary.success, summary.fail) == (4, 32)
    left_out = 0 if form == "npy" else 8  # which has no word for what is not known
    assert (summary.unlabelled, summary.held) == (left_out, left_out)
    assert form == "npy" or "8 of them left out because the arm held" in str(summary)
