"""Prints what a cluster costs and brings: Ray beside one process, two env workers, reward workers near and far, deaths.

PPO on PickCube, 64 environments, one thread for each worker, paid by a small ResNet (two views of 64 px); where it sees
every state, rollouts have 10 steps. What is compared takes turns: a machine's speed may change from minute to minute.
All of it is one run; `--part` gives one table.
"""

import argparse
import contextlib
import logging
import os
import pickle
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from referee import cpu

cpu.cap_if_needed()

import torch  # noqa: E402 - after the cap

from referee.config import Config, load  # noqa: E402
from referee.config.cluster import ClusterConfig, NodeGroupConfig, PlacementConfig  # noqa: E402
from referee.demo.ablation_runs import QUIET  # noqa: E402
from referee.learn.batch import RolloutBatch  # noqa: E402
from referee.learn.source import WorkerSource, launch_scorers  # noqa: E402
from referee.learn.trainer import Trainer  # noqa: E402
from referee.learn.worker import RolloutWorker  # noqa: E402
from referee.models import Artifact, Calibration, ModelSpec, build  # noqa: E402
from referee.models.packed import Packed  # noqa: E402
from referee.runtime import Cluster  # noqa: E402
from referee.runtime.engine import write_token  # noqa: E402

COMMON = ["actor.num_threads=1", "env.train.num_threads=1", "env.eval.num_threads=1", "env.eval.num_envs=1"]
RAY = ["cluster.backend=ray", "cluster.component_placement={env: 0-0, reward: 0-0}"]
TWO = ["cluster.backend=ray", "cluster.component_placement={env: 0-1, reward: 0-0}"]
WARM = 2
"""Iterations that are not counted."""


def small_model(folder: Path) -> Path:
    """A ResNet10 that nobody trained: what it says does not matter here."""
    torch.manual_seed(0)
    spec = ModelSpec(arch="resnet10", width=16, image_size=64, cameras=("front", "side"), hidden_dim=64)
    Artifact(build(spec).eval(), Calibration(), {}).save(folder / "model")
    return folder / "model"


def paid_by(model: Path, mode: str) -> list[str]:
    short = ["algorithm.rollout_steps=10", "actor.global_batch_size=640"] if mode == "per_step" else []
    return [*short, "reward.use_reward_model=true", f"reward.model.model_path={model}", f"reward.reward_mode={mode}"]


def seconds_of(run: Trainer) -> float:
    return timed(run.iterate)


@contextlib.contextmanager
def training(lines: list[str], preset: str = "panda_ppo_mlp") -> Iterator[Trainer]:
    config = load(preset, [*COMMON, *lines]).config
    with tempfile.TemporaryDirectory() as folder:
        run = Trainer(config, Path(folder))
        try:
            run.warm_start(QUIET)
            for _ in range(WARM):
                run.iterate()
            yield run
        finally:
            run.close()


def overhead(model: Path, iterations: int) -> None:
    """The same preset in one process and under Ray, an iteration of each in turn."""
    print("\nRay beside one process, 1 env worker, 1 reward worker, one thread each\n")
    print("| paid | steps/s, one process | steps/s, Ray | ratio | ms more per iteration | of an iteration of |")
    print("|---|--:|--:|--:|--:|--:|", flush=True)
    ways = [("by the environment", [])] + [(f"by a model, {mode}", paid_by(model, mode)) for mode in MODES]
    for name, lines in ways:
        with training(lines) as alone, training([*lines, *RAY]) as placed:
            pairs = [(seconds_of(alone), seconds_of(placed)) for _ in range(iterations)]
            size = alone.rollout.steps * alone.rollout.num_envs
        one, other = (statistics.median(each) for each in zip(*pairs, strict=True))
        ratio = statistics.median(here / there for here, there in pairs)
        print(f"| {name} | {size / one:,.0f} | {size / other:,.0f} | {ratio:.3f} | {1e3 * (other - one):.1f} "
              f"| {1e3 * one:.0f} ms |", flush=True)  # fmt: skip


MODES = ("terminal", "per_step")
ENV_BOUND = ["algorithm.update_epochs=1", "actor.global_batch_size=1600"]


def scaling(model: Path, iterations: int) -> None:
    """The same 64 environments in one worker, and shared by two."""
    print("\nTwo env workers beside one, one thread each, under Ray; one pass of PPO over each rollout\n")
    print("| paid | | steps/s, 1 env worker | steps/s, 2 env workers | ratio |\n|---|---|--:|--:|--:|", flush=True)
    for name, lines in (("by the environment", []), ("by a model, per_step", paid_by(model, "per_step"))):
        speeds: dict[str, list[dict[str, float]]] = {"1": [], "2": []}
        for _ in range(2):
            for key, where in (("1", RAY), ("2", TWO)):
                with training([*ENV_BOUND, *lines, *where]) as run:
                    for _ in range(iterations):
                        start = time.perf_counter()
                        row = run.iterate()
                        speeds[key].append({"all": time.perf_counter() - start, "rollout": row["time/rollout"]})
                    size = run.rollout.steps * run.rollout.num_envs
        for label, key in (("whole iterations", "all"), ("rollouts alone", "rollout")):
            one, two = (size / statistics.median(row[key] for row in speeds[who]) for who in ("1", "2"))
            print(f"| {name} | {label} | {one:,.0f} | {two:,.0f} | {two / one:.2f} |", flush=True)


@contextlib.contextmanager
def two_raylets() -> Iterator[tuple[str, Path]]:
    """Two nodes on this machine, each with its own loopback address."""
    place = Path(tempfile.mkdtemp(prefix="referee-nodes-"))
    token = place / "token"
    write_token(token)
    with socket.socket() as free:
        free.bind(("127.0.0.2", 0))
        address = f"127.0.0.2:{free.getsockname()[1]}"
    variables = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    command = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--disable-usage-stats",
               "--num-cpus=1", "--object-store-memory=300000000"]  # fmt: skip
    head = ["--head", f"--port={address.rpartition(':')[2]}", "--include-dashboard=false",
            "--node-ip-address=127.0.0.2", "--labels=node_group=near"]  # fmt: skip
    other = [f"--address={address}", "--node-ip-address=127.0.0.3", "--labels=node_group=far"]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for options in (head, other):
            started.append(subprocess.Popen([*command, *options], env=variables, stdout=subprocess.DEVNULL,
                                            stderr=subprocess.DEVNULL))  # fmt: skip
            time.sleep(10)
        yield address, token
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(60)
        shutil.rmtree(place, ignore_errors=True)


def latency(model: Path, requests: int) -> None:
    """The way of a request: pictures into shared memory, to the reward worker, its verdict back."""
    print("\nImages through a reward worker, each with two views of 64 px; one thread\n")
    print("| images in a request | MB | reward worker | images/s | median, ms | 99 %, ms |\n|--:|--:|---|--:|--:|--:|")
    deliveries = {(envs, steps): delivery_of(model, envs, steps) for envs, steps in ((1, 1), (64, 1), (64, 4))}
    places = {"reward": PlacementConfig(placement=0)}
    far = {"reward": PlacementConfig(node_group="far", placement=0)}
    groups = (NodeGroupConfig(label="near", node_ranks=0), NodeGroupConfig(label="far", node_ranks=1))
    with two_raylets() as (address, token):
        ways = (
            ("the same process", ClusterConfig(component_placement=places)),
            ("another process", ClusterConfig(backend="ray", component_placement=places)),
            ("another node", ClusterConfig(backend="ray", num_nodes=2, address=address, token_path=str(token),
                                           component_placement=far, node_groups=groups)),
        )  # fmt: skip
        for name, where in ways:
            with Cluster(where) as cluster:
                for (envs, steps), (config, run, delivery) in deliveries.items():
                    judges = launch_scorers(cluster, config, run.reward)
                    assert judges is not None and run.refinement is not None
                    packed = judges.share(Packed.of(run.reward.manager.artifact))
                    times = []
                    for _ in range(requests + 5):
                        start = time.perf_counter()
                        judges.score(judges.share(delivery), run.reward.cameras, packed, 0).wait()
                        times.append(time.perf_counter() - start)
                    times, count = times[5:], envs * steps
                    size = sum(images.nbytes for images in delivery.drawn.values()) / 1e6
                    print(f"| {count} | {size:.3g} | {name} | {count / statistics.mean(times):,.0f} "
                          f"| {1e3 * statistics.median(times):.1f} | {1e3 * np.quantile(times, 0.99):.1f} |",
                          flush=True)  # fmt: skip
    for _, run, _ in deliveries.values():
        run.close()


def delivery_of(model: Path, envs: int, steps: int, mode: str = "per_step") -> tuple[Config, Trainer, RolloutBatch]:
    """A rollout with its pictures, as an env worker sends it."""
    lines = [*paid_by(model, mode), f"env.train.num_envs={envs}", f"algorithm.rollout_steps={steps}",
             f"actor.global_batch_size={min(640, envs * steps)}"]  # fmt: skip
    config = load("panda_ppo_mlp", [*COMMON, *lines]).config
    folder = Path(tempfile.mkdtemp(prefix="referee-crew-"))
    run = Trainer(config, folder)
    crew = RolloutWorker(config, folder, run.policy.spec)
    made = crew.collect(0)
    crew.close()
    shutil.rmtree(folder, ignore_errors=True)
    return config, run, made


def recovery(model: Path, times: int) -> None:
    """A worker is killed in the middle of an iteration; how much longer that one takes, and what was paid."""
    print("\nA worker killed in the middle of an iteration (2 env workers, 1 reward worker, per_step)\n")
    print("| killed | s more, median | largest | made again | rewards lost | paid twice | rewards as without |")
    print("|---|--:|--:|--:|--:|--:|--:|", flush=True)
    lines = [*ENV_BOUND, *paid_by(model, "per_step"), "cluster.max_restarts=1000"]
    with training([*lines, "cluster.component_placement={env: 0-1, reward: 0-0}", "cluster.backend=ray"]) as run:
        source = run.source
        assert isinstance(source, WorkerSource) and source.scorers is not None
        paid: list[int] = []
        relabel = run.relabel

        def counted(batch: RolloutBatch) -> None:
            relabel(batch)
            paid.append(int(np.isfinite(batch.rollout.rewards).sum()))

        run.relabel = counted  # type: ignore[method-assign]
        normal = statistics.median(seconds_of(run) for _ in range(3))
        size = run.rollout.steps * run.rollout.num_envs
        for name, group, share in (("an env worker", source.group, 0.3), ("the reward worker", source.scorers, 0.8)):
            more, wanted, again = [], 0, 0
            paid.clear()
            for _ in range(times):
                source.group.keep()
                pid = group.pid().wait()[0]
                threading.Timer(share * normal, os.kill, (pid, signal.SIGKILL)).start()
                more.append(seconds_of(run) - normal)
                wanted += size
                again += group.pid().wait()[0] != pid
            lost, twice = max(0, wanted - sum(paid)), max(0, sum(paid) - wanted)
            print(f"| {name} | {statistics.median(more):.2f} | {max(more):.2f} | {again} of {times} | {lost} "
                  f"| {twice} | {sum(paid):,} of {wanted:,} |", flush=True)  # fmt: skip


def paper(model: Path, times: int) -> None:
    """What 64 env workers and 8 reward workers would ask of a network and of one learner, from one worker of each."""
    workers, judges, envs = 64, 8, 64
    print(
        f"\n{workers} env workers of {envs} environments, {judges} reward workers: on paper, from one worker of each\n"
    )
    print("| | terminal | per_step |\n|---|--:|--:|")
    rows: dict[str, list[str]] = {}
    for mode, steps in (("terminal", 50), ("per_step", 10)):
        config, run, made = delivery_of(model, envs, steps, mode)
        crew = RolloutWorker(config, Path(), run.policy.spec)
        seconds = statistics.median(timed(partial(crew.collect, 0)) for _ in range(times))
        assert run.refinement is not None
        with Cluster(ClusterConfig()) as cluster:
            judge = launch_scorers(cluster, config, run.reward)
            assert judge is not None
            packed, cameras = Packed.of(run.reward.manager.artifact), run.reward.cameras
            look = partial(judge.score, made, cameras, packed, 0)
            look()
            judging = statistics.median(timed(look) for _ in range(times))
        size, drawn = len(pickle.dumps(made, 5)), len(pickle.dumps(made.drawn, 5))
        weights = len(pickle.dumps({name: each.numpy() for name, each in run.policy.state_dict().items()}, 5))
        run.warm_start(QUIET)
        run.iterate()
        run.learner.remember(run.rollout)
        update = partial(run.learner.learn, progress=0.0, iteration=99)
        learning = statistics.median(timed(update) for _ in range(times))
        shown = len(made.rollout.finals) if mode == "terminal" else envs * steps
        crew.close()
        run.close()
        rollouts, samples = workers / seconds, envs * steps
        for name, value in {
            "bytes per step to the command, without pictures": (size - drawn) / samples,
            "bytes per step, pictures": drawn / samples,
            "bytes per step, weights to the env workers": weights / samples,
            "steps/s of one env worker, drawing included": samples / seconds,
            f"steps/s of {workers}": workers * samples / seconds,
            "messages/s at the command (two calls, two answers a rollout)": 4 * rollouts,
            "MB/s into the command, with pictures": rollouts * size / 1e6,
            "MB/s into each reward worker": rollouts * size / judges / 1e6,
            "images/s asked of each reward worker": rollouts * shown / judges,
            "images/s that one gives, one thread": shown / judging,
            "steps/s that the learner takes, one thread": samples / learning,
        }.items():
            rows.setdefault(name, []).append(f"{value:,.0f}")
    for name, values in rows.items():
        print(f"| {name} | {' | '.join(values)} |")


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--part", choices=("overhead", "scaling", "latency", "recovery", "paper"), help="one table alone"
    )
    parser.add_argument("--iterations", type=int, default=12)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        model = small_model(Path(folder))
        if args.part in (None, "overhead"):
            overhead(model, args.iterations)
        if args.part in (None, "scaling"):
            scaling(model, args.iterations // 2)
        if args.part in (None, "latency"):
            latency(model, 20 * args.iterations)
        if args.part in (None, "recovery"):
            recovery(model, max(2, args.iterations // 2))
        if args.part in (None, "paper"):
            paper(model, max(2, args.iterations // 2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
