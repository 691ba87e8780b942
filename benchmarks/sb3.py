"""What the comparisons with Stable-Baselines3 share: our simulation as its VecEnv, fresh processes, learning curves."""

import multiprocessing
import statistics
from concurrent.futures import ProcessPoolExecutor
from typing import Any


def adapt(config: Any, seed: int) -> Any:
    """The same simulation through SB3's own interface; `ends` collects the truth about finished episodes."""
    import numpy as np
    from gymnasium import spaces
    from stable_baselines3.common.vec_env import VecEnv

    from referee.envs import make_vec

    world = make_vec(config)

    class Adapter(VecEnv):
        def __init__(self) -> None:
            size = world.single_observation_space["states"].shape
            super().__init__(world.num_envs, spaces.Box(-np.inf, np.inf, size, np.float32), world.single_action_space)
            self.ends: list[bool] = []

        def reset(self):
            return world.reset(seed=10_000 * seed)[0]["states"]

        def step_async(self, actions):
            self.actions = np.clip(actions, -1.0, 1.0)

        def step_wait(self):
            observation, rewards, terminated, truncated, info = world.step(self.actions)
            done = terminated | truncated
            infos: list[dict[str, Any]] = [{} for _ in range(world.num_envs)]
            for i in np.flatnonzero(done):
                infos[i] = {
                    "terminal_observation": info["final_obs"][i]["states"],
                    "TimeLimit.truncated": bool(truncated[i] and not terminated[i]),
                }
                self.ends.append(bool(info["final_info"]["success"][i]))
            return observation["states"], rewards.astype(np.float32), done, infos

        def close(self):
            world.close()

        def get_attr(self, name, indices=None):
            return [None] * world.num_envs

        def set_attr(self, name, value, indices=None):
            raise NotImplementedError

        def env_method(self, name, *args, indices=None, **kwargs):
            raise NotImplementedError

        def env_is_wrapped(self, wrapper, indices=None):
            return [False] * world.num_envs

    return Adapter()


def fresh(function: Any, *args: Any) -> dict[str, Any]:
    """Run in a process of its own, so that neither finds the other's threads."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


def print_learning(curves: dict[str, list[list[list[float]]]], window: int = 10, points: int = 8) -> None:
    """Success of training episodes (with exploration), over `window` iterations before each point, over seeds."""
    print("\nSuccess at the end of training episodes against steps: mean (lowest–highest seed)\n")
    last = max(step for runs in curves.values() for curve in runs for step, _ in curve)
    marks = [last * (i + 1) / points for i in range(points)]
    print("| steps | " + " | ".join(curves) + " |\n|---:|" + "---:|" * len(curves))
    for mark in marks:
        cells = []
        for runs in curves.values():
            ends = []
            for curve in runs:
                seen = [value for step, value in curve if step <= mark and value == value][-window:]
                ends.append(100 * statistics.mean(seen) if seen else 0.0)
            cells.append(f"{statistics.mean(ends):.0f} % ({min(ends):.0f}–{max(ends):.0f})")
        print(f"| {mark:,.0f} | " + " | ".join(cells) + " |")
