"""Groups and channels in one process."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tests.runtime.workers import Counter, pump

from referee.cli import main
from referee.config.cluster import ClusterConfig, PlacementConfig
from referee.errors import ChannelClosed, ClusterError, ConfigError, RefereeError, TimedOut
from referee.runtime import Cluster, Rank, WorkerGroup, engine
from referee.runtime.channel import is_small
from referee.runtime.placement import device


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(ClusterConfig(component_placement={"env": PlacementConfig(placement="0-2")}))


def test_a_call_is_a_call_on_every_rank(cluster: Cluster) -> None:
    group = WorkerGroup(Counter, start=10).launch(cluster, "env", "EnvGroup")
    assert (len(group), group.name) == (3, "EnvGroup")
    call = group.add(5)
    assert call.done() and call.wait() == [15, 16, 17]  # each starts at 10 + its rank
    assert group.on(1).add(1).wait() == [17]
    assert group.on(2, 0).value().wait() == [17, 15]
    assert group.call("value").wait(timeout=1.0) == [15, 17, 17]
    group.keep()


def test_ranks_know_who_they_are(cluster: Cluster) -> None:
    ranks = WorkerGroup(Counter).launch(cluster, "env").who().wait()
    assert [(rank.rank, rank.world_size, rank.node) for rank in ranks] == [(0, 3, 0), (1, 3, 0), (2, 3, 0)]
    assert [str(rank) for rank in ranks] == ["env rank 0", "env rank 1", "env rank 2"]


def test_one_worker_without_any_placement() -> None:
    with Cluster(ClusterConfig()) as cluster:
        assert not cluster.remote
        group = WorkerGroup(Counter).launch(cluster, "reward")
        assert group.who().wait() == [Rank("reward")]


def test_errors_come_through_as_they_are(cluster: Cluster) -> None:
    group = WorkerGroup(Counter).launch(cluster, "env")
    with pytest.raises(RefereeError, match=r"^the disk is full$"):
        group.fail(RefereeError("the disk is full"))
    with pytest.raises(AttributeError, match="no_such_method"):
        group.no_such_method()


def test_nothing_is_copied(cluster: Cluster) -> None:
    group = WorkerGroup(Counter).launch(cluster, "env")
    array = np.arange(10)
    shared = group.share(array)
    assert shared.get() is array
    assert all(each is array for each in group.same(shared).wait())
    assert group.same(array).shared()[1].get() is array


def test_long_work_goes_on_in_threads(cluster: Cluster) -> None:
    group = WorkerGroup(Counter).launch(cluster, "env")
    channel = cluster.channel("work", capacity=2)
    call = group.spawn("take", channel)
    assert not call.done()
    with pytest.raises(TimedOut, match=r"^env\.take has not answered within 0\.01 s$"):
        call.wait(timeout=0.01)
    for item in range(6):
        channel.put(item, timeout=5)
    channel.close()
    assert sorted(item for items in call.wait(timeout=5) for item in items) == list(range(6))
    failing = group.on(0).spawn("fail", RefereeError("no"))
    with pytest.raises(RefereeError, match="no"):
        failing.wait(timeout=5)


def test_closing_the_cluster_closes_the_workers(cluster: Cluster) -> None:
    closed: list[int] = []
    with cluster:
        WorkerGroup(Counter, closed=closed).launch(cluster, "env")
    assert sorted(closed) == [0, 1, 2]


def test_two_nodes_are_not_one_process() -> None:
    with pytest.raises(
        ConfigError, match=r"num_nodes is 2, but with cluster\.backend=local .* set cluster\.backend=ray"
    ):
        Cluster(ClusterConfig(num_nodes=2))
    with pytest.raises(ConfigError, match=r"num_nodes is 2, but cluster\.address names no head"):
        Cluster(ClusterConfig(backend="ray", num_nodes=2))


# Channels


def test_tags_are_queues_of_their_own(cluster: Cluster) -> None:
    channel = cluster.channel("c", capacity=2)
    for item, tag in ((1, None), (2, "a"), (3, None), (4, "a")):
        channel.put(item, tag=tag)
    assert [channel.get(tag="a"), channel.get(), channel.get(tag="a"), channel.get()] == [2, 1, 4, 3]


@pytest.mark.alone
def test_time_outs_say_what_did_not_come(cluster: Cluster) -> None:
    channel = cluster.channel("verdicts", capacity=1)
    start = time.monotonic()
    with pytest.raises(TimedOut, match=r"^channel verdicts, tag 3: nothing came within 0\.05 s$"):
        channel.get(tag=3, timeout=0.05)
    assert 0.04 < time.monotonic() - start < 2
    channel.put("x")
    with pytest.raises(TimedOut, match=r"^channel verdicts: nobody took anything within 0\.01 s, and it is full$"):
        channel.put("y", timeout=0.01)
    channel.put("z", tag="other", timeout=0.01)  # another tag has room of its own
    assert channel.get() == "x"
    with pytest.raises(TimedOut):
        channel.get(timeout=0)


def test_closing_wakes_all_who_wait(cluster: Cluster) -> None:
    channel = cluster.channel("c", capacity=1)
    channel.put("last", tag="full")
    ends: list[str] = []

    def waits(what: str) -> None:
        with pytest.raises(ChannelClosed, match="is closed"):
            channel.get(tag="empty") if what == "get" else channel.put(1, tag="full")
        ends.append(what)

    threads = [threading.Thread(target=waits, args=(what,)) for what in ("get", "put")]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    channel.close()
    for thread in threads:
        thread.join(5)
    assert sorted(ends) == ["get", "put"]
    assert channel.get(tag="full") == "last"
    with pytest.raises(ChannelClosed):
        channel.get(tag="full")


def test_a_slow_taker_holds_up_the_giver(cluster: Cluster) -> None:
    channel = cluster.channel("c", capacity=2)
    most = pump(channel, items=20)
    assert most <= 3  # two in the channel, one in the hand


@pytest.mark.parametrize(
    ("item", "small"),
    [(None, True), (3, True), (np.float32(1), True), ("x" * 1000, True), (b"x" * 70_000, False),
     (np.zeros(8192), True), (np.zeros(8193), False), (np.array([object()]), False),
     ({"env": 3, "action": np.zeros(7)}, True), ([1] * 17, False), (("a", {"b": [np.zeros(100_000)]}), False),
     (object(), False)],
)  # fmt: skip
def test_what_is_small(item: object, small: bool) -> None:
    assert is_small(item) is small


def test_an_accelerator_is_one_of_those_that_the_node_may_use() -> None:
    assert [device(1, None), device(1, ""), device(1, "4,6"), device(0, "GPU-a, GPU-b")] == ["1", "1", "6", "GPU-a"]


# Ray stays outside


def test_ray_is_imported_by_nobody_who_does_not_use_it() -> None:
    use = "import sys, referee.runtime as r, referee.cli; r.Cluster(r.cluster.ClusterConfig())"
    code = f"{use}; print('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    ("module", "line"),
    [(None, "cluster.backend=ray needs ray: pip install 'referee-rl[ray]'"),
     (SimpleNamespace(__version__="2.40.0"), "needs ray 2.52 or newer, for its tokens; this is 2.40.0: pip install")],
)  # fmt: skip
def test_a_missing_or_old_ray_is_one_line(
    module: object, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", module)
    engine.ray.cache_clear()
    assert main(["cluster", "check", "panda_expert", "cluster.backend=ray"]) == 2
    error = capsys.readouterr().err
    assert line in error and error.count("\n") == 1


def test_a_head_that_asks_for_no_token_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It lets a stranger in: then our token protects nothing."""
    welcome = [sys.executable, "-c", "pass"]
    monkeypatch.setattr(engine, "_visit", lambda *visit: subprocess.Popen(welcome, stderr=subprocess.PIPE, text=True))
    monkeypatch.setattr(engine, "ray", lambda: SimpleNamespace(is_initialized=lambda: False))
    monkeypatch.setattr(engine, "_read_token", lambda: None)
    token = tmp_path / "token"
    engine.write_token(token)
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        config = ClusterConfig(backend="ray", address=address, token_path=str(token))
        with pytest.raises(ClusterError) as caught:
            Cluster(config)
    assert str(caught.value) == (
        f"cluster.address: {address} asks for no token, so anybody can run anything there: "
        "start Ray on each machine with RAY_AUTH_MODE=token"
    )


def test_only_the_engine_names_ray() -> None:
    source = Path(__file__).parents[2] / "src" / "referee"
    found = [
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        if any(word in path.read_text() for word in ("import ray\n", "from ray", 'import_module("ray'))
    ]
    assert found == ["runtime/engine.py"]
