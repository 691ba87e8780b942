"""Two Ray nodes on one machine, each with an address of its own: groups go where their node group is."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.runtime.processes import alive, all_gone, descendants

from referee.runtime.engine import write_token

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]


@dataclass
class Nodes:
    address: str
    token: Path
    head: subprocess.Popen[bytes]
    other: subprocess.Popen[bytes] | None = None
    pids: set[int] = field(default_factory=set)


def ray_start(*options: str, token: Path) -> subprocess.Popen[bytes]:
    """As in docs/cluster.md, with an address of its own and little memory."""
    command = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--disable-usage-stats"]
    small = ["--num-cpus=1", "--object-store-memory=100000000"]
    variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
                 "RAY_health_check_period_ms": "1000", "RAY_health_check_failure_threshold": "2"}  # fmt: skip
    return subprocess.Popen(
        [*command, *small, *options], env={**os.environ, **variables},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    token = tmp_path / "token"
    write_token(token)
    with socket.socket() as free:
        free.bind(("127.0.0.2", 0))
        port = free.getsockname()[1]
    address = f"127.0.0.2:{port}"
    head = ray_start("--head", f"--port={port}", "--include-dashboard=false", "--node-ip-address=127.0.0.2",
                     "--labels=node_group=gpu", token=token)  # fmt: skip
    started = Nodes(address, token, head)
    try:
        wait_for(address)
        started.other = ray_start(
            f"--address={address}", "--node-ip-address=127.0.0.3", "--labels=node_group=franka", token=token
        )
        yield started
    finally:
        for process in (started.other, head):
            if process is not None:
                end(process)
        for pid in alive(started.pids):  # helpers of a raylet that was killed need a minute to notice
            os.kill(pid, signal.SIGKILL)
    assert all_gone(started.pids)


def wait_for(address: str) -> None:
    host, _, port = address.partition(":")
    end_of_patience = time.monotonic() + 60
    while time.monotonic() < end_of_patience:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
            return
        except OSError:
            time.sleep(0.2)


def end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    process.wait(30)


def run(*command: str) -> subprocess.CompletedProcess[str]:
    variables = {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    return subprocess.run(
        [sys.executable, *command], env={**os.environ, **variables}, capture_output=True, text=True, timeout=120
    )


def below(process: subprocess.Popen[bytes], name: str) -> str:
    """The process of a node that has this name."""
    (found,) = [pid for pid in descendants(process.pid) if Path(f"/proc/{pid}/comm").read_text().strip() == name]
    return str(found)


def test_groups_go_where_their_node_group_is(nodes: Nodes, refinable: Path, tmp_path: Path) -> None:
    check = ["-m", "referee.cli", "cluster", "check", "panda_expert", "cluster.backend=ray", "cluster.num_nodes=2",
             f"cluster.address={nodes.address}", f"cluster.token_path={nodes.token}"]  # fmt: skip
    patience = time.monotonic() + 60
    while (done := run(*check)).returncode and time.monotonic() < patience:
        # The other node is on its way: until it is up, that is what is said.
        assert "cluster.num_nodes is 2, but 1 is up: start Ray on the others" in done.stderr
    assert "2 of 2 nodes are up, and hold it." in done.stdout
    assert nodes.other is not None
    nodes.pids = {pid for node in (nodes.head, nodes.other) for pid in descendants(node.pid)}
    assert len(nodes.pids) > 5
    done = run("-m", "tests.runtime.two_nodes_training", nodes.address, str(nodes.token), str(refinable), str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["steps"] == found["paid"] == 200 and found["episodes"] == 40
    assert found["places"] == ["127.0.0.3", "127.0.0.2"] and found["replaced"]
    done = run("-m", "tests.runtime.two_nodes_teleop", nodes.address, str(nodes.token), str(refinable), str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["places"] == ["127.0.0.3", "127.0.0.2"] and found["replaced"] and found["recorded"] == [5, 5, 2]
    assert found["numbers"] == list(range(12)) and max(found["apart"]) < 1e-4
    victims = [below(nodes.other, "raylet"), below(nodes.head, "gcs_server")]
    done = run("-m", "tests.runtime.two_nodes", nodes.address, str(nodes.token), *victims)
    assert done.returncode == 0, done.stderr
    saw = json.loads(done.stdout.splitlines()[-1])
    assert saw["nodes"] == ["127.0.0.2", "127.0.0.3"]
    assert saw["places"] == ["127.0.0.3", "127.0.0.2"] and saw["robot"] == "172.16.0.2"
    assert saw["look"] == saw["again"] == [5_000_000, False, True]
    assert all_gone(set(saw["pids"]))
    assert saw["replaced"] == [0] and saw["reward goes on"] == [0]
    assert saw["headless"].startswith(f"the head of the cluster at {nodes.address} is gone ([Errno 111]")
    assert saw["gone"] == ("env rank 0 on node 1 (127.0.0.3) cannot be made, the node is gone: start Ray there again")
