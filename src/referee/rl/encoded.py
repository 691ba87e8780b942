"""Environments seen through a frozen encoder: pictures become numbers once, when they are taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from referee.envs.contract import Observation, RefereeVectorEnv, StepResult, split_views
from referee.envs.wrapper import EnvWrapper
from referee.errors import RefereeError
from referee.models import Artifact
from referee.models.contract import select_views
from referee.models.resnet import ResNet

STAGES = 2
"""Of the encoder: later ones no longer know well where things are."""


class Encoder:
    """The eyes of a reward model: they were trained to see this task."""

    def __init__(self, artifact: Artifact, cameras: Sequence[str]) -> None:
        """cameras: of the pictures that come, in their order."""
        net = getattr(artifact.model, "encoder", None)
        if not isinstance(net, ResNet):
            raise RefereeError(f"{artifact.folder or 'the artifact'} has no ResNet that could look at pictures")
        self._net, self._model, self._spec, self._cameras = net, artifact.model, artifact.spec, tuple(cameras)
        size = artifact.spec.image_size
        blank = np.zeros((1, len(self._cameras), size, size, 3), np.uint8)
        self.size = self(split_views(blank)).shape[1]
        """Numbers per observation."""

    @torch.inference_mode()
    def __call__(self, observation: Observation) -> np.ndarray:
        """The pictures of all cameras → f32[n,size]."""
        views = select_views(observation, self._spec.cameras, self._cameras)
        prepared: Tensor = self._model.prepare(views)
        maps = self._net.maps(prepared.flatten(0, 1), STAGES)
        found = torch.cat([sightings(each.float()) for each in maps], dim=1)
        return found.reshape(len(prepared), -1).numpy()


def sightings(maps: Tensor) -> Tensor:
    """f32[n,C,H,W] → f32[n,3C]: where each channel sees something (down and across, in −1..1), and how much."""
    height, width = maps.shape[2:]
    spread = maps.std(dim=(2, 3), keepdim=True) + 1e-5
    weight = (maps / spread).flatten(2).softmax(dim=2).view(maps.shape)
    down = weight.sum(dim=3) @ torch.linspace(-1, 1, height)
    across = weight.sum(dim=2) @ torch.linspace(-1, 1, width)
    return torch.cat([down, across, maps.mean(dim=(2, 3))], dim=1)


class EncodedEnv(EnvWrapper):
    """An environment whose `states` are what the robot feels of itself, and what a frozen encoder sees; no images."""

    def __init__(self, env: RefereeVectorEnv, artifact: Artifact) -> None:
        super().__init__(env)
        spaces: Any = env.single_observation_space
        if "main_images" not in spaces.spaces:
            raise RefereeError("an encoder needs images: set obs_mode=rgb (or state+rgb)")
        self.encoder = Encoder(artifact, env.cameras)
        self._feels = self.proprio_size if "states" in spaces.spaces else 0
        size = self._feels + self.encoder.size
        self.obs_mode = "state"
        self.single_observation_space = gym.spaces.Dict(
            {"states": gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)}
        )
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, self.num_envs)

    def encode(self, observation: Observation) -> Observation:
        """The observation with numbers instead of pictures."""
        seen = self.encoder(observation)
        if self._feels:
            seen = np.concatenate([observation["states"][:, : self._feels], seen], axis=1)
        return {"states": seen}

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """See `RefereeVectorEnv`."""
        observation, info = self.env.reset(seed=seed, options=options)  # type: ignore[arg-type]
        return self.encode(observation), info

    def step(self, actions: np.ndarray) -> StepResult:
        """See `RefereeVectorEnv`."""
        observation, rewards, terminated, truncated, info = self.env.step(actions)
        ids = np.flatnonzero(terminated | truncated)
        if len(ids):
            last = info["final_obs"]
            stacked = {name: np.stack([last[i][name] for i in ids]) for name in last[ids[0]]}
            ends = self.encode(stacked)["states"]
            encoded = np.full(self.num_envs, None, object)
            for i, state in zip(ids, ends, strict=True):
                encoded[i] = {"states": state}
            info = {**info, "final_obs": encoded}
        return self.encode(observation), rewards, terminated, truncated, info

    def restore_state(self, state: dict[str, np.ndarray]) -> Observation:
        """See `RefereeVectorEnv`."""
        return self.encode(self.env.restore_state(state))
