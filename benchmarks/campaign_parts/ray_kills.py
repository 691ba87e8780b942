"""Ray under attack: workers, a raylet and the driver are killed, and a node is cut off for ten seconds.

Rewards are counted one by one: each step of each rollout has one, given once. All of it stays on this machine: nodes
have loopback addresses, or one of them a network namespace of its own.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from campaign_parts.material import Material
from campaign_parts.processes import descendants, lives
from campaign_parts.tally import Tally

HERE = Path(__file__).parents[1]
OTHER_PROCESS = re.compile("IDLE|Agent")
"""In the names of Ray's processes that are no workers; a raylet whose agent dies ends, too."""
CUT = 10.0
"""Seconds that a node cannot be reached."""
LEFT = 90.0
"""Seconds within which the helpers of a killed driver must be gone."""
TWO_NODES = [
    "cluster.num_nodes=2", "cluster.node_groups=[{label: near, node_ranks: 0}, {label: far, node_ranks: 1}]",
    "cluster.component_placement.env={node_group: far, placement: 0}",
    "cluster.component_placement.reward={node_group: near, placement: 0}",
]  # fmt: skip
ONE_NODE = ["cluster.component_placement={env: 0-1, reward: 0-0}"]
SPACE, OUTER, INNER = "referee_far", "referee_out", "referee_in"
NEAR, FAR = "10.231.77.1", "10.231.77.2"
Started = dict[str, subprocess.Popen[bytes]]


def run(seed: int, count: int, folder: Path, seconds: float, kinds: tuple[str, ...] | None = None) -> list[Tally]:
    """One row per kind of attack; `count` kills of workers, the others once each."""
    try:
        import ray  # noqa: F401
    except ImportError:
        return [Tally("Ray", skipped=["ray is not installed: pip install 'referee-rl[ray]'"])]
    choose, end = random.Random(seed), time.monotonic() + seconds
    attacks = {"workers": kill_workers, "driver": kill_driver, "raylet": kill_raylet, "own raylet": kill_own_raylet,
               "cut": cut_off}  # fmt: skip
    rows = []
    for name in kinds or tuple(attacks):
        tally = Tally(f"Ray: {name}")
        rows.append(tally)
        if time.monotonic() > end:
            tally.skipped.append("no time was left")
            continue
        place = folder / f"ray_{name}"
        place.mkdir(parents=True)
        with tally.trial(name, 0):
            attacks[name](choose, count, place, Material(folder / "material").model, tally)
    return rows


@dataclass
class Driver:
    """The process of a run, and what it has said."""

    process: subprocess.Popen[bytes]
    log: Path
    helpers: set[int] = field(default_factory=set)

    @classmethod
    def start(cls, folder: Path, iterations: int, model: Path, *settings: str) -> Driver:
        log = folder / f"driver-{time.monotonic_ns()}.log"
        words = [str(folder / "run"), str(iterations), f"reward.model.model_path={model}", *settings]
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "campaign_parts.ray_driver", *words],
                env=variables(), stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip
        return cls(process, log)

    def lines(self, word: str = "") -> list[str]:
        return [line for line in self.log.read_text(errors="replace").splitlines() if line.startswith(word)]

    def until(self, word: str, count: int, seconds: float = 120) -> bool:
        """Whether it says so often enough before it ends or the time is over."""
        end = time.monotonic() + seconds
        while len(self.lines(word)) < count:
            if self.process.poll() is not None or time.monotonic() > end:
                return len(self.lines(word)) >= count
            time.sleep(0.01)
        return True

    def workers(self) -> list[int]:
        """Processes of this driver's own Ray that do the work now."""
        below = descendants(self.process.pid)
        self.helpers |= below
        named = {pid: _command(pid) for pid in sorted(below)}
        return [pid for pid, name in named.items() if name.startswith("ray::") and not OTHER_PROCESS.search(name)]

    def judge(self, tally: Tally, iterations: int) -> None:
        """Wait for its end, and count the rewards of each iteration."""
        try:
            code = self.process.wait(240)
        except subprocess.TimeoutExpired:
            tally.defect("hangs", f"the run does not end: {self.lines()[-1:]}")
            self.kill()
            return
        if any(line.startswith("Traceback") for line in self.lines()):
            tally.defect("tracebacks", self.lines()[-1])
        elif code:
            tally.defect("wrong", f"the run ended with {code}: {self.lines()[-1:]}")
        self.count(tally)
        tally.expect(len(self.lines("iteration")) >= iterations or bool(code), "iterations are missing", "lost")

    def count(self, tally: Tally) -> None:
        for line in self.lines("iteration"):
            _, _, given, size, twice = line.split()
            if int(given) < int(size):
                tally.defect("lost", "rewards that were not given", int(size) - int(given))
            tally.expect(int(twice) == 0, f"{twice} rollouts were rewarded twice")
            tally.figures["rewards counted"] = tally.figures.get("rewards counted", 0) + int(given)

    def kill(self) -> None:
        """`kill -9`; its helpers are ended by their pids if they do not notice in time."""
        self.helpers |= descendants(self.process.pid)
        self.process.kill()
        self.process.wait()

    def gone(self, seconds: float) -> bool:
        """Whether all of its helpers end by themselves; those that do not are ended."""
        end = time.monotonic() + seconds
        while (left := [pid for pid in self.helpers if lives(pid)]) and time.monotonic() < end:
            time.sleep(0.2)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left


def variables(**more: str) -> dict[str, str]:
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0", **more}


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def kill_workers(choose: random.Random, count: int, folder: Path, model: Path, tally: Tally) -> None:
    """In each iteration a worker of either kind, at a random moment."""
    driver = Driver.start(folder, count + 2, model, *ONE_NODE)
    try:
        for number in range(count):
            if not driver.until("begins", number + 2):
                break
            time.sleep(choose.uniform(0.0, 0.4))
            workers = driver.workers()
            if workers:
                tally.tried += 1
                with contextlib.suppress(ProcessLookupError):
                    os.kill(choose.choice(workers), signal.SIGKILL)
        driver.judge(tally, count + 2)
    finally:
        driver.kill()
        driver.gone(LEFT)


def kill_driver(choose: random.Random, count: int, folder: Path, model: Path, tally: Tally) -> None:
    """The command itself; then the run goes on from its last checkpoint, and nothing of the first is left."""
    tally.tried += 1
    driver = Driver.start(folder, 1000, model, *ONE_NODE)
    alive = driver.until("iteration", 2)
    time.sleep(choose.uniform(0.0, 0.5))
    driver.workers()
    driver.kill()
    driver.count(tally)
    tally.expect(alive, f"the run ended by itself: {driver.lines()[-1:]}")
    tally.expect(driver.gone(LEFT), f"processes were left {LEFT:.0f} s after the driver was killed", "hangs")
    again = Driver.start(folder, 2, model, *ONE_NODE)
    try:
        again.judge(tally, 2)
    finally:
        again.kill()
        again.gone(LEFT)


@contextlib.contextmanager
def nodes(folder: Path, *, near: str, far: str, inside: tuple[str, ...] = ()) -> Iterator[tuple[str, Path, Started]]:
    """Two raylets, each ended by SIGTERM, as Ray wants it. inside: a command that runs the far one elsewhere."""
    from referee.runtime.engine import write_token

    token = folder / "token"
    write_token(token)
    with socket.socket() as free:
        free.bind((near, 0))
        port = free.getsockname()[1]
    ray = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--disable-usage-stats", "--num-cpus=2",
           "--object-store-memory=100000000"]  # fmt: skip
    settings = variables(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(token))
    started: Started = {}

    def start(name: str, *words: str, before: tuple[str, ...] = ()) -> None:
        with (folder / f"{name}.log").open("wb") as out:
            started[name] = subprocess.Popen([*before, *ray, *words], env=settings, stdout=out, stderr=out)

    helpers: set[int] = set()
    try:
        start("near", "--head", f"--port={port}", "--include-dashboard=false", f"--node-ip-address={near}",
              "--labels=node_group=near")  # fmt: skip
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                socket.create_connection((near, port), timeout=1).close()
                break
            time.sleep(0.2)
        start("far", f"--address={near}:{port}", f"--node-ip-address={far}", "--labels=node_group=far", before=inside)
        time.sleep(8)
        helpers = {pid for each in started.values() for pid in descendants(each.pid)}
        yield f"{near}:{port}", token, started
    finally:
        helpers |= {pid for each in started.values() for pid in descendants(each.pid)}
        for each in reversed(started.values()):
            each.send_signal(signal.SIGTERM)
        for each in started.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                each.wait(30)
        for pid in [pid for pid in helpers if lives(pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def kill_raylet(choose: random.Random, count: int, folder: Path, model: Path, tally: Tally) -> None:
    """The far machine goes down: one line, exit code 2, and the run goes on here from its last checkpoint."""
    tally.tried += 1
    with nodes(folder, near="127.0.0.2", far="127.0.0.3") as (address, token, started):
        place = [*TWO_NODES, f"cluster.address={address}", f"cluster.token_path={token}"]
        driver = Driver.start(folder, 1000, model, *place)
        tally.expect(driver.until("iteration", 2), f"the run does not start: {driver.lines()[-1:]}")
        raylets = [pid for pid in descendants(started["far"].pid) if _named(pid) == "raylet"]
        time.sleep(choose.uniform(0.0, 0.5))
        for pid in raylets:
            os.kill(pid, signal.SIGKILL)
        try:
            code = driver.process.wait(120)
            last = " ".join(driver.lines()[-1:])
            tally.expect(code == 2 and last.startswith("referee: "), f"a dead raylet ends with {code}: {last}")
            if any(line.startswith("Traceback") for line in driver.lines()):
                tally.defect("tracebacks", last)
        except subprocess.TimeoutExpired:
            tally.defect("hangs", "the run does not notice that a raylet is dead")
        driver.kill()
        driver.count(tally)
    again = Driver.start(folder, 2, model, "cluster.component_placement={env: 0-0, reward: 0-0}")
    try:
        again.judge(tally, 2)
    finally:
        again.kill()
        again.gone(LEFT)


def kill_own_raylet(choose: random.Random, count: int, folder: Path, model: Path, tally: Tally) -> None:
    """Ray's process beside the driver: Ray would end the run without a word; one line says so, and it can go on."""
    tally.tried += 1
    driver = Driver.start(folder, 1000, model, *ONE_NODE)
    tally.expect(driver.until("iteration", 2), f"the run does not start: {driver.lines()[-1:]}")
    driver.workers()
    time.sleep(choose.uniform(0.0, 0.5))
    for pid in [pid for pid in driver.helpers if _named(pid) == "raylet"]:
        os.kill(pid, signal.SIGKILL)
    try:
        code = driver.process.wait(120)
        told = [line for line in driver.lines("referee: ") if "raylet" in line]
        tally.expect(code in (1, 2) and len(told) == 1, f"its own raylet's death ends with {code}, told: {told}")
    except subprocess.TimeoutExpired:
        tally.defect("hangs", "the run does not notice that its own raylet is dead")
    driver.kill()
    driver.count(tally)
    driver.gone(LEFT)
    again = Driver.start(folder, 2, model, *ONE_NODE)
    try:
        again.judge(tally, 2)
    finally:
        again.kill()
        again.gone(LEFT)


def cut_off(choose: random.Random, count: int, folder: Path, model: Path, tally: Tally) -> None:
    """The far node has a network of its own, and its cable is out for ten seconds: the run goes on."""
    with contextlib.ExitStack() as stack:
        problem = stack.enter_context(far_network())
        if problem is not None:
            tally.skipped.append(problem)
            return
        tally.tried += 1
        inside = ("ip", "netns", "exec", SPACE)
        address, token, _ = stack.enter_context(nodes(folder, near=NEAR, far=FAR, inside=inside))
        place = [*TWO_NODES, f"cluster.address={address}", f"cluster.token_path={token}"]
        driver = Driver.start(folder, 12, model, *place)
        try:
            tally.expect(driver.until("iteration", 3), f"the run does not start: {driver.lines()[-1:]}")
            time.sleep(choose.uniform(0.0, 0.5))
            _ip("link", "set", OUTER, "down")
            time.sleep(CUT)
            _ip("link", "set", OUTER, "up")
            before = len(driver.lines("iteration"))
            began = time.monotonic()
            driver.until("iteration", before + 1)
            tally.worst("seconds until it goes on after the cable is back", time.monotonic() - began)
            driver.judge(tally, 12)
        finally:
            driver.kill()


@contextlib.contextmanager
def far_network() -> Iterator[str | None]:
    """A network namespace with one cable to this one; hands back why there is none, where there is none."""
    if shutil.which("ip") is None:
        yield "a node cut off: there is no `ip` here (apt-get install iproute2)"
        return
    try:
        _ip("netns", "add", SPACE)
    except subprocess.CalledProcessError as error:
        yield f"a node cut off: no network namespace may be made here ({error.stderr.decode().strip()})"
        return
    try:
        _ip("link", "add", OUTER, "type", "veth", "peer", "name", INNER)
        _ip("link", "set", INNER, "netns", SPACE)
        _ip("addr", "add", f"{NEAR}/24", "dev", OUTER)
        _ip("link", "set", OUTER, "up")
        for words in (
            ("addr", "add", f"{FAR}/24", "dev", INNER),
            ("link", "set", INNER, "up"),
            ("link", "set", "lo", "up"),
        ):
            _ip("netns", "exec", SPACE, "ip", *words)
        yield None
    finally:
        for words in (("link", "del", OUTER), ("netns", "del", SPACE)):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip(*words)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _named(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""
