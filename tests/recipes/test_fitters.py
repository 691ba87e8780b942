"""The training of a reward model through workers of a group: the same weights as in processes of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.runtime.processes import all_gone, descendants
from tests.training.test_recipe import episodes, options, run

from referee import compat
from referee.cli import main
from referee.config.cluster import ClusterConfig, PlacementConfig
from referee.episodes import EpisodeStore
from referee.errors import ConfigError, RefereeError, WorkerDied
from referee.models.artifact import Artifact
from referee.runtime import Cluster
from referee.training import checkpoint
from referee.workers.fitter import FitWorker, interface_of
from referee.workers.fitters import RayLaunch

ROOT = Path(__file__).parents[2]
SMALL = ["actor.model.width=8", "actor.model.hidden_dim=16", "actor.global_batch_size=16", "actor.num_threads=1",
         "actor.augment.random_shift=1", "runner.logger.logger_backends=[]"]  # fmt: skip
EPOCHS = "runner.max_epochs=40"
TWO = "cluster.component_placement.reward=0-1"
WORKING = b"ray::Shell.call"
"""What Ray calls the process of a worker that is busy."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    EpisodeStore(folder).append_many(episodes())
    return folder


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    pytest.importorskip("ray")
    places = {"reward": PlacementConfig(placement="0-1")}
    with Cluster(ClusterConfig(backend="ray", max_restarts=1, component_placement=places)) as cluster:
        yield cluster


def same(ours: Artifact, theirs: Artifact) -> None:
    for name, value in theirs.model.state_dict().items():
        assert torch.equal(ours.model.state_dict()[name], value), name


def busy() -> list[int]:
    return sorted(pid for pid in descendants(os.getpid()) if Path(f"/proc/{pid}/cmdline").read_bytes()[:15] == WORKING)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("backend", ["ddp", "fsdp"])
def test_ranks_under_ray_learn_what_processes_learn_even_if_one_is_killed(
    store: Path, tmp_path: Path, cluster: Cluster, backend: str
) -> None:
    how = {"training_backend": backend, "num_processes": 2, "micro_batch_size": 8, "max_epochs": 5, "log_interval": 1,
           "save_steps": 2}  # fmt: skip
    wanted, _ = run(options(store, tmp_path / "own", **how))
    pids: list[int] = []

    def log(numbers: dict[str, float], step: int) -> None:
        if backend == "ddp" and step == 5 and not pids:
            pids.extend(busy())
            os.kill(pids[-1], signal.SIGKILL)

    found, text = run(options(store, tmp_path / "placed", **how), launch=RayLaunch(cluster), log=log)
    assert "finished at step" in text and len(pids) == (2 if backend == "ddp" else 0)
    same(found, wanted)
    last = checkpoint.load(checkpoint.find(tmp_path / "placed"))
    assert last["step"] == checkpoint.load(checkpoint.find(tmp_path / "own"))["step"]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_what_goes_wrong_under_ray_is_one_clear_line(store: Path, tmp_path: Path, cluster: Cluster) -> None:
    how = {"training_backend": "ddp", "num_processes": 2, "max_steps": 2000, "log_interval": 1}
    with pytest.raises(RefereeError, match=r"^reward rank \d: .*too few"):
        run(options(store, tmp_path / "few", **how, micro_batch_size=1, global_batch_size=200),
            launch=RayLaunch(cluster))  # fmt: skip

    def log(numbers: dict[str, float], step: int) -> None:
        if step % 3 == 1:  # again and again
            os.kill(busy()[0], signal.SIGKILL)

    with pytest.raises(WorkerDied, match=r"^reward rank \d on node 0 .* died during fit"):
        run(options(store, tmp_path / "dying", **how, lr=1e-3), launch=RayLaunch(cluster), log=log)


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "examples/embodiment/main_reward.py"), *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_script_trains_on_ray_and_ctrl_c_leaves_a_run_to_resume(store: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    folder = tmp_path / "run"
    given = ["--config-name", "reward_training", f"data.data_path={store}", f"runner.logger.log_path={folder}",
             *SMALL, "cluster.backend=ray", TWO, "actor.training_backend=fsdp", "runner.save_steps=2"]  # fmt: skip
    first = start(*given, EPOCHS)
    pids: set[int] = set()
    patience = time.monotonic() + 100
    while checkpoint.latest(folder) is None and time.monotonic() < patience and first.poll() is None:
        time.sleep(0.1)
    pids = descendants(first.pid)
    os.killpg(first.pid, signal.SIGINT)  # as a terminal does, to all of its processes
    out, errors = first.communicate(timeout=60)
    assert first.returncode == 130, errors
    assert f"stopped; go on with runner.resume_dir={folder}" in out.replace("\n", "")
    assert len(pids) > 5 and all_gone(pids)
    step = checkpoint.load(checkpoint.find(folder))["step"]
    assert 0 < step < 120
    Artifact.load(folder / "checkpoints" / "best_model")
    alone = [each for each in given[2:] if not each.startswith(("cluster", "actor.training_backend"))]
    assert main(["run", "reward_training", *alone, EPOCHS, f"runner.resume_dir={folder}"]) == 0  # and without Ray
    assert checkpoint.load(checkpoint.find(folder))["step"] > step


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([TWO], "has 2 reward workers, but actor.training_backend=simple is one process: set it to ddp or fsdp"),
        ([TWO, "actor.training_backend=ddp", "actor.num_processes=4"], "actor.num_processes=4, but 2 reward workers"),
        (["cluster.component_placement.env=0"], "has no place for reward: add `reward: 0-0` to it"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[str], message: str
) -> None:
    given = [f"data.data_path={store}", f"runner.logger.log_path={tmp_path / 'run'}", *SMALL, *lines]
    assert main(["run", "reward_training", *given]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_worker_of_the_documents(store: Path, tmp_path: Path) -> None:
    given = [f"data.data_path={store}", f"runner.logger.log_path={tmp_path / 'run'}", *SMALL, "runner.max_epochs=1",
             "cluster.component_placement.reward=all"]  # fmt: skip
    worker = compat.FSDPRewardWorker("reward_training", given)
    with pytest.raises(RefereeError, match="init_worker"):
        worker.fit()
    worker.init_worker()
    folder = worker.fit()
    assert folder == tmp_path / "run" / "checkpoints" / "best_model"
    assert Artifact.load(folder).provenance["step"] > 0
    with pytest.raises(ConfigError, match="trains no reward model"):
        compat.FSDPRewardWorker("panda_ppo_mlp").init_worker()


def test_the_door_is_open_on_the_nodes_address_alone() -> None:
    """Two ranks in two threads meet at it, and the first one closes it."""
    first = FitWorker(0, 2, "127.0.0.1")
    host, port = first.listen()
    assert host == "127.0.0.1"
    stores: list[torch.distributed.TCPStore] = []
    other = threading.Thread(target=lambda: stores.append(FitWorker(1, 2, "127.0.0.1")._store(host, port)))
    other.start()
    mine = first._store(host, port)
    other.join(20)
    stores[0].set("word", "heard")
    assert mine.get("word") == b"heard"
    listening = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()
    ]
    assert {row[1] for row in listening if row[1].endswith(f":{port:04X}") and row[3] == "0A"} == {
        f"0100007F:{port:04X}"
    }


def test_interfaces_are_found_by_address() -> None:
    assert interface_of("127.0.0.1") == interface_of("127.0.0.3") == "lo"
    assert interface_of("192.0.2.1") is None
