"""Run by the interpreter of a suite's environment: record, train, score and audit there, as a user would."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("MUJOCO_GL", "egl")

import gymnasium as gym
import numpy as np

from referee.episodes import EpisodeStore
from referee.episodes.gym_recorder import GymRecorder

Policy = Callable[[Any], np.ndarray]
Suite = tuple[gym.Env[Any, Any], Policy, float, dict[str, Any]]
"""The environment, its scripted policy, how far a clumsy one shakes, and what the recorder must be told."""
PIXELS = 64


def metaworld() -> Suite:
    """Its reach task with its own scripted policy."""
    import metaworld  # noqa: F401 - registers the environments
    from metaworld.policies import ENV_POLICY_MAP

    env = gym.make(
        "Meta-World/MT1", env_name="reach-v3", seed=0, render_mode="rgb_array", camera_name="corner2", width=128,
        height=128, max_episode_steps=80,
    )  # fmt: skip
    plain(env)
    expert = ENV_POLICY_MAP["reach-v3"]()
    return env, expert.get_action, 1.0, {}


def gym_hil() -> Suite:
    """Picking up a cube, seen by both cameras of the observation; the block is where `environment_state` has it."""
    import gym_hil  # noqa: F401
    import mujoco

    env = gym.make("gym_hil/PandaPickCubeBase-v0", image_obs=True, random_block_position=True, max_episode_steps=50)
    world: Any = env.unwrapped
    plain(env)
    world._viewer = mujoco.Renderer(world._model, PIXELS, PIXELS)

    def expert(observation: Any) -> np.ndarray:
        block, hand = world._data.sensor("block_pos").data, world._data.sensor("2f85/pinch_pos").data
        way = block - hand
        over, on = np.linalg.norm(way[:2]) < 0.02, np.linalg.norm(way) < 0.02
        closed = on and world.get_gripper_pose()[0] > 0
        up = 0.1 if closed else way[2] if over else way[2] + 0.1
        move = np.clip(0.4 * np.array([*way[:2], up]), -0.04, 0.04)  # metres
        return np.array([*move, 0, 0, 0, 1.0 if on else -1.0])

    return env, expert, 0.05, {"success": "succeed"}


def gymnasium_robotics() -> Suite:
    """FetchReach, seen by two cameras that move with the gripper."""
    import gymnasium_robotics

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from fetch_world import views

    gym.register_envs(gymnasium_robotics)
    env = gym.make("FetchReach-v4")

    def expert(observation: Any) -> np.ndarray:
        return np.array([*(observation["desired_goal"] - observation["achieved_goal"]) * 10, 0.0])

    return env, expert, 3.0, {"images": views}


def plain(env: gym.Env[Any, Any]) -> None:
    """Draw without smooth edges and shadows, which software drivers are slow at."""
    quality = env.unwrapped.model.vis.quality  # type: ignore[attr-defined]
    quality.offsamples = quality.shadowsize = 0


SUITES = {"metaworld": metaworld, "gym_hil": gym_hil, "gymnasium_robotics": gymnasium_robotics}


def record(suite: str, out: Path, episodes: int, seed: int) -> EpisodeStore:
    """Episodes of the scripted policy; in every second one its actions shake."""
    env, expert, shake, options = SUITES[suite]()
    recorder = GymRecorder(env, out, image_size=PIXELS, **options)
    random = np.random.default_rng(seed)
    box: Any = env.action_space
    for episode in range(episodes):
        observation, _ = recorder.reset(seed=seed + episode)
        noise, ended = (0.1 * shake, shake)[episode % 2], False
        while not ended:
            action = expert(observation) + noise * random.standard_normal(box.shape)
            observation, _, terminated, truncated, _ = recorder.step(np.clip(action, -1, 1).astype(box.dtype))
            ended = terminated or truncated
    recorder.close()
    return EpisodeStore(out)


def referee(*arguments: str | Path) -> None:
    """Type a command."""
    print("$ referee", *arguments, flush=True)
    subprocess.run([Path(sys.executable).with_name("referee"), *arguments], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", choices=list(SUITES))
    parser.add_argument("work", type=Path)
    parser.add_argument("--episodes", type=int, default=24)
    args = parser.parse_args()
    shutil.rmtree(args.work, ignore_errors=True)
    start = time.perf_counter()
    store = record(args.suite, args.work / "episodes", args.episodes, seed=0)
    recording = time.perf_counter() - start
    record(args.suite, args.work / "unseen", args.episodes // 2, seed=10_000)
    model = args.work / "reward" / "checkpoints" / "best_model"
    referee("episodes", "ls", store.root)
    referee("episodes", "view", store.root, "--out", args.work / "episodes.png")
    start = time.perf_counter()
    referee("train", store.root, "--out", args.work / "reward")
    training = time.perf_counter() - start
    referee("score", model, args.work / "unseen")
    referee("audit", model, args.work / "unseen")
    lines = [json.loads(line) for line in (args.work / "reward" / "metrics.jsonl").read_text().splitlines()]
    best = min((line for line in lines if "val/loss" in line), key=lambda line: line["val/loss"])
    report = json.loads((model / "report" / "metrics.json").read_text())
    episodes = list(store)
    result = {
        "mujoco": version("mujoco"), "episodes": len(episodes), "recording": recording, "training": training,
        "successes": sum(bool(each.success_once) for each in episodes), "environment": episodes[0].meta.task,
        "validation": best["val/auroc"], "unseen": report["estimates"]["auroc"]["value"],
    }  # fmt: skip
    (args.work / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
