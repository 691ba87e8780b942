"""Two processes learn what one learns; a failure or the end of the parent ends all of them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from training_doubles import TinyFrames, TinyModel

from referee.config.reward_training import AugmentConfig
from referee.errors import RefereeError
from referee.training import checkpoint
from referee.training.fit import fit
from referee.training.options import FitOptions
from referee.training.parallel import Group, launch
from referee.training.source import ImageSource

HERE = str(Path(__file__).parent)
Tell = Callable[[Any], None]
Stop = Callable[[], bool]


def work(group: Group, tell: Tell, stop: Stop, folder: str, values: dict[str, Any], resume: str | None = None) -> None:
    options = FitOptions.from_json(values)
    saved = None if resume is None else checkpoint.load(Path(resume))
    fit(
        TinyModel(dropout=0.2, seed=5 if saved else 0),  # type: ignore[arg-type]
        ImageSource(TinyFrames(61), options.augment),
        ImageSource(TinyFrames(41, seed=1)),
        options,
        folder=Path(folder),
        resume=saved,
        group=group,
        report=lambda report: tell(report.step),
        stop=stop,
    )


def fail(group: Group, tell: Tell, stop: Stop, how: str) -> None:
    if group.rank == 1:
        if how == "error":
            raise RefereeError("the second one cannot")
        if how == "bug":
            raise ValueError("a bug")
        os._exit(3)
    time.sleep(60)


@pytest.fixture(autouse=True)
def _children_find_this_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", HERE + os.pathsep + os.environ.get("PYTHONPATH", ""))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["ddp", "fsdp"])
def test_two_processes_equal_one(tmp_path: Path, backend: str) -> None:
    values = FitOptions(
        lr=0.02, global_batch_size=16, micro_batch_size=4, max_epochs=3, save_interval=1, num_threads=1,
        sampling="natural", augment=AugmentConfig(random_shift=1), clip_grad=0.5,
    ).to_json()  # fmt: skip
    work(Group(), lambda _: None, lambda: False, str(tmp_path / "one"), values)
    both = {**values, "training_backend": backend, "num_processes": 2}
    heard: list[int] = []
    launch(work, (str(tmp_path / "two"), both), backend=backend, processes=2, hear=heard.append)
    assert heard == [4, 8, 10, 12]
    one, two = (checkpoint.load(checkpoint.find(tmp_path / name)) for name in ("one", "two"))
    assert one["step"] == two["step"] == 12
    for name, value in one["model_state_dict"].items():
        torch.testing.assert_close(two["model_state_dict"][name], value, rtol=1e-4, atol=1e-5, msg=name)
    assert two["train_loss"] == pytest.approx(one["train_loss"], abs=1e-5)
    assert two["train_acc"] == pytest.approx(one["train_acc"])
    assert two["best"]["val"]["auroc"] == pytest.approx(one["best"]["val"]["auroc"], abs=1e-6)

    middle = str(tmp_path / "two" / "checkpoints" / "step_4")
    launch(work, (str(tmp_path / "again"), both, middle), backend=backend, processes=2)
    again = checkpoint.load(checkpoint.find(tmp_path / "again"))
    for name, value in two["model_state_dict"].items():
        torch.testing.assert_close(again["model_state_dict"][name], value, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "kind", "text"),
    [
        ("error", RefereeError, "^the second one cannot$"),
        ("bug", RuntimeError, "a bug"),
        ("die", RefereeError, "code 3"),
    ],
)
def test_one_failure_ends_all(how: str, kind: type[Exception], text: str) -> None:
    started = time.monotonic()
    with pytest.raises(kind, match=text):
        launch(fail, (how,), backend="ddp", processes=2)
    assert time.monotonic() - started < 50


@pytest.mark.slow
def test_interrupt_ends_all(tmp_path: Path) -> None:
    script = """
import test_data_parallel as tests
from referee.training.parallel import launch

if __name__ == "__main__":
    print("go", flush=True)
    launch(tests.fail, ("sleep",), backend="ddp", processes=1)
"""
    (tmp_path / "main.py").write_text(script)
    run = subprocess.Popen(
        [sys.executable, str(tmp_path / "main.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background inherits none
    )
    assert run.stdout is not None and run.stdout.readline() == b"go\n"
    deadline = time.monotonic() + 120
    while not (children := _children(run.pid)) and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(3)
    children = _children(run.pid)
    run.send_signal(2)
    run.wait(120)
    assert b"KeyboardInterrupt" in (run.stderr.read() if run.stderr else b"")
    while any(Path(f"/proc/{pid}").exists() for pid in children) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert children and not any(Path(f"/proc/{pid}").exists() for pid in children)


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
