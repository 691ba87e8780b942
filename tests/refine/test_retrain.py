"""A model that is fooled learns from answers in seconds, forgets nothing, and takes over only if it is better."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from referee.datasets.payload import PayloadWriter
from referee.errors import RefereeError
from referee.metrics.calibration import nll
from referee.models import Artifact, Calibration, ModelSpec, Reference, build
from referee.models.artifact import embed
from referee.refine.labellers import Truth
from referee.refine.loop import RefineOptions, Refiner, read_rounds
from referee.refine.retrain import REPEATS, SHARE, Base, Compared, Labelled, Mixed, retrain
from referee.training.data import FrameSet
from referee.training.fit import fit
from referee.training.options import NO_AUGMENTATION, FitOptions
from referee.training.source import ImageSource

SIZE = 16


def frames(count: int, seed: int, *, trick: bool = False) -> Labelled:
    """A success is a bright square in the middle; the trick is one in the corner, which is none."""
    random = np.random.default_rng(seed)
    images = random.integers(0, 60, (count, 1, SIZE, SIZE, 3)).astype(np.uint8)
    labels = np.arange(count) % 2
    images[labels == 1, :, 5:11, 5:11] = 220
    if trick:
        labels[:] = 0
        images[:, :, 5:11, 5:11] = 220
        images[:, :, :4, :4] = 220
    return Labelled(images, labels.astype(np.int64))


def write(path: Path, data: Labelled, episode: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    where = {"cameras": ["front"], "episodes": [f"{episode}{i}" for i in range(len(data) // 4)],
             "episode_of_sample": [i // 4 for i in range(len(data))],
             "frame_of_sample": [i % 4 for i in range(len(data))]}  # fmt: skip
    with PayloadWriter(path) as writer:
        writer.add(data.images, data.labels)
        writer.finish(where)
    return path


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """A model that knows squares in the middle, and nothing of the trick."""
    folder = tmp_path_factory.mktemp("refine")
    train, val = write(folder / "train.pt", frames(256, 0), "a"), write(folder / "val.pt", frames(64, 1), "b")
    torch.manual_seed(0)
    net = build(ModelSpec(arch="resnet10", width=4, image_size=SIZE, cameras=("front",), hidden_dim=8))
    options = FitOptions(max_steps=60, best_metric="train_accuracy", num_threads=1, augment=NO_AUGMENTATION)
    fit(net, ImageSource(FrameSet([train])), None, options)
    images = frames(256, 0).images
    reference = Reference.of(embed(net.eval(), images), images).calibrated(embed(net, frames(64, 1).images))
    made = Artifact(net.eval(), Calibration(), {"files": {"train": [str(train)], "val": [str(val)]}}, reference)
    made.save(folder / "model")
    return made


def again(artifact: Artifact, learn: Labelled, recent: Labelled) -> tuple[Artifact, Compared]:
    found = retrain(
        artifact, Base.of(artifact, None), learn, recent, mode="terminal", steps=40, lr=3e-3, seed=1, threads=1,
        ends=recent,
    )  # fmt: skip
    return found.artifact, found.compared


def test_a_fooled_model_is_repaired_and_forgets_nothing(artifact: Artifact) -> None:
    tricks, fresh = frames(48, 2, trick=True), frames(64, 5)
    assert (artifact.logits(tricks.images) > 0).mean() > 0.5, "it should be fooled first"
    both = Labelled(np.concatenate([frames(16, 3).images, frames(16, 4, trick=True).images]),
                    np.concatenate([frames(16, 3).labels, np.zeros(16, np.int64)]))  # fmt: skip
    before = [each.detach().clone() for each in artifact.model.parameters()]
    new, compared = again(artifact, tricks, both)
    assert compared.better and compared.frames == 32
    assert compared.accuracy[1] > compared.accuracy[0] and compared.loss[1] < compared.loss[0]
    assert (new.logits(frames(48, 6, trick=True).images) < 0).mean() > 0.9  # other tricks than those it saw
    assert ((new.logits(fresh.images) > 0) == (fresh.labels == 1)).mean() > 0.95
    assert all(torch.equal(a, b) for a, b in zip(before, artifact.model.parameters(), strict=True)), "the old one stays"
    assert new.reference is not None and artifact.reference is not None
    assert np.median(new.distance(tricks.images)) < np.median(artifact.distance(tricks.images)), "tricks are known now"


def test_frames_of_the_first_training_are_not_compared_on(artifact: Artifact) -> None:
    """A recording of the training, asked about again, would praise whoever learned it."""
    known, fresh = frames(256, 0), frames(24, 8)
    recent = Labelled(
        np.concatenate([known.images[:40], fresh.images]), np.concatenate([known.labels[:40], fresh.labels])
    )
    _, compared = again(artifact, frames(24, 7, trick=True), recent)
    assert compared.frames == 24
    _, compared = again(artifact, frames(24, 7, trick=True), Labelled(known.images[:40], known.labels[:40]))
    assert compared.frames == 0 and not compared.better


def test_the_comparison_is_that_of_the_library(artifact: Artifact) -> None:
    recent = frames(24, 8)
    new, compared = again(artifact, frames(24, 7, trick=True), recent)
    for model, loss in ((artifact, compared.loss[0]), (new, compared.loss[1])):
        assert loss == pytest.approx(nll(recent.labels, model.logits(recent.images), model.calibration.temperature))


@pytest.mark.parametrize(
    ("loss", "area", "better"),
    [((0.3, 0.2), (0.9, 0.9), True), ((0.2, 0.2), (0.9, 0.99), False), ((0.3, 0.2), (0.9, 0.88), False),
     ((0.3, 0.4), (0.9, 0.95), False), ((float("nan"), float("nan")), (0.9, 0.9), False)],
)  # fmt: skip
def test_only_a_better_model_takes_over(loss: tuple[float, float], area: tuple[float, float], better: bool) -> None:
    assert Compared(8, loss, (1, 1), area).better is better


def test_answers_are_half_of_what_is_learned_or_as_much_as_repeating_allows(artifact: Artifact) -> None:
    base = Base.of(artifact, None).train
    for count in (4, 64, 400):
        mixed = Mixed(base, frames(count, 9), seed=0)
        share = 1 - 256 / len(mixed)
        times = (len(mixed) - 256) / count
        assert times == min(REPEATS, max(1, round(SHARE / (1 - SHARE) * 256 / count))) and share > 0.15
    rows = np.array([0, 255, 256, len(mixed) - 1])
    images, labels = mixed.batch(rows)
    assert images.shape == (4, SIZE, SIZE, 3) and (labels == mixed.labels[rows]).all()
    assert (images[2].numpy() == frames(400, 9).images[0, 0]).all()


def test_without_its_frames_a_model_cannot_be_refined(artifact: Artifact, tmp_path: Path) -> None:
    lost = replace(artifact, provenance={"files": {"train": ["/nowhere/train.pt"], "val": ["/nowhere/val.pt"]}})
    with pytest.raises(
        RefereeError, match=r"/nowhere/train.pt is not there: set reward.refine.data \(--data of refine run\)"
    ):
        Base.of(lost, None)
    with pytest.raises(RefereeError, match="the artifact names none"):
        Base.of(replace(artifact, provenance={}), None)


def refiner(artifact: Artifact, folder: Path, **options: int) -> Refiner:
    chosen = RefineOptions(**{"budget": 96, "ask": 24, "steps": 40, "threads": 1, **options}, lr=3e-3)  # type: ignore[arg-type]
    return Refiner(artifact, folder, Truth(), chosen, mode="terminal")


def show(made: Refiner, seed: int) -> None:
    """A policy that found the trick, beside a little of everything else."""
    parts = [frames(60, seed, trick=True), frames(60, seed + 1)]
    images = np.concatenate([each.images for each in parts])
    logits, summary = made.artifact.seen(images)
    said = 1 / (1 + np.exp(-logits / made.artifact.calibration.temperature))
    made.watch(images, summary, said, np.concatenate([each.labels for each in parts]) == 1)


def test_rounds_ask_learn_and_swap_within_the_budget(artifact: Artifact, tmp_path: Path) -> None:
    made = refiner(artifact, tmp_path)
    for number in range(6):
        show(made, 100 + 10 * number)
        made.round(1000 * (number + 1))
    assert made.book.asked == 96 == made.rounds[-1].answered and made.left == 0
    assert made.rounds[0].fooled > 0 and made.version >= 1, "it was fooled, and repaired"
    assert (made.artifact.logits(frames(64, 999, trick=True).images) < 0).mean() > 0.9
    stored = Artifact.load(tmp_path / "versions" / f"v{made.version}")
    assert stored.provenance["refined"]["version"] == made.version
    assert all(
        torch.equal(a, b) for a, b in zip(stored.model.parameters(), made.artifact.model.parameters(), strict=True)
    )
    assert read_rounds(tmp_path) == made.rounds
    account = made.account(120.0)
    assert account["labels"] == 96 and account["label_minutes"] == pytest.approx(96 * 2 / 60)
    assert account["robot_minutes"] == 2


def test_nothing_new_means_no_round(artifact: Artifact, tmp_path: Path) -> None:
    made = refiner(artifact, tmp_path)
    assert made.round(1) is None
    show(made, 1)
    assert made.round(2) is not None and made.round(3) is None


def test_frames_to_compare_on_are_recent_random_and_never_learned_from(artifact: Artifact, tmp_path: Path) -> None:
    made = refiner(artifact, tmp_path, budget=240)
    for number in range(5):
        show(made, 100 + 10 * number)
        made._ask(number)
        learn, recent, even = made._answers()
        hashes = [{image.tobytes() for image in part.images} for part in (learn, recent, even)]
        assert not hashes[0] & hashes[1] and hashes[1] <= hashes[2]
        assert len(learn) + len(recent) == 24 * (number + 1)
    sheets = made.book.sheets()
    newest = {image.tobytes() for sheet in sheets[-3:] for image in sheet.images[sheet.of("random")]}
    assert hashes[1] == newest


def test_mined_failures_teach_without_a_question(artifact: Artifact, tmp_path: Path) -> None:
    made = refiner(artifact, tmp_path, budget=0)
    tricks = frames(64, 50, trick=True).images
    made.mine(tricks, np.ones(64, np.float32), 0)
    done = made.round(0)
    assert done is not None and done.swapped and done.answered == 0 and made.book.asked == 0
    assert (made.artifact.logits(frames(32, 51, trick=True).images) < 0).mean() > 0.9


def test_rounds_of_a_broken_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "rounds.jsonl").write_text(json.dumps({"step": 1}) + "\n")
    with pytest.raises(RefereeError, match=r"rounds.jsonl is cut off or broken"):
        read_rounds(tmp_path)
    with pytest.raises(RefereeError, match="within its budget"):
        RefineOptions(budget=10, ask=24)
