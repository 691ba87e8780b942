"""Stable-Baselines3's PPO on the reward that an artifact sees: python examples/wrap_sb3.py ARTIFACT --task Reach"""

import argparse

import gymnasium as gym
import numpy as np
from stable_baselines3 import PPO

import referee.envs  # noqa: F401 - makes referee/<task>-v0 known
from referee import RewardModelWrapper
from referee.models import Artifact

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("artifact")
    parser.add_argument("--task", default="PickCube")
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()

    artifact = Artifact.open(args.artifact)
    cameras = ("front", "side")
    arm = gym.make(f"referee/{args.task}-v0", cameras=cameras, image_size=artifact.spec.image_size)
    env = RewardModelWrapper(arm, artifact, images=lambda env: env.unwrapped.pictures(), cameras=cameras)

    policy = PPO("MlpPolicy", env, n_steps=256, gamma=0.97, device="cpu", seed=0)
    policy.learn(args.steps)

    ends = []
    for _ in range(10):
        (state, _), done = env.reset(), False
        while not done:
            state, _, terminated, truncated, info = env.step(policy.predict(state, deterministic=True)[0])
            done = terminated or truncated
        ends.append((info["referee/success"], info["success"]))
    said, true = np.sum(ends, axis=0)
    print(f"of {len(ends)} episodes: model success {said}, true success {true}")
