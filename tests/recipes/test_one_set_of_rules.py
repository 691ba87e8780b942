"""Trainer, wrapper, Stable-Baselines3, teleoperation and server share their rules: without one, each changes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from referee.collect.teleop_worker import Look, TeleopWorker
from referee.envs.contract import StepResult
from referee.models import Artifact, Calibration, ModelSpec, build
from referee.rewards import RewardManager, RewardOptions, rules
from referee.rewards.classifier import ClassifierReward
from referee.rewards.wrapper import RewardModelWrapper

sys.path.insert(0, str(Path(__file__).parents[1] / "serving"))
from serving_doubles import TOKEN, Client, npy

STEPS = 8
SUCCESS = (0, 1, 1, 0, 1, 1, 1, 1)
"""What the model says of each state: the gate of 2 of 2 fires at states 2, 5, 6 and 7; an arm stalls in state 6."""
STALLED = (0, 0, 0, 0, 0, 0, 1, 0)
EXPECTED = [-2.0, -2.0, 2.0, -2.0, -2.0, 2.0, -2.0, -2.0]
OPTIONS = RewardOptions(reward_mode="per_step", fail_reward=-1, reward_weight=2)
PIXELS = 24


def artifact() -> Artifact:
    """A model that knows bright pictures from dark ones."""
    torch.manual_seed(0)
    net = build(ModelSpec(arch="resnet10", width=4, hidden_dim=None, image_size=PIXELS, cameras=("front",))).eval()
    both = np.stack([np.full((PIXELS, PIXELS, 3), 255 * bright, np.uint8) for bright in (0, 1)])
    made = Artifact(net)
    dark, bright = made.judge(both).score
    with torch.no_grad():  # the sign of the last layer decides which of the two is a success
        last = [each for each in net.modules() if isinstance(each, torch.nn.Linear)][-1]
        sign = 1.0 if bright > dark else -1.0
        last.weight.mul_(sign)
        last.bias.mul_(sign)
    dark, bright = Artifact(net).judge(both).probability
    return Artifact(net, Calibration(threshold=float(dark + bright) / 2, gate_k=2, gate_n=2))


class World(gym.Env[Any, Any]):
    """Shows a bright picture in successes; its own reward is 5; an arm stalls now and then."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Dict({"main_images": gym.spaces.Box(0, 255, (PIXELS, PIXELS, 3), np.uint8)})
        self.action_space = gym.spaces.Discrete(2)

    def _see(self, bright: int) -> dict[str, np.ndarray]:
        return {"main_images": np.full((PIXELS, PIXELS, 3), 255 * bright, np.uint8)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.now = -1
        return self._see(0), {}

    def step(self, action: Any) -> Any:
        self.now += 1
        stalled = {"hold": "tired"} if STALLED[self.now] else {}
        return self._see(SUCCESS[self.now]), 5.0, False, False, stalled


def trainer() -> list[float]:
    """A rollout that is scored when it is full, as PPO and SAC learn from it."""
    manager = RewardManager(artifact(), OPTIONS)
    env = SimpleNamespace(num_envs=1, cameras=("front",), image_size=PIXELS)
    worker = ClassifierReward(manager, env, STEPS)  # type: ignore[arg-type]
    images = np.stack([World()._see(bright)["main_images"] for bright in SUCCESS])[:, None]
    never = np.zeros((STEPS, 1), bool)
    rollout: Any = SimpleNamespace(
        terminated=never, truncated=never, held=np.array(STALLED, bool)[:, None], success=never,
        rewards=np.full((STEPS, 1), 5, np.float32), versions=np.zeros((STEPS, 1), np.int32), env_rewards=None,
        steps=STEPS, num_envs=1,
    )  # fmt: skip
    worker.begin()
    worker.take({"main_images": images})
    worker.relabel(rollout)
    return rollout.rewards[:, 0].tolist()  # type: ignore[no-any-return]


def wrapper() -> list[float]:
    env = RewardModelWrapper(
        World(), artifact(), mode="per_step", fail_reward=-1, reward_weight=2, images="observation"
    )
    env.reset()
    return [float(env.step(0)[1]) for _ in range(STEPS)]


def stable_baselines() -> list[float]:
    pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.vec_env import DummyVecEnv

    from referee.integrations import sb3

    env = sb3.RewardModelVecEnv(DummyVecEnv([World]), artifact(), mode="per_step", fail_reward=-1, reward_weight=2)
    env.reset()
    return [float(env.step(np.zeros(1, int))[1][0]) for _ in range(STEPS)]


class Arm:
    """One arm that a person leads: only what a teleop worker needs of it."""

    num_envs, cameras = 1, ("front",)

    def __init__(self) -> None:
        self.now = -1

    def reset(self, **_: Any) -> Any:
        return {}, {}

    def step(self, actions: np.ndarray) -> StepResult:
        self.now += 1
        no = np.zeros(1, bool)
        info = {"hold": np.array(["tired"], object), "_hold": np.ones(1, bool)} if STALLED[self.now] else {}
        return {}, np.full(1, 5.0), no, no, info

    def render_cameras(self, *_: Any, **__: Any) -> dict[str, np.ndarray]:
        return {}


def teleop() -> list[float]:
    manager = RewardManager(artifact(), OPTIONS)
    arm: Any = Arm()
    worker = TeleopWorker(
        arm, lambda: np.zeros((1, 4), np.float32), gate=manager.gate(1), options=OPTIONS, cameras=(), verdict_ends=False
    )
    rewards = []
    for good in SUCCESS:
        worker.step()
        rewards.append(worker.take(Look(bool(good), 0.9 if good else 0.1, 0.0)).reward)
    return rewards


def served() -> list[float]:
    from referee.serving import ScoringServer

    with ScoringServer(artifact(), token=TOKEN) as server:
        client = Client(server)
        rewards = []
        for bright, stalled in zip(SUCCESS, STALLED, strict=True):
            picture = World()._see(bright)["main_images"][None]
            more = "&stalled=true" if stalled else ""
            rewards += client.score(npy(picture), "application/x-npy", f"?session=arm{more}")[1]["reward"]
        client.close()
    return rewards


FRONTS = {
    "trainer": trainer,
    "wrapper": wrapper,
    "stable-baselines3": stable_baselines,
    "teleoperation": teleop,
    "server": served,
}
MUTATIONS: dict[str, Callable[..., Any]] = {
    "usable": lambda states, stalled: states,
    "gated": lambda success, began, gate, stalled=None: rules.usable(success, stalled),
    "combine": lambda env, model, options, **_: np.asarray(env),
}


def expected(front: str) -> list[float]:
    """The server has rewards of 1 and 0, the weights of the others are above."""
    return [float(each > 0) for each in EXPECTED] if front == "server" else EXPECTED


@pytest.mark.parametrize("front", FRONTS)
def test_the_reward_of_every_step(front: str) -> None:
    assert FRONTS[front]() == expected(front)


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("rule", MUTATIONS)
def test_without_a_rule_rewards_change(front: str, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, rule, MUTATIONS[rule])
    assert FRONTS[front]() != expected(front)
