"""Every form of data gives the same frames; what cannot be learned from is refused with one line."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from referee.config.datasets import DataConfig, FrameConfig
from referee.datasets.fingerprint import of_artifact
from referee.datasets.frames import build_frames
from referee.episodes import Episode, EpisodeStore, Meta
from referee.episodes.formats.npy import NpyWriter
from referee.episodes.formats.pickled import EpisodePickleWriter
from referee.errors import RefereeError
from referee.training.data import Data, FrameSet, open_data
from referee.training.debug import save_by_label, save_by_verdict, save_positives


def episodes(count: int = 8, *, pixels: int = 8, cameras: Sequence[str] = ("front", "side")) -> list[Episode]:
    """Episodes of 6 frames, every other one with success in its last two."""
    random = np.random.default_rng(0)
    made = []
    for number in range(count):
        views = random.integers(0, 256, (6, len(cameras), pixels, pixels, 3), dtype=np.uint8)
        observations = {"main_images": views[:, 0].copy()}
        if len(cameras) > 1:
            observations["extra_view_images"] = views[:, 1:].copy()
        success = (np.arange(6) >= 4) & bool(number % 2)
        zeros = np.zeros(5, bool)
        meta = Meta(id=f"e{number}", cameras=tuple(cameras), episode=number)
        made.append(
            Episode(observations, np.zeros((5, 2), np.float32), np.zeros(5, np.float32), zeros, zeros, success,
                    meta=meta)
        )  # fmt: skip
    return made


def filled(folder: Path, **changes: Any) -> Path:
    EpisodeStore(folder).append_many(episodes(**changes))
    return folder


def counts(data: Data) -> list[tuple[int, int]]:
    assert data.val is not None
    return [(int(side.labels.sum()), len(side)) for side in (data.train, data.val)]


def test_every_form_gives_the_same_number_of_frames(tmp_path: Path) -> None:
    store = filled(tmp_path / "store")
    built = tmp_path / "built"
    build_frames(EpisodeStore(store), built, FrameConfig(val_split=0.25), cameras=("front", "side"))
    positive, negative = tmp_path / "npy" / "positive", tmp_path / "npy" / "negative"
    npy = NpyWriter(positive, negative)
    for episode in episodes():
        npy.append(episode)
    pickles = EpisodePickleWriter(tmp_path / "pickles")
    for episode in episodes():
        pickles.append(episode)
    said: list[str] = []
    forms = {
        "store": DataConfig(data_path=store, val_split=0.25),
        "built": DataConfig(data_path=built),
        "files": DataConfig(train_data_paths=(built / "train.pt",), val_data_paths=(built / "val.pt",)),
        "npy": DataConfig(positive_dir=positive, negative_dir=negative, val_split=0.25),
        "npy folder": DataConfig(data_path=tmp_path / "npy", val_split=0.25),
        "pickles": DataConfig(data_path=tmp_path / "pickles", val_split=0.25),
    }
    for name, options in forms.items():
        data = open_data(options, tmp_path / name.replace(" ", "_") / "frames", said.append)
        assert counts(data) == [(6, 36), (2, 12)], name
        assert data.train.cameras == ("front", "side"), name
        images, labels = data.train.batch([0, 35])
        assert images.shape == (2, 2, 8, 8, 3) and images.dtype == torch.uint8 and len(labels) == 2
    text = "\n".join(said)
    assert f"{positive}: 4 trajectories, 24 frames, label=1: 8, label=0: 16" in text
    assert f"{negative}: 4 trajectories, 24 frames, label=1: 0, label=0: 24" in text


def test_cameras_can_be_chosen(tmp_path: Path) -> None:
    store = filled(tmp_path / "store")
    both = open_data(DataConfig(data_path=store), tmp_path / "a").train
    side = open_data(DataConfig(data_path=store, cameras=("side",)), tmp_path / "b").train
    torch.testing.assert_close(side.batch(range(5))[0], both.batch(range(5))[0][:, 1])
    files = [part.path for part in both.parts]
    assert torch.equal(FrameSet(files, ("side",)).batch([3, 1])[0], both.batch([3, 1])[0][:, 1])
    assert torch.equal(FrameSet(files, ("base_camera",)).batch([3])[0], both.batch([3])[0][:, 0])
    swapped = FrameSet(files, ("side", "front"))
    assert torch.equal(swapped.batch([3])[0], both.batch([3])[0].flip(1))
    assert len({swapped.content_hash, both.content_hash, side.content_hash}) == 3
    with pytest.raises(RefereeError, match="no camera 'wrist': it has front, side"):
        FrameSet(files, ("wrist",))
    with pytest.raises(RefereeError, match="wrist"):
        open_data(DataConfig(data_path=store, cameras=("wrist",)), tmp_path / "c")


def test_an_artifact_finds_its_frames_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path / "store")
    monkeypatch.chdir(tmp_path)
    data = open_data(DataConfig(data_path=Path("store")), Path("frames"))
    assert data.provenance()["files"]["train"] == [str(tmp_path / "frames" / "train.pt")]


def test_an_artifact_knows_which_tasks_it_learned(tmp_path: Path) -> None:
    about = ({"description": "Lift it.", "task": "Lift"}, {"task": "Push"}, {})
    found = [replace(each, meta=replace(each.meta, **about[i % 3])) for i, each in enumerate(episodes(12))]
    EpisodeStore(tmp_path / "store").append_many(found)
    data = open_data(DataConfig(data_path=tmp_path / "store"), tmp_path / "frames")
    assert data.provenance()["tasks"] == ["Lift it.", "Push"]


def test_several_files_are_one_set(tmp_path: Path) -> None:
    store = filled(tmp_path / "store")
    data = open_data(DataConfig(data_path=store), tmp_path / "a")
    assert data.val is not None
    joined = FrameSet([tmp_path / "a" / "train.pt", tmp_path / "a" / "val.pt"])
    first = len(data.train)
    assert len(joined) == 48 and torch.equal(joined.labels, torch.cat([data.train.labels, data.val.labels]))
    images, labels = joined.batch(np.array([first + 1, 2, first]))
    assert torch.equal(images[1], data.train.batch([2])[0][0])
    assert torch.equal(images[[0, 2]], data.val.batch([1, 0])[0])
    assert torch.equal(labels, joined.labels[[first + 1, 2, first]])
    assert len(joined.places()) == 48 and joined.episodes() == [f"e{number}" for number in range(8)]


def test_without_validation_all_frames_are_for_training(tmp_path: Path) -> None:
    data = open_data(DataConfig(data_path=filled(tmp_path / "store"), val_split=0.0), tmp_path / "a")
    assert data.val is None and len(data.train) == 48


def test_where_a_split_fails_the_way_without_is_named_and_works(tmp_path: Path) -> None:
    one = DataConfig(data_path=filled(tmp_path / "store", count=2))
    with pytest.raises(RefereeError, match=r"--val-split 0 \(in a configuration data\.val_split=0 or runner"):
        open_data(one, tmp_path / "a")
    data = open_data(replace(one, val_split=0.0), tmp_path / "b")
    assert data.val is None and len(data.train) == 12 and not (tmp_path / "b/val.pt").exists()


def test_provenance_names_episodes_and_hashes(tmp_path: Path) -> None:
    data = open_data(DataConfig(data_path=filled(tmp_path / "store")), tmp_path / "a")
    found = data.provenance()
    ids = [set(found["episodes"][side]) for side in ("train", "val")]
    assert not ids[0] & ids[1] and ids[0] | ids[1] == {f"e{number}" for number in range(8)}
    assert all(value.startswith("sha256:") for value in found["dataset"].values())


def payload(path: Path, labels: list[int], *, pixels: int = 8, seed: int = 0, **more: Any) -> Path:
    random = np.random.default_rng(seed)
    images = [torch.from_numpy(random.random((3, pixels, pixels), dtype=np.float32)) for _ in labels]
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"images": images, "labels": labels, "metadata": {}, **more}, path)
    return path


def test_foreign_files(tmp_path: Path) -> None:
    options = DataConfig(
        train_data_paths=(payload(tmp_path / "train.pt", [0, 1, 0, 1]),),
        val_data_paths=(payload(tmp_path / "val.pt", [0, 1], seed=1),),
    )
    data = open_data(options, tmp_path)
    assert data.train.cameras == ("main_images",) and data.train.batch([0])[0].shape == (1, 8, 8, 3)
    assert data.provenance()["episodes"] == {"train": [], "val": []}


def test_refusals(tmp_path: Path) -> None:
    good = payload(tmp_path / "good.pt", [0, 1, 0, 1])

    def refused(pattern: str, **options: Any) -> None:
        with pytest.raises(RefereeError, match=pattern) as caught:
            open_data(DataConfig(**options), tmp_path / "out")
        assert "\n" not in str(caught.value)

    refused("does not exist", data_path=tmp_path / "nothing")
    refused("no success frame", train_data_paths=(payload(tmp_path / "fails.pt", [0, 0]),))
    refused("no fail frame", train_data_paths=(payload(tmp_path / "wins.pt", [1, 1]),))
    refused("validation split has no success", train_data_paths=(good,),
            val_data_paths=(payload(tmp_path / "dull.pt", [0, 0], seed=3),))  # fmt: skip
    refused("do not make a dataset", train_data_paths=(payload(tmp_path / "empty.pt", []),))
    refused("16x16 px", train_data_paths=(good, payload(tmp_path / "large.pt", [0, 1], pixels=16)))
    refused("build both in one go", train_data_paths=(good,),
            val_data_paths=(payload(tmp_path / "larger.pt", [0, 1], pixels=16),))  # fmt: skip
    refused("most frames of episode good are also in", train_data_paths=(good,), val_data_paths=(good,))
    store = filled(tmp_path / "store")
    open_data(DataConfig(data_path=store), tmp_path / "mine")
    refused("frame .* of episode e. and .* more are also in", train_data_paths=(tmp_path / "mine" / "train.pt",),
            val_data_paths=(tmp_path / "mine" / "train.pt",))  # fmt: skip
    EpisodeStore(tmp_path / "none")
    refused("holds no episodes", data_path=tmp_path / "none")
    for wrong, says in (
        ({}, "given once"),
        ({"data_path": store, "train_data_paths": (good,)}, "given once"),
        ({"positive_dir": store}, "give both"),
    ):
        with pytest.raises(RefereeError, match=says):
            open_data(DataConfig(**wrong), tmp_path / "out")
    with pytest.raises(RefereeError, match="val_split"):
        DataConfig(data_path=store, val_split=1.0)


def test_mixed_sizes_in_a_store_are_refused(tmp_path: Path) -> None:
    store = EpisodeStore(filled(tmp_path / "store"))
    store.append_many([replace(e, meta=replace(e.meta, id=f"big{e.meta.id}")) for e in episodes(2, pixels=16)])
    with pytest.raises(RefereeError, match="cannot be in one dataset"):
        open_data(DataConfig(data_path=tmp_path / "store"), tmp_path / "out")
    assert not (tmp_path / "out" / "train.pt").exists()


def test_pictures_have_the_documented_names(tmp_path: Path) -> None:
    npy = NpyWriter(tmp_path / "positive", tmp_path / "negative")
    for episode in episodes(4):
        npy.append(episode)
    count = save_positives((tmp_path / "positive", tmp_path / "negative"), "base_camera", tmp_path / "vis")
    names = sorted(path.name for path in (tmp_path / "vis").iterdir())
    assert count == 4 and names[:2] == ["positive_000000_frame004.png", "positive_000000_frame005.png"]
    with pytest.raises(RefereeError, match="--image-key"):
        save_positives((tmp_path / "positive", tmp_path / "negative"), "wrist", tmp_path / "vis")

    train = open_data(DataConfig(data_path=filled(tmp_path / "store")), tmp_path / "a").train
    assert save_by_label(train, tmp_path / "debug", limit=5) == 5 + 5
    assert all("_frame00" in path.name for path in (tmp_path / "debug").rglob("*.png"))
    probabilities = np.linspace(0, 1, len(train)).astype(np.float32)
    save_by_verdict(train, probabilities, 0.5, tmp_path / "verdict", limit=3)
    wins = sorted(path.name for path in (tmp_path / "verdict" / "resnet_success").iterdir())
    assert wins[-1] == f"{len(train) - 1:06d}_prob1.0000.png" and len(wins) == 3
    assert (tmp_path / "verdict" / "resnet_fail" / "000000_prob0.0000.png").exists()


def test_a_copy_under_another_id_does_not_choose_the_model(tmp_path: Path) -> None:
    """The files name different episodes, and the frames are the same."""
    original = episodes()
    renamed = [replace(each, meta=replace(each.meta, id=f"new{i}")) for i, each in enumerate(original)]
    fresh = [replace(each, observations={"main_images": 255 - each.view("front")}) for each in renamed]
    fresh = [replace(each, meta=replace(each.meta, cameras=("front",))) for each in fresh]
    for name, some in (("a", original), ("b", renamed), ("c", fresh)):
        build_frames(some, tmp_path / name, FrameConfig(val_split=0))
    train, copy, other = ((tmp_path / name / "train.pt",) for name in "abc")
    with pytest.raises(RefereeError, match=r"b/train\.pt: most frames of episode new0 are also in .*a/train\.pt"):
        open_data(DataConfig(train_data_paths=train, val_data_paths=copy), tmp_path / "out")
    data = open_data(DataConfig(train_data_paths=train, val_data_paths=other), tmp_path / "out")
    found = data.provenance()["fingerprint"]
    seen, chosen = (of_artifact({"fingerprint": found}, side) for side in ("train", "val"))
    assert seen is not None and chosen is not None
    pictures = [each.view("front") for each in (renamed[0], fresh[0])]
    assert [seen.match(each) for each in pictures] == ["equal", ""]
    assert [chosen.match(each) for each in pictures] == ["", "equal"]
