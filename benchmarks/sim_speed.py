"""Prints one table of env steps per second on two cores: Referee's PickCube beside other Panda simulators."""

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

PEERS = Path(__file__).resolve().parent / "peers"
BENCH = PEERS.parents[1] / ".bench"
SETUP_LINE = "python benchmarks/peers/setup.py"
WARMUP_SECONDS = 2.0
CORES = 2
RATIO_ENVS = 64  # the ratio column uses this row of ours: the same batch as EnvPool's


class NotMeasuredError(Exception):
    """A row that cannot be measured here; the message says what to do."""


@dataclass(frozen=True)
class Row:
    """One line of the table: ours with `num_envs` environments, or a peer's runner with its arguments."""

    key: str
    label: str
    arguments: tuple[str, ...] = ()
    num_envs: int = 0


ROWS = (
    Row("referee", "Referee, 64 envs", num_envs=64),
    Row("referee", "Referee, 256 envs", num_envs=256),
    Row("gym_hil", "gym-hil"),
    Row("gym_hil", "gym-hil, images", ("--images",)),
    Row("panda_gym", "panda-gym"),
    Row("robosuite", "robosuite"),
    Row("envpool", "EnvPool", ("--env-id", "PandaPickCube-v1")),
    Row("envpool", "EnvPool, Cartesian", ("--env-id", "PandaPickCubeCartesian-v1")),
)


def measure_referee(num_envs: int, seconds: float) -> dict[str, Any]:
    """Our PickCube in state mode with random actions, as the same fields that a peer's runner prints."""
    import numpy as np

    from referee.config import PandaEnvConfig
    from referee.envs import make_vec
    from referee.sim.scene import CONTROL_HZ, SUBSTEPS

    env = make_vec(PandaEnvConfig(task="PickCube", num_envs=num_envs, obs_mode="state"))
    shape = (512, *env.action_space.shape)  # drawn before the clock starts, as for the peers
    actions = np.random.default_rng(0).uniform(-1.0, 1.0, size=shape).astype(np.float32)

    def rate(duration: float) -> float:
        calls, start, elapsed = 0, time.perf_counter(), 0.0
        while elapsed < duration:
            env.step(actions[calls % len(actions)])
            calls += 1
            elapsed = time.perf_counter() - start
        return num_envs * calls / elapsed

    env.reset(seed=0)
    rate(WARMUP_SECONDS)
    steps_per_second = rate(seconds)
    env.close()
    return {
        "name": "Referee",
        "env_id": "PickCube",
        "version": f"{version('referee')} (mujoco {version('mujoco')})",
        "steps_per_second": steps_per_second,
        "control_hz": CONTROL_HZ,
        "substeps": SUBSTEPS,
        "notes": f"{num_envs} envs, {CORES} cores, one process, same-step autoreset, end-effector control",
    }


def run_referee(row: Row, seconds: float) -> dict[str, Any]:
    """`measure_referee` in a fresh process: two thread pools in one process would slow each other."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(measure_referee, row.num_envs, seconds).result()
        except ImportError as error:
            raise NotMeasuredError(f"{error}; run this with the project's .venv/bin/python") from error


def run_peer(row: Row, seconds: float) -> dict[str, Any]:
    """The JSON line that the peer's runner prints, run by the peer's own interpreter."""
    python = BENCH / row.key / "bin" / "python"
    if not python.exists():
        raise NotMeasuredError(f"no {BENCH.name}/{row.key}; create it with `{SETUP_LINE} {row.key}`")
    command = [python, PEERS / f"{row.key}_steps.py", "--seconds", str(seconds), "--processes", str(CORES)]
    try:
        done = subprocess.run([*command, *row.arguments], capture_output=True, text=True, timeout=seconds + 600)
    except subprocess.TimeoutExpired as error:
        raise NotMeasuredError(f"no result after {error.timeout:.0f} s") from error
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        reason = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise NotMeasuredError(f"its runner failed ({reason}); if a package is missing: `{SETUP_LINE} {row.key}`")
    return json.loads(lines[-1])


def measure(rows: list[Row], *, seconds: float, repeat: int) -> tuple[dict[Row, list[dict[str, Any]]], list[str]]:
    """Every row `repeat` times, interleaved, so that a slow spell of the machine falls on all alike."""
    results: dict[Row, list[dict[str, Any]]] = {row: [] for row in rows}
    missing: dict[Row, str] = {}
    for repetition in range(repeat):
        for row in rows:
            if row in missing:
                continue
            print(f"[{repetition + 1}/{repeat}] {row.label} …", file=sys.stderr, flush=True)
            try:
                result = run_referee(row, seconds) if row.num_envs else run_peer(row, seconds)
            except NotMeasuredError as error:
                missing[row] = str(error)
                results.pop(row)
            else:
                results[row].append(result)
    return results, [f"{row.label}: not measured: {reason}" for row, reason in missing.items()]


def number(value: float) -> str:
    """Three digits or more, with thousands separated: 12,792 / 128 / 2.36."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table(results: dict[Row, list[dict[str, Any]]]) -> str:
    """The Markdown table: medians, range, and the median of the ratios within each repetition."""
    rates = {row: [run["steps_per_second"] for run in runs] for row, runs in results.items()}
    ours = next((rates[row] for row in rates if row.num_envs == RATIO_ENVS), None)
    lines = [
        "| name | version | env | Hz (substeps) | env-steps/s | min-max | simulated s/s | Referee / it |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    for row, runs in results.items():
        fact, median = runs[0], statistics.median(rates[row])
        ratios = [a / b for a, b in zip(ours, rates[row], strict=True)] if ours else []
        cells = (
            row.label,
            fact["version"],
            fact["env_id"],
            f"{fact['control_hz']} ({fact['substeps']})",
            number(median),
            f"{number(min(rates[row]))}-{number(max(rates[row]))}",
            number(median / fact["control_hz"]),
            f"{statistics.median(ratios):.3g}" if ratios else "-",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    keys = list(dict.fromkeys(row.key for row in ROWS))
    parser.add_argument("--only", default=",".join(keys), help=f"comma-separated, of {', '.join(keys)}")
    parser.add_argument("--seconds", type=float, default=10.0, help="timed stretch of each measurement")
    parser.add_argument("--repeat", type=int, default=3, help="repetitions; the table shows their median")
    args = parser.parse_args()
    chosen = args.only.split(",")
    if unknown := sorted(set(chosen) - set(keys)):
        parser.error(f"unknown name {unknown[0]!r} in --only; choose from {', '.join(keys)}")
    if args.repeat < 1 or args.seconds <= 0:
        parser.error("--repeat must be at least 1 and --seconds above 0")

    os.environ["OMP_NUM_THREADS"] = "1"
    rows = [row for row in ROWS if row.key in chosen]
    results, missing = measure(rows, seconds=args.seconds, repeat=args.repeat)
    if results:
        print(table(results))
        print(f"\nMedian of {args.repeat} x {args.seconds:g} s on {CORES} cores, rows interleaved;", end=" ")
        print(f"ratios use Referee with {RATIO_ENVS} envs, within each repetition. Settings:")
        for row, runs in results.items():
            print(f"- {row.label}: {runs[0]['notes']}")
    for line in missing:
        print(line)
    return 0 if results else 1


if __name__ == "__main__":
    sys.exit(main())
