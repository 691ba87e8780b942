"""Groups and channels under Ray: one private Ray, with a token, for all tests of this module."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.processes import all_gone, descendants
from tests.runtime.workers import Counter, pump

from referee.cli import main
from referee.config.cluster import ClusterConfig, NodeGroupConfig, PlacementConfig
from referee.errors import ChannelClosed, ClusterError, RefereeError, TimedOut, WorkerDied
from referee.runtime import Cluster, Fallback, Rank, WorkerGroup
from referee.runtime.group import Group

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SAFE = Fallback(retry=("ping", "value", "pid"))
PLACES = {
    "env": PlacementConfig(placement="0-1"),
    "reward": PlacementConfig(node_group="here", placement=0),
}
CONFIG = ClusterConfig(
    backend="ray",
    max_restarts=2,
    component_placement=PLACES,
    node_groups=(NodeGroupConfig(label="here", env_vars=("REFEREE_TEST=yes",)),),
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    before, started = ray_variables(), descendants(os.getpid())
    cluster = Cluster(CONFIG)
    try:
        yield cluster
    finally:
        pids = descendants(os.getpid()) - started
        cluster.close()
    assert len(pids) > 3 and all_gone(pids)
    assert ray_variables() == before


def ray_variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("RAY_AUTH")}


@pytest.fixture(scope="module")
def envs(cluster: Cluster) -> Iterator[Group]:
    group = WorkerGroup(Counter, 10, fallback=SAFE).launch(cluster, "env")
    yield group
    group.close()


def check_from_elsewhere(*overrides: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "referee.cli", "cluster", "check", "panda_expert", "cluster.backend=ray"]
    env = {**os.environ, **variables}
    return subprocess.run([*command, *overrides], env=env, capture_output=True, text=True, timeout=60)


def address() -> str:
    import ray

    found: str = ray.get_runtime_context().gcs_address
    return found


# The cluster


def test_it_listens_on_the_loopback_interface_only(cluster: Cluster) -> None:
    assert cluster.remote and address().startswith("127.0.0.1:")
    assert [node.address for node in cluster.nodes] == ["127.0.0.1"]
    token = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
    assert token.stat().st_mode & 0o777 == 0o600 and token.parent.stat().st_mode & 0o777 == 0o700
    port = f"{int(address().rpartition(':')[2]):04X}"
    listening = [line.split() for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]]
    hosts = {row[1].split(":")[0] for row in listening if row[1].endswith(f":{port}") and row[3] == "0A"}
    assert hosts == {"0000000000000000FFFF00000100007F"}  # ::ffff:127.0.0.1


def test_a_wrong_token_is_one_clear_line_at_once(cluster: Cluster, tmp_path: Path) -> None:
    wrong = tmp_path / "token"
    wrong.write_text("b" * 43)
    start = time.monotonic()
    done = check_from_elsewhere(f"cluster.address={address()}", f"cluster.token_path={wrong}")
    assert done.returncode == 2 and time.monotonic() - start < 15
    assert done.stderr == (
        f"referee: cluster.address: {address()} refuses our token: "
        "copy the head's token here and set cluster.token_path or RAY_AUTH_TOKEN_PATH\n"
    )


@pytest.mark.parametrize("path", ["", "/no/such/file"])
def test_no_token_is_one_clear_line(cluster: Cluster, tmp_path: Path, path: str) -> None:
    done = check_from_elsewhere(f"cluster.address={address()}", HOME=str(tmp_path), RAY_AUTH_TOKEN_PATH=path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("referee: there is no token for the cluster: copy the head's")
    assert done.stderr.count("\n") == 1


def test_the_right_token_opens(cluster: Cluster) -> None:
    token = os.environ["RAY_AUTH_TOKEN_PATH"]
    done = check_from_elsewhere(f"cluster.address={address()}", f"cluster.token_path={token}")
    assert done.returncode == 0, done.stderr
    assert f"{address()}: 1 of 1 nodes are up, and hold it." in done.stdout


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["cluster.address=127.0.0.1:1"], "no Ray answers at 127.0.0.1:1 ([Errno 111] Connection refused): start it"),
        (["cluster.address=nonsense"], "cannot read 'nonsense': write HOST:PORT"),
        (["cluster.address=127.0.0.1:1", "cluster.token_path=/no"], "cluster.token_path: there is no file /no"),
    ],
)
def test_what_cannot_be_opened_is_one_clear_line(
    overrides: list[str], line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    before = dict(os.environ)
    assert main(["cluster", "check", "panda_expert", "cluster.backend=ray", *overrides]) == 2
    error = capsys.readouterr().err
    assert line in error and error.count("\n") == 1
    assert dict(os.environ) == before


def test_one_ray_at_a_time(cluster: Cluster) -> None:
    with pytest.raises(ClusterError, match="connected to a Ray already: close that cluster first"):
        Cluster(ClusterConfig(backend="ray"))
    assert cluster.remote and WorkerGroup(Counter).launch(cluster, "reward").value().wait(timeout=20) == [0]


# Groups


def test_calls_reach_every_rank(envs: Group) -> None:
    first, second = envs.value().wait()
    assert envs.add(5).wait() == [first + 5, second + 5]
    assert envs.on(1).add(1).wait(timeout=10) == [second + 6]
    ranks = envs.who().wait()
    assert [(rank.rank, rank.world_size, rank.node) for rank in ranks] == [(0, 2, 0), (1, 2, 0)]
    pids = envs.pid().wait()
    assert len({*pids, os.getpid()}) == 3


def test_variables_and_devices_are_those_of_the_plan(cluster: Cluster) -> None:
    group = WorkerGroup(Counter).launch(cluster, "reward", "RewardGroup")
    assert group.variable("REFEREE_TEST").wait() == ["yes"]
    third = WorkerGroup(Counter).launch(cluster, [Rank("actor", accelerator=3)])
    assert third.variable("CUDA_VISIBLE_DEVICES").wait() == ["3"]
    third.close()
    with pytest.raises(RefereeError, match=r"^RewardGroup rank 0: the lens is dirty$"):
        group.fail(RefereeError("the lens is dirty")).wait()
    group.close()


def test_errors_keep_their_type_and_name_the_rank(envs: Group) -> None:
    pids = envs.pid().wait()
    with pytest.raises(TimedOut, match=r"^env rank 0: too late$"):
        envs.fail(TimedOut("too late")).wait()
    with pytest.raises(ZeroDivisionError) as caught:
        envs.on(1).fail(ZeroDivisionError("by hand")).wait()
    assert "in env rank 1" in caught.value.__notes__[0] and "workers.py" in caught.value.__notes__[0]
    with pytest.raises(AttributeError, match="no_such_method"):
        envs.no_such_method().wait()
    assert envs.pid().wait() == pids  # an error ends no worker


def test_an_error_while_it_is_made(cluster: Cluster) -> None:
    with pytest.raises(TypeError, match="nonsense"):
        WorkerGroup(Counter, nonsense=1).launch(cluster, "env")


def test_what_a_node_lacks_is_one_clear_line(cluster: Cluster, envs: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("only_here")
    exec("class Lonely:\n    def __init__(self, rank): pass", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", module)
    line = r"^env rank 0 on node 0 .* cannot read what it is sent.*No module named 'only_here'\): install the same"
    with pytest.raises(ClusterError, match=line):
        WorkerGroup(module.Lonely).launch(cluster, "env")
    with pytest.raises(ClusterError, match=r"^env rank 0 .*: install the same version"):
        envs.same(module.Lonely(None)).wait(timeout=20)


def test_closing_lets_each_worker_close(cluster: Cluster, tmp_path: Path) -> None:
    """The one that died cannot; that holds up no other."""
    group = WorkerGroup(Counter, closing=str(tmp_path / "closed")).launch(cluster, "env")
    os.kill(group.pid().wait()[0], signal.SIGKILL)
    group.close()
    group.close()
    assert (tmp_path / "closed").read_text() == "1\n"


def test_late_answers_are_refused_and_can_still_be_had(envs: Group) -> None:
    call = envs.ping(1.0)
    assert not call.done()
    with pytest.raises(TimedOut, match=r"^env rank 0 on node 0 \(127\.0\.0\.1\) has not answered ping within 0\.1 s$"):
        call.wait(timeout=0.1)
    assert call.wait(timeout=20) == [0, 1] and call.done()


# What goes wrong


def test_a_killed_worker_is_replaced_and_a_safe_call_repeated(cluster: Cluster) -> None:
    envs = WorkerGroup(Counter, 10, fallback=SAFE).launch(cluster, "env")
    victim, other = envs.pid().wait()
    envs.add(5).wait()
    envs.keep()
    envs.add(100).wait()
    calls = [envs.ping(1.0), envs.value()]  # the second waits behind the first
    time.sleep(0.3)
    os.kill(victim, signal.SIGKILL)
    start = time.monotonic()
    assert calls[0].wait(timeout=60) == [0, 1]
    assert time.monotonic() - start < 30
    assert calls[1].wait(timeout=60) == [15, 116]  # rank 0 has its kept state again; rank 1 never died
    again = envs.pid().wait()
    assert again[0] != victim and again[1] == other
    envs.close()


ENDLESS = """
import time
from referee.config.cluster import ClusterConfig
from referee.runtime import Cluster
with Cluster(ClusterConfig(backend="ray")):
    print("ready", flush=True)
    time.sleep(60)
"""


def test_a_driver_that_is_ended_leaves_nothing_behind() -> None:
    driver = subprocess.Popen([sys.executable, "-c", ENDLESS], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None and driver.stdout.readline() == "ready\n"
    pids = descendants(driver.pid)
    driver.terminate()
    assert driver.wait(30) == 143
    assert len(pids) > 3 and all_gone(pids)


def test_what_must_not_happen_twice_does_not(cluster: Cluster, tmp_path: Path) -> None:
    group = WorkerGroup(Counter, born=str(tmp_path / "born"), fallback=SAFE).launch(cluster, "env")
    line = r"^env rank 0 on node 0 .* died during die .*, which must not be repeated; it was made again"
    with pytest.raises(WorkerDied, match=line):
        group.on(0).die().wait(timeout=60)
    assert group.add(1).wait(timeout=30) == [1, 2]
    assert sorted((tmp_path / "born").read_text().split()) == ["0", "0", "1"]
    with pytest.raises(WorkerDied, match="must not be repeated"):
        group.on(0).die().wait(timeout=60)
    with pytest.raises(WorkerDied, match=r"was made again 2 times before: .* or raise cluster\.max_restarts"):
        group.on(0).die().wait(timeout=60)
    group.close()


# Large arrays


def test_an_array_lies_in_memory_once(cluster: Cluster, envs: Group) -> None:
    """20 MB: shared by the driver, looked at by both ranks, handed from one to the other; never copied."""
    size = 20_000_000
    shared = envs.share(np.ones(size, np.uint8))
    used = store_bytes()
    assert envs.look(shared).wait() == [(size, False, True)] * 2
    assert store_bytes() == used  # both ranks read the same memory
    (made,) = envs.on(0).ones(size).shared()
    grown = store_bytes() - used
    assert size <= grown < 1.01 * size
    assert envs.on(1).look(made).wait() == [(size, False, True)]
    assert store_bytes() - used == grown  # handed on, not copied
    assert Counter.look(envs, made.get()) == (size, False, True)  # the driver too


def store_bytes() -> int:
    """What lies in the shared memory of the node."""
    import ray
    from ray._private.internal_api import node_stats

    (node,) = ray.nodes()
    return int(node_stats(node["NodeManagerAddress"], node["NodeManagerPort"]).store_stats.object_store_bytes_used)


# Channels


def test_a_channel_between_workers(cluster: Cluster, envs: Group) -> None:
    channel = cluster.channel("frames", capacity=2)
    frames = [np.full(1_000_000, value, np.uint8) for value in range(5)]
    given = envs.on(0).spawn("give", channel, frames)
    time.sleep(0.5)
    assert not given.done()  # two lie in the channel, the third waits
    taken = envs.on(1).spawn("take", channel)
    given.wait(timeout=20)
    channel.close()
    (found,) = taken.wait(timeout=20)
    assert [int(frame[0]) for frame in found] == [0, 1, 2, 3, 4]


def test_channel_time_outs_and_closing(cluster: Cluster) -> None:
    channel = cluster.channel("verdicts", capacity=1)
    start = time.monotonic()
    with pytest.raises(TimedOut, match=r"^channel verdicts, tag 3: nothing came within 0\.2 s$"):
        channel.get(tag=3, timeout=0.2)
    assert 0.15 < time.monotonic() - start < 10
    channel.put("a")
    with pytest.raises(TimedOut, match=r"^channel verdicts: nobody took anything within 0\.1 s, and it is full$"):
        channel.put("b", timeout=0.1)
    closed = threading.Timer(0.3, channel.close)
    closed.start()
    with pytest.raises(ChannelClosed):
        channel.get(tag="never")
    assert channel.get() == "a"
    with pytest.raises(ChannelClosed, match="channel verdicts is closed"):
        channel.put("c")


def test_a_slow_taker_holds_up_the_giver_under_ray(cluster: Cluster) -> None:
    assert pump(cluster.channel("c", capacity=2), items=8) <= 3


def test_what_a_dead_worker_had_put_is_whole_or_reported(cluster: Cluster) -> None:
    group = WorkerGroup(Counter).launch(cluster, "env")
    channel = cluster.channel("frames", capacity=64)
    frames = [np.full(1_000_000, value, np.uint8) for value in range(40)]
    group.on(0).give(channel, ["small", *frames]).wait(timeout=60)
    with pytest.raises(WorkerDied):
        group.on(0).die().wait(timeout=60)
    assert channel.get(timeout=20) == "small"  # it lay in the channel itself

    def take_until_one_is_lost() -> None:
        for frame in frames:  # shared memory outlives its worker until Ray has noticed
            np.testing.assert_array_equal(channel.get(timeout=20), frame)
            time.sleep(0.5)

    with pytest.raises(WorkerDied, match=r"^channel frames: the worker that put this item died"):
        take_until_one_is_lost()
    group.close()
