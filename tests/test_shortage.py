"""A full disk and used-up memory: one line, exit code 2, nothing half-written, and what was saved before is whole."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from episodes.examples import make_episode
from referee import checksums, files
from referee.cli import main
from referee.datasets.payload import PayloadWriter
from referee.episodes import EpisodeStore
from referee.errors import shortage
from referee.models import Artifact, ModelSpec, build
from referee.refine.loop import Round, write_rounds
from referee.rl import checkpoint as policy_checkpoint
from referee.rl.replay import Replay
from referee.rl.replay_file import ReplayFiles
from referee.training import checkpoint as training_checkpoint
from referee.training.features import cached_features

_libc = ctypes.CDLL(None, use_errno=True)
SIZE = 2 << 20


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    if _libc.mount(b"tmpfs", bytes(place), b"tmpfs", 0, f"size={SIZE}".encode()) != 0:
        pytest.skip("only root may mount a small file system")
    try:
        yield place
    finally:
        _libc.umount2(bytes(place), 2)


def fill(folder: Path, leave: int) -> None:
    """Leave so many bytes of a file system free."""
    room = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    (folder / "ballast").write_bytes(bytes(room - leave))


def save_policy(folder: Path, seed: int) -> None:
    torch.manual_seed(seed)
    tensors = {"weight": torch.randn(150, 100)}
    values = policy_checkpoint.Checkpoint(tensors, tensors, {"seed": np.full(3, seed)}, {"task": "Reach"})
    policy_checkpoint.save(folder / "step_1", values)


def save_artifact(folder: Path, seed: int) -> None:
    torch.manual_seed(seed)
    Artifact(build(ModelSpec(arch="resnet10", width=8, hidden_dim=8, image_size=24, cameras=("a",)))).save(folder / "m")


def save_training(folder: Path, seed: int) -> None:
    training_checkpoint.save(folder / "checkpoint.pt", {"epoch": seed, "weight": torch.randn(200, 100)})


def save_frames(folder: Path, seed: int) -> None:
    with files.replacing(folder / "train.pt") as path, PayloadWriter(path) as writer:
        writer.add(np.random.default_rng(seed).integers(0, 256, (200, 1, 16, 16, 3), np.uint8), np.arange(200) % 2)
        writer.finish({})


def save_features(folder: Path, seed: int) -> None:
    torch.manual_seed(0)
    model = build(ModelSpec(arch="resnet10", width=8, hidden_dim=8, image_size=24, cameras=("a",))).eval()

    class Frames:
        labels = torch.zeros(400)

        def __len__(self) -> int:
            return 400

        def batch(self, rows: Any) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.zeros(len(rows), 24, 24, 3, dtype=torch.uint8), self.labels[rows]

    cached_features(model, Frames(), str(seed), folder)  # type: ignore[arg-type]


def save_replay(folder: Path, seed: int) -> None:
    replay = Replay(2, 2000, state_size=200, action_size=1, album=None)
    columns = replay.columns()
    replay.count[:] = 100
    columns["kind"][:, :100] = 1
    ReplayFiles(folder / f"replay_{seed}").save(replay)


def save_rounds(folder: Path, seed: int) -> None:
    each = Round(
        step=seed, version=1, asked=24, answered=24, fooled=3, missed=1, swapped=True, compared=None, seconds={}
    )
    write_rounds(folder / "rounds.jsonl", [each] * 600)


def save_json(folder: Path, seed: int) -> None:
    checksums.write_json(folder / "result.json", {"values": [seed] * 20_000})


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "ballast"
    }


@pytest.mark.parametrize(
    "save",
    [save_policy, save_artifact, save_training, save_frames, save_features, save_replay, save_rounds, save_json],
)
def test_a_writer_on_a_full_disk_leaves_what_was_there_and_nothing_else(
    small: Path, save: Callable[[Path, int], None]
) -> None:
    save(small, 0)
    before = content(small)
    assert before
    fill(small, 8192)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - each library has its own
        save(small, 1)
    line = shortage(caught.value)
    assert line is not None and "\n" not in line and "make room" in line, caught.value
    assert content(small) == before
    (small / "ballast").unlink()
    save(small, 1)
    assert content(small) != before


PPO = [
    "env.train.num_envs=4", "env.eval.num_envs=2", "env.train.task=Reach", "env.eval.task=Reach",
    "algorithm.rollout_steps=16", "actor.global_batch_size=64", "runner.eval_episodes=2", "runner.save_interval=1",
    "runner.eval_interval=1000000", "runner.film=false", "runner.logger.logger_backends=[]",
]  # fmt: skip


def run(*words: str, memory: int | None = None, file_size: int | None = None) -> subprocess.CompletedProcess[str]:
    def limit() -> None:
        if memory is not None:
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        if file_size is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))

    command = [sys.executable, "-m", "referee.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=limit, timeout=200)


def assert_one_line(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1 and all(word in done.stderr for word in words), done.stderr


@pytest.mark.slow
def test_a_policy_training_on_a_full_disk_ends_in_one_line_and_goes_on_when_there_is_room(small: Path) -> None:
    folder = small / "run"
    (small / "ballast").write_bytes(bytes(SIZE - 900_000))
    words = ("run", "panda_ppo_mlp", f"runner.logger.log_path={folder}", *PPO)
    assert_one_line(run(*words, "runner.max_steps=100000"), "No space left on device", "make room")
    names = [path.name for path in (folder / "checkpoints").iterdir()]
    assert names and all(name.startswith("step_") for name in names)
    steps = policy_checkpoint.load(policy_checkpoint.find(folder)).meta["steps"]
    (small / "ballast").unlink()
    done = run(*words, f"runner.resume_dir={folder}", f"runner.max_steps={steps + 64}")
    assert done.returncode == 0 and f"resuming at step {steps:,}" in done.stdout, done.stderr


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("episodes")
    store = EpisodeStore(folder)
    for number in range(12):
        success_from = 15 if number % 2 else None
        store.append(make_episode(20, pixels=32, seed=number, success_from=success_from, id=f"e{number}"))
    return folder


def test_frames_for_a_full_disk(small: Path, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = small / "frames"
    words = ["dataset", "frames", "--raw-data-path", str(store), "--output-dir", str(out)]
    fill(small, 300_000)
    assert main(words) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and "No space left on device" in line
    assert not out.exists() or list(out.iterdir()) == []
    (small / "ballast").unlink()
    assert main(words) == 0 and {path.name for path in out.iterdir()} >= {"train.pt", "val.pt"}


@pytest.mark.slow
def test_a_reward_training_on_a_full_disk(small: Path, store: Path) -> None:
    out = small / "run"
    fill(small, 1_000_000)
    words = ("train", str(store), "--out", str(out), "actor.model.width=16", "runner.max_epochs=2")
    assert_one_line(run(*words), "make room")
    assert not (out / "checkpoints" / "best_model").exists() or Artifact.load(out / "checkpoints" / "best_model")


@pytest.mark.slow
def test_a_limit_on_the_size_of_files_is_such_a_line_too(tmp_path: Path, store: Path) -> None:
    out = tmp_path / "frames"
    done = run("dataset", "frames", "--raw-data-path", str(store), "--output-dir", str(out), file_size=200_000)
    assert_one_line(done, "File too large")
    assert not out.exists() or list(out.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [["algorithm.rollout_steps=400000000"], ["actor.model.hidden_dims=[60000,60000]"]], ids=["numpy", "torch"]
)
def test_low_memory_is_one_line(tmp_path: Path, more: list[str]) -> None:
    folder = tmp_path / "run"
    words = ("run", "panda_ppo_mlp", f"runner.logger.log_path={folder}", *PPO, *more)
    assert_one_line(run(*words, memory=8 << 30), "out of memory", "num_envs")
    assert not folder.exists()


def test_other_errors_are_not_called_a_shortage() -> None:
    assert shortage(ValueError("No space left on device")) is None
    assert shortage(PermissionError(errno.EACCES, "Permission denied", "x")) is None
    assert shortage(RuntimeError("shapes do not match")) is None
    assert shortage(OSError(errno.ENOSPC, "No space left on device", "a/b")) == (
        "a/b: No space left on device: make room, and go on from what was saved before; that is whole"
    )
