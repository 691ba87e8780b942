"""Times random actions in one environment per process and prints the peers' common result line."""

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"  # before numpy starts its threads; the processes are the parallelism

import numpy as np  # noqa: E402

WARMUP_SECONDS = 2.0
START_TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True)
class Stepper:
    """One environment reduced to what the clock needs; `step` returns whether the episode ended."""

    reset: Callable[[], Any]
    step: Callable[[np.ndarray], bool]
    low: np.ndarray
    high: np.ndarray
    facts: dict[str, Any]


def gymnasium_stepper(env: Any, **facts: Any) -> Stepper:
    """Wrap a Gymnasium env with a Box action space."""

    def step(action: np.ndarray) -> bool:
        _, _, terminated, truncated, _ = env.step(action)
        return bool(terminated or truncated)

    return Stepper(env.reset, step, env.action_space.low, env.action_space.high, facts)


def random_actions(low: np.ndarray, high: np.ndarray, *, batch: tuple[int, ...], seed: int) -> np.ndarray:
    """512 action batches drawn before the clock starts, so that sampling is charged to nobody."""
    rng = np.random.default_rng(seed)
    return rng.uniform(low, high, size=(512, *batch, *low.shape)).astype(low.dtype)


def steps_until(seconds: float, step: Callable[[np.ndarray], Any], actions: np.ndarray) -> float:
    """Calls of `step` per second over at least `seconds`, and at least one call."""
    calls, start, elapsed = 0, time.perf_counter(), 0.0
    while elapsed < seconds or not calls:
        step(actions[calls % len(actions)])
        calls += 1
        elapsed = time.perf_counter() - start
    return calls / elapsed


_start_line: Barrier


def _remember(barrier: Barrier) -> None:
    global _start_line
    _start_line = barrier


def _one_process(make: Callable[[], Stepper], seconds: float, seed: int) -> tuple[float, dict[str, Any]]:
    try:
        stepper = make()
        actions = random_actions(stepper.low, stepper.high, batch=(), seed=seed)

        def step(action: np.ndarray) -> None:
            if stepper.step(action):
                stepper.reset()

        stepper.reset()
        steps_until(WARMUP_SECONDS, step, actions)
        _start_line.wait(START_TIMEOUT_SECONDS)
    except BaseException:
        _start_line.abort()  # the other processes must not wait for this one
        raise
    return steps_until(seconds, step, actions), stepper.facts


def time_processes(make: Callable[[], Stepper], *, seconds: float, processes: int) -> tuple[float, dict[str, Any]]:
    """Env steps per second of all processes together, timed over the same stretch, and the env's facts."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(processes)
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_remember, initargs=(barrier,)) as pool:
        jobs = [pool.submit(_one_process, make, seconds, seed) for seed in range(processes)]
        results = [job.result() for job in jobs]
    return sum(rate for rate, _ in results), results[0][1]


def arguments(description: str) -> argparse.ArgumentParser:
    """The options that every runner shares."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of the timed stretch")
    parser.add_argument("--processes", type=int, default=2, help="processes, each with one env")
    return parser


def report(name: str, *, env_id: str, version: str, rate: float, facts: dict[str, Any], notes: str) -> None:
    """Print the one JSON line that sim_speed.py reads; `facts` holds control_hz and substeps."""
    line = {"name": name, "env_id": env_id, "version": version, "steps_per_second": round(rate, 2)}
    print(json.dumps(line | facts | {"notes": notes}), flush=True)
