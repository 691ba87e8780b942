"""Environments seen through a frozen encoder: pictures become numbers once, when they are taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from referee.envs.contract import Observation, RefereeVectorEnv, StepResult
from referee.envs.wrapper import EnvWrapper
from referee.errors import RefereeError
from referee.models import Artifact
from referee.models.contract import select_views
from referee.models.resnet import ResNet


class Encoder:
    """The feature map of a reward model: it was trained to see this task, and keeps where things are."""

    def __init__(self, artifact: Artifact, cameras: Sequence[str]) -> None:
        """cameras: of the pictures that come, in their order."""
        net = getattr(artifact.model, "encoder", None)
        if not isinstance(net, ResNet):
            raise RefereeError(f"{artifact.folder or 'the artifact'} has no ResNet that could look at pictures")
        self._net, self._model, self._spec, self._cameras = net, artifact.model, artifact.spec, tuple(cameras)
        size = artifact.spec.image_size
        blank = np.zeros((1, len(self._cameras), size, size, 3), np.uint8)
        self.size = self(blank).shape[1]
        """Numbers per observation."""

    @torch.inference_mode()
    def __call__(self, frames: np.ndarray) -> np.ndarray:
        """Frames uint8[n,V,H,W,3] of all cameras → f32[n,size]."""
        pictures = {"main_images": frames[:, 0], "extra_view_images": frames[:, 1:]}
        views = select_views(pictures, self._spec.cameras, self._cameras)
        prepared: Tensor = self._model.prepare(views)
        found = self._map(prepared.flatten(0, 1))
        return found.reshape(len(frames), -1).float().numpy()

    def _map(self, images: Tensor) -> Tensor:
        """The output of the third stage, f32[m,C,H/16,W/16]: later ones no longer know where things are."""
        net = self._net
        x = nn.functional.relu(net.pool(net.bn1(net.conv1(images))), inplace=True)
        for stage in net.stages()[:3]:
            x = stage(x)
        return x


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
        main, extra = observation["main_images"], observation.get("extra_view_images")
        frames = main[:, None] if extra is None else np.concatenate([main[:, None], extra], axis=1)
        seen = self.encoder(frames)
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
