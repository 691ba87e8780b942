"""Stable-Baselines3's PPO on the reward that an artifact sees: python examples/wrap_sb3.py ARTIFACT --task Reach"""

import argparse
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3 import PPO

from referee.config import PandaEnvConfig
from referee.envs import make_vec
from referee.models import Artifact
from referee.rewards.wrapper import RewardModelWrapper

CAMERAS = ("front", "side", "wrist")


class OneArm(gym.Env[np.ndarray, np.ndarray]):
    """The embedded Panda as anybody's environment: a state to act on, pictures to be judged by."""

    def __init__(self, task: str, image_size: int) -> None:
        config = PandaEnvConfig(task=task, num_envs=1, cameras=CAMERAS, image_size=image_size, num_threads=1)
        self.arm, self.ended = make_vec(config), False
        self.observation_space = self.arm.single_observation_space["states"]  # type: ignore[index]
        self.action_space = self.arm.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        self.ended = False
        return self.arm.reset(seed=seed)[0]["states"][0], {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        observations, rewards, terminated, truncated, info = self.arm.step(action[None])
        self.ended = bool(terminated[0] or truncated[0])  # then the arm has begun its next episode already
        state = info["final_obs"][0]["states"] if self.ended else observations["states"][0]
        truth = (info["final_info"] if self.ended else info)["success"][0]
        return state, float(rewards[0]), bool(terminated[0]), bool(truncated[0]), {"true_success": bool(truth)}

    def pictures(self) -> dict[str, np.ndarray]:
        return self.arm.render_cameras(final=self.ended)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("artifact")
    parser.add_argument("--task", default="PickCube")
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    artifact = Artifact.open(args.artifact)
    arm = OneArm(args.task, artifact.spec.image_size)
    env = RewardModelWrapper(arm, artifact, images=lambda env: env.unwrapped.pictures(), cameras=CAMERAS)

    policy = PPO("MlpPolicy", env, n_steps=256, gamma=0.97, device="cpu", seed=0)
    policy.learn(args.steps)

    ends = []
    for _ in range(10):
        (state, _), done = env.reset(), False
        while not done:
            state, _, terminated, truncated, info = env.step(policy.predict(state, deterministic=True)[0])
            done = terminated or truncated
        ends.append((info["referee/success"], info["true_success"]))
    said, true = np.sum(ends, axis=0)
    print(f"of {len(ends)} episodes: model success {said}, true success {true}")
