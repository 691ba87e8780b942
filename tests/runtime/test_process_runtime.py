"""Groups and channels in processes of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.processes import all_gone, descendants
from tests.runtime.workers import Counter

from referee.config.cluster import ClusterConfig, NodeGroupConfig, PlacementConfig
from referee.errors import ChannelClosed, RefereeError, TimedOut, WorkerDied
from referee.runtime import Cluster, Fallback, Rank, WorkerGroup
from referee.runtime.group import Group

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
SAFE = Fallback(retry=("ping", "value", "pid"))
PLACES = {"env": PlacementConfig(placement="0-1"), "reward": PlacementConfig(node_group="here", placement=0)}
CONFIG = ClusterConfig(
    backend="process", max_restarts=2, component_placement=PLACES,
    node_groups=(NodeGroupConfig(label="here", env_vars=("REFEREE_TEST=yes",)),),
)  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    started = descendants(os.getpid())
    with Cluster(CONFIG) as cluster:
        yield cluster
        pids = descendants(os.getpid()) - started
    workers = {pid for pid in pids if "resource_tracker" not in command(pid)}  # that one stays for the next
    assert all_gone(workers)


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


@pytest.fixture(scope="module")
def envs(cluster: Cluster) -> Group:
    return WorkerGroup(Counter, 10, fallback=SAFE).launch(cluster, "env")


def test_calls_reach_every_rank(envs: Group) -> None:
    first, second = envs.value().wait()
    assert envs.add(5).wait() == [first + 5, second + 5]
    assert envs.on(1).add(1).wait(timeout=10) == [second + 6]
    assert [(rank.rank, rank.world_size, rank.node) for rank in envs.who().wait()] == [(0, 2, 0), (1, 2, 0)]
    assert len({*envs.pid().wait(), os.getpid()}) == 3


def test_variables_and_devices_are_those_of_the_plan(cluster: Cluster) -> None:
    group = WorkerGroup(Counter).launch(cluster, "reward")
    assert group.variable("REFEREE_TEST").wait() == ["yes"]
    third = WorkerGroup(Counter).launch(cluster, [Rank("actor", accelerator=3)])
    assert third.variable("CUDA_VISIBLE_DEVICES").wait() == ["3"]
    third.close()
    group.close()


def test_errors_keep_their_type_and_name_the_rank(cluster: Cluster, envs: Group) -> None:
    pids = envs.pid().wait()
    with pytest.raises(TimedOut, match=r"^env rank 0: too late$"):
        envs.fail(TimedOut("too late")).wait()
    with pytest.raises(ZeroDivisionError) as caught:
        envs.on(1).fail(ZeroDivisionError("by hand")).wait()
    assert "in env rank 1" in caught.value.__notes__[0] and "workers.py" in caught.value.__notes__[0]
    with pytest.raises(AttributeError, match="no_such_method"):
        envs.no_such_method().wait()
    with pytest.raises(TypeError, match="pickle"):
        envs.same(sys.stdout).wait()
    assert envs.pid().wait() == pids  # an error ends no worker
    with pytest.raises(TypeError, match="nonsense"):
        WorkerGroup(Counter, nonsense=1).launch(cluster, "env")


def test_what_is_defined_in_a_test_or_a_notebook_goes_along(cluster: Cluster) -> None:
    class Local(Counter):
        def twice(self) -> int:
            return 2 * self.count

    group = WorkerGroup(Local, 4).launch(cluster, "reward")
    assert group.twice().wait() == [8]
    group.close()


def test_a_value_may_be_handed_on_without_being_looked_at(envs: Group) -> None:
    frames = np.arange(1_000_000, dtype=np.uint8)
    total = int(frames.sum())
    assert [each[0] for each in envs.look(envs.share(frames)).wait()] == [total, total]
    (made,) = envs.on(0).ones(5_000_000).shared()
    assert envs.on(1).look(made).wait()[0][0] == 5_000_000
    np.testing.assert_array_equal(made.get(), np.ones(5_000_000, np.uint8))


def test_of_a_latest_value_a_worker_gets_what_it_is_when_it_begins(envs: Group) -> None:
    weights = envs.latest({"w": np.zeros(3)})
    assert envs.same(weights).wait()[1]["w"].tolist() == [0, 0, 0]
    waiting = [envs.ping(0.5), envs.same(weights)]  # the second waits behind the first
    weights.set({"w": np.ones(3)})
    assert waiting[1].wait()[0]["w"].tolist() == [1, 1, 1]
    os.kill(envs.pid().wait()[0], signal.SIGKILL)
    assert envs.ping().wait() == [0, 1]  # made again
    assert envs.same(weights).wait()[0]["w"].tolist() == [1, 1, 1]


def test_late_answers_are_refused_and_can_still_be_had(envs: Group) -> None:
    call = envs.ping(1.0)
    assert not call.done()
    with pytest.raises(TimedOut, match=r"^env rank 0 has not answered ping within 0\.1 s$"):
        call.wait(timeout=0.1)
    assert call.wait(timeout=20) == [0, 1] and call.done()


def test_a_killed_worker_is_replaced_and_a_safe_call_repeated(cluster: Cluster) -> None:
    envs = WorkerGroup(Counter, 10, fallback=SAFE).launch(cluster, "env")
    victim, other = envs.pid().wait()
    envs.add(5).wait()
    envs.keep()
    envs.add(100).wait()
    calls = [envs.ping(1.0), envs.value()]  # the second waits behind the first
    time.sleep(0.3)
    os.kill(victim, signal.SIGKILL)
    assert calls[0].wait(timeout=60) == [0, 1]
    assert calls[1].wait(timeout=60) == [15, 116]  # rank 0 has its kept state again; rank 1 never died
    again = envs.pid().wait()
    assert again[0] != victim and again[1] == other
    envs.close()


def test_what_must_not_happen_twice_does_not(cluster: Cluster, tmp_path: Path) -> None:
    group = WorkerGroup(Counter, born=str(tmp_path / "born"), fallback=SAFE).launch(cluster, "env")
    with pytest.raises(WorkerDied, match=r"^env rank 0 died during die \(exit code 1\), which must not be repeated"):
        group.on(0).die().wait(timeout=60)
    assert group.add(1).wait(timeout=30) == [1, 2]
    assert sorted((tmp_path / "born").read_text().split()) == ["0", "0", "1"]
    with pytest.raises(WorkerDied, match="must not be repeated"):
        group.on(0).die().wait(timeout=60)
    with pytest.raises(WorkerDied, match=r"was made again 2 times before: .* or raise cluster\.max_restarts"):
        group.on(0).die().wait(timeout=60)
    with pytest.raises(WorkerDied):
        group.on(0).value().wait(timeout=60)
    assert group.on(1).value().wait(timeout=60) == [2]
    group.close()


def test_one_that_dies_while_it_is_made_is_one_line(cluster: Cluster) -> None:
    def dies(rank: Rank) -> None:
        os._exit(3)

    with pytest.raises(WorkerDied, match=r"^env rank 0 died while it was made \(exit code 3\)$"):
        WorkerGroup(dies).launch(cluster, "env")


def test_closing_lets_each_worker_close(cluster: Cluster, tmp_path: Path) -> None:
    group = WorkerGroup(Counter, closing=str(tmp_path / "closed")).launch(cluster, "env")
    waiting = [group.ping(0.2), group.ping(30.0)]
    time.sleep(0.1)
    began = time.monotonic()
    group.close()  # after the call that it is in, and before those that wait
    group.close()
    assert time.monotonic() - began < 10
    assert sorted((tmp_path / "closed").read_text().split()) == ["0", "1"]
    assert waiting[0].wait(timeout=1) == [0, 1]
    with pytest.raises(RefereeError, match="died"):
        waiting[1].wait(timeout=1)


ENDLESS = """
import sys, time
from tests.runtime.workers import Counter
from referee.config.cluster import ClusterConfig
from referee.runtime import Cluster, WorkerGroup
with Cluster(ClusterConfig(backend="process")) as cluster:
    group = WorkerGroup(Counter).launch(cluster, "env")
    cluster.channel("c")
    print("ready", flush=True)
    time.sleep(60)
"""


def test_whoever_is_killed_leaves_nothing_behind() -> None:
    root = Path(__file__).parents[2]
    driver = subprocess.Popen([sys.executable, "-c", ENDLESS], stdout=subprocess.PIPE, text=True, cwd=root)
    assert driver.stdout is not None and driver.stdout.readline() == "ready\n"
    pids = descendants(driver.pid)
    driver.kill()
    driver.wait(30)
    assert len(pids) >= 2 and all_gone(pids)


def test_a_channel_between_workers(cluster: Cluster, envs: Group) -> None:
    channel = cluster.channel("frames", capacity=2)
    frames = [np.full(100_000, value, np.uint8) for value in range(5)]
    given = envs.on(0).spawn("give", channel, frames)
    time.sleep(0.5)
    assert not given.done()  # two lie in the channel, the third waits
    taken = envs.on(1).spawn("take", channel)
    given.wait(timeout=20)
    channel.close()
    (arrived,) = taken.wait(timeout=20)
    assert [int(frame[0]) for frame in arrived] == [0, 1, 2, 3, 4]
    with pytest.raises(ChannelClosed, match="channel frames is closed"):
        channel.put("c")
    with pytest.raises(TimedOut, match=r"^channel verdicts, tag 3: nothing came within 0\.2 s$"):
        cluster.channel("verdicts").get(tag=3, timeout=0.2)
