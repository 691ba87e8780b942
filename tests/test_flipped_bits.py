"""One flipped bit in any file that Referee writes is refused in one line, or changes nothing that is read."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from episodes.examples import make_episode
from referee.config.datasets import WindowConfig
from referee.datasets.payload import PayloadWriter, RewardBinaryDataset
from referee.datasets.windows import build_windows
from referee.errors import RefereeError
from referee.models import Artifact, Calibration, ModelSpec, build
from referee.models.reference import Reference
from referee.models.weights import read_state
from referee.refine.loop import ROUNDS, Round, read_rounds, write_rounds
from referee.rl import checkpoint as policy_checkpoint
from referee.rl.checkpoint import Checkpoint
from referee.rl.replay import Replay
from referee.rl.replay_file import ReplayFiles
from referee.runs.logbook import METRICS, MetricsFile, read_metrics
from referee.training import checkpoint as training_checkpoint
from referee.training.features import cached_features
from referee.training.vlm.segments import read_segments
from rl.lived import World

FLIPS = 50
random = np.random.default_rng(0)


def plain(value: Any) -> Any:
    """The same as values that can be compared."""
    if isinstance(value, torch.Tensor):
        return plain(value.numpy())
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def attempt(read: Callable[[], Any]) -> tuple[Any, str | None]:
    """What is read, or the line of the refusal."""
    try:
        return plain(read()), None
    except RefereeError as error:
        return None, str(error)


def assert_no_flip_passes(path: Path, read: Callable[[], Any], *, unread: float = 0.0) -> None:
    """Flip bits at seeded places.

    unread: the share of them that may fall into bytes that nobody reads; what is read is then the same.
    """
    whole, before = path.read_bytes(), plain(read())
    accepted = 0
    for seed in range(FLIPS):
        bits = np.random.default_rng(seed)
        place, bit = int(bits.integers(len(whole))), int(bits.integers(8))
        changed = bytearray(whole)
        changed[place] ^= 1 << bit
        path.write_bytes(changed)
        after, refusal = attempt(read)
        if refusal is not None:
            assert "\n" not in refusal and path.name in refusal, refusal
            continue
        accepted += 1
        assert after == before, f"bit {bit} of byte {place} of {len(whole)} changes what is read, and nobody notices"
    path.write_bytes(whole)
    assert plain(read()) == before
    assert accepted <= unread * FLIPS, f"{accepted} of {FLIPS} flips were accepted"


@pytest.fixture
def policy_folder(tmp_path: Path) -> Path:
    tensors = {"0.weight": torch.randn(40, 30), "0.bias": torch.randn(40)}
    moments = {f"{i}.exp_avg": torch.randn(40, 30) for i in range(2)}
    meta = {"task": "Reach", "iteration": 3, "steps": 4800, "success": 0.53, "policy": {"hidden": [64, 64]}}
    arrays = {"env.qpos": random.standard_normal((16, 9)), "seed": np.arange(6, dtype=np.uint64)}
    policy_checkpoint.save(tmp_path / "step_1", Checkpoint(tensors, moments, arrays, meta))
    return tmp_path / "step_1"


@pytest.mark.parametrize(
    "name", ["policy.safetensors", "optimizer.safetensors", "state.safetensors", "meta.json", "checksums.json"]
)
def test_policy_checkpoint(policy_folder: Path, name: str) -> None:
    def read() -> Any:
        return vars(policy_checkpoint.load(policy_folder))

    assert_no_flip_passes(policy_folder / name, read)


def test_a_policy_checkpoint_without_checksums_is_still_read(policy_folder: Path) -> None:
    before = plain(vars(policy_checkpoint.load(policy_folder)))
    (policy_folder / "checksums.json").unlink()
    assert plain(vars(policy_checkpoint.load(policy_folder))) == before


@pytest.fixture
def artifact_folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    model = build(ModelSpec(arch="resnet10", width=8, hidden_dim=8, image_size=24, cameras=("front",))).eval()
    features = random.standard_normal((300, 16)).astype(np.float32)
    frames = random.integers(0, 256, (64, 1, 24, 24, 3), np.uint8)
    reference = Reference.of(features, frames)
    calibration = Calibration(temperature=0.7, threshold=0.83, gate_k=2, gate_n=3, target_episode_fpr=0.01)
    Artifact(model, calibration, {"seed": 7, "episodes": {"train": ["a", "b"]}}, reference).save(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize(
    "name", ["config.json", "calibration.json", "provenance.json", "reference.safetensors", "model.safetensors"]
)
def test_artifact(artifact_folder: Path, name: str) -> None:
    def read() -> Any:
        artifact = Artifact.load(artifact_folder)
        reference = artifact.reference
        assert reference is not None
        return [
            artifact.calibration.to_json(), artifact.provenance, artifact.spec.to_json(),
            dict(artifact.model.state_dict()), reference.arrays(),
        ]  # fmt: skip

    assert_no_flip_passes(artifact_folder / name, read)


def test_a_threshold_edited_by_hand_is_refused_with_the_two_ways_to_change_it(artifact_folder: Path) -> None:
    path = artifact_folder / "calibration.json"
    path.write_text(path.read_text().replace("0.83", "0.53"))
    with pytest.raises(RefereeError) as caught:
        Artifact.load(artifact_folder)
    assert str(caught.value) == (
        f"{path}: has changed since it was written (checksum): bring it back from a copy; if you edited it on purpose, "
        "set reward.reward_threshold instead, or remove its key checksum"
    )
    values = json.loads(path.read_text())
    del values["checksum"]
    path.write_text(json.dumps(values))
    assert Artifact.load(artifact_folder).calibration.threshold == 0.53


def test_frames_of_a_dataset(tmp_path: Path) -> None:
    path = tmp_path / "train.pt"
    with PayloadWriter(path) as writer:
        writer.add(random.integers(0, 256, (20, 1, 8, 8, 3), np.uint8), np.arange(20) % 2)
        writer.finish({"source": "test"})

    def read() -> Any:
        data = RewardBinaryDataset(path)
        images, labels = data.batch(range(len(data)))
        return [images, labels, data.metadata]

    assert_no_flip_passes(path, read, unread=0.2)


def test_checkpoint_and_weights_of_a_reward_training(tmp_path: Path) -> None:
    state = {"weight": torch.randn(30, 20), "bias": torch.randn(30)}
    values = {"epoch": 3, "model_state_dict": state, "optimizer_state_dict": {"state": {}}, "train_loss": 0.2,
              "train_acc": 0.9}  # fmt: skip
    path = tmp_path / "checkpoint.pt"
    training_checkpoint.save(path, values)
    assert_no_flip_passes(path, lambda: training_checkpoint.load(path), unread=0.5)  # torch pads, and writes dates
    torch.save(state, path)
    assert_no_flip_passes(path, lambda: read_state(path), unread=0.5)


def test_numbers_of_a_run(tmp_path: Path) -> None:
    path = tmp_path / METRICS
    log = MetricsFile(path)
    for step in range(20):
        log.write({"env/success": step / 20, "train/loss": 1.5 / (step + 1)}, 100 * step)
    log.close()
    assert_no_flip_passes(path, lambda: read_metrics(tmp_path))


def test_numbers_after_a_cut_off_line_go_on_in_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / METRICS
    for step in (1, 2):
        log = MetricsFile(path)
        log.write({"loss": 0.5}, step)
        log.close()
        if step == 1:
            whole = path.read_bytes()
            path.write_bytes(whole + whole[:12])
    assert read_metrics(tmp_path) == [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.5}]
    (tmp_path / METRICS).write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "lo')  # of an older version
    assert read_metrics(tmp_path) == [{"step": 1, "loss": 0.5}]


def test_rounds_of_a_refinement(tmp_path: Path) -> None:
    values = {"version": 1, "asked": 24, "answered": 24, "fooled": 3, "missed": 1, "swapped": True, "compared": None,
              "seconds": {"asking": 1.5}}  # fmt: skip
    rounds = [Round(step=100 * number, **values) for number in range(5)]
    write_rounds(tmp_path / ROUNDS, rounds)
    assert read_rounds(tmp_path) == rounds
    assert_no_flip_passes(tmp_path / ROUNDS, lambda: [vars(each) for each in read_rounds(tmp_path)])


def test_windows_for_a_vision_language_model(tmp_path: Path) -> None:
    progress = np.concatenate([np.linspace(0, 1, 7), np.linspace(1, 0, 6)]).astype(np.float32)
    episodes = [replace(make_episode(12, seed=i, id=f"e{i}"), signals={"progress": progress}) for i in range(6)]
    build_windows(episodes, tmp_path / "data", WindowConfig(val_split=0.34, balance=False))
    lines = tmp_path / "data" / "train" / "segments.jsonl"

    def read() -> Any:
        return [[vars(each), vars(each.window())] for each in read_segments([lines])]

    assert_no_flip_passes(lines, read)
    assert_no_flip_passes(next((tmp_path / "data" / "train" / "pkl").iterdir()), read)


def test_a_replay_drops_and_names_a_file_with_a_flipped_bit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    replay, kept = Replay(2, 40, state_size=2, action_size=1, album=None), ReplayFiles(tmp_path)
    world = World(2, 5)
    for _ in range(4):
        replay.add(world.rollout(3))
    marks = kept.save(replay)
    (path,) = tmp_path.iterdir()
    whole, before = path.read_bytes(), plain({**replay.columns(), "steps": replay.steps})
    for seed in range(FLIPS):
        bits = np.random.default_rng(seed)
        changed = bytearray(whole)
        changed[int(bits.integers(len(whole)))] ^= 1 << int(bits.integers(8))
        path.write_bytes(changed)
        again = Replay(2, 40, state_size=2, action_size=1, album=None)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            ReplayFiles(tmp_path).load(again, marks)
        dropped = again.steps == 0 and path.name in caplog.text
        assert dropped or plain({**again.columns(), "steps": again.steps}) == before


def test_cached_features_with_a_flipped_bit_are_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    model = build(ModelSpec(arch="resnet10", width=8, hidden_dim=8, image_size=24, cameras=("front",))).eval()
    with PayloadWriter(tmp_path / "train.pt") as writer:
        writer.add(random.integers(0, 256, (20, 1, 24, 24, 3), np.uint8), np.arange(20) % 2)
        writer.finish({})
    frames = RewardBinaryDataset(tmp_path / "train.pt")

    def read() -> torch.Tensor:
        return cached_features(model, frames, "x", tmp_path / "cache").inputs(np.arange(20), None).clone()

    before = read()
    (path,) = (tmp_path / "cache").iterdir()
    whole = path.read_bytes()
    for seed in range(FLIPS):
        bits = np.random.default_rng(seed)
        changed = bytearray(whole)
        changed[int(bits.integers(len(whole)))] ^= 1 << int(bits.integers(8))
        path.write_bytes(changed)
        assert torch.equal(read(), before)
        assert path.read_bytes() == whole and path.name in caplog.text
