"""The reward manager and the reward worker of the guides, made from their own configurations."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from rich.console import Console

from referee import printing
from referee.config import Config, Loaded
from referee.config.cluster import ClusterConfig, NodeGroupConfig, PlacementConfig
from referee.config.schema import RewardConfig, RewardModelConfig
from referee.errors import ConfigError, RefereeError
from referee.legacy.configs import SCORES, TRAINS, Cfg, is_cfg, loaded_of, trains
from referee.legacy.images import by_camera, flat, like, rollout_observations
from referee.legacy.models import state_of
from referee.models.packed import Packed
from referee.recipes.train_reward import job_of, train_placed
from referee.rewards import RewardManager as Manager
from referee.rewards import RewardOptions
from referee.rewards.classifier import ClassifierReward, open_model
from referee.runtime import Cluster, Fallback, Group, Rank, WorkerGroup
from referee.training import checkpoint
from referee.training.recipe import check_paths
from referee.workers.text import TextRewardWorker


class RewardManager(Manager):
    """Scores observations: `RewardManager(cfg)` opens the model that the `reward` section names.

    manager = RewardManager(cfg)
    manager.to_device("cpu")
    rewards = manager.compute_rewards(images)  # f32[B] of images [B,3,H,W] in 0..1
    """

    def __init__(self, artifact: Any, options: RewardOptions | None = None, **how: Any) -> None:
        """artifact: a configuration; or an artifact and what `referee.rewards.RewardManager` takes."""
        if is_cfg(artifact):
            artifact, options, how = _parts(loaded_of(artifact, "train_policy", SCORES).config.reward, how)
        super().__init__(artifact, options, **how)

    def compute_rewards(self, observations: Any, *, cameras: Sequence[str] | None = None) -> Any:
        """f32[B], or f32[T,B] of images that have such axes: what the model pays for each by itself, ungated.

        observations: images [B,3,H,W] in 0..1 or uint8 [B,H,W,3] of the only camera; {image key: images}; or
            observations as environments give them. Tensors are answered with a tensor, arrays with an array.
        """
        images, axes = flat(by_camera(observations, self.artifact.spec.cameras))
        return like(super().compute_rewards(images, cameras=cameras).reshape(axes), observations)


class ConfiguredRewardWorker:
    """`RewardWorker(cfg)`: scores observations with the model that `cfg` names, or trains one on the data it names."""

    def __init__(self, cfg: Cfg) -> None:
        """Read the configuration; nothing is loaded before `init_worker`."""
        self._trains = trains(cfg)
        recipe, sections = ("train_reward", TRAINS) if self._trains else ("train_policy", SCORES)
        self._loaded: Loaded = loaded_of(cfg, recipe, sections)
        self._manager: RewardManager | None = None
        self._trained: dict[str, Any] = {}

    def init_worker(self) -> None:
        """Load the model; or, for training, check that there is something to learn from."""
        if self._trains:
            check_paths(job_of(self._loaded.config, Path("run")))
        else:
            self._manager = RewardManager(self._loaded)

    @property
    def manager(self) -> RewardManager:
        """What scores."""
        if self._manager is None:
            what = "fit()" if self._trains else "init_worker()"
            raise RefereeError(f"the reward worker has no model yet: call {what} first")
        return self._manager

    def compute_rewards(self, observations: Any) -> Any:
        """Rewards of observations (see `RewardManager.compute_rewards`), or f32[T,B] of a rollout result.

        A rollout result holds `transitions` or `forward_inputs`, a list of what was seen at each step.
        """
        steps = rollout_observations(observations)
        if steps is None:
            return self.manager.compute_rewards(observations)
        seen = [flat(by_camera(step, self.manager.artifact.spec.cameras))[0] for step in steps]
        images = {name: np.stack([each[name] for each in seen]) for name in seen[0]}
        return like(self.manager.compute_rewards(images), steps)

    def compute_batch_rewards(self, observations: Any) -> Any:
        """The same, in mini-batches of 256 images."""
        return self.compute_rewards(observations)

    compute_reward = compute_rewards

    def to_device(self, device: str) -> None:
        """Move the model."""
        self.manager.to_device(device)

    def fit(self) -> Path:
        """Train as the configuration says, where its cluster section says; returns the artifact, which scores now."""
        if not self._trains:
            raise ConfigError(
                "the configuration names nothing to learn from: set reward.data.positive_dir, negative_dir"
            )
        self.init_worker()
        console = Console()
        trained = train_placed(self._loaded, console)
        printing.calibration(trained.choice, console)
        artifact = trained.folder
        self._manager = RewardManager(artifact)
        last = checkpoint.load(checkpoint.find(artifact.parent.parent))
        self._trained = {name: last[name] for name in checkpoint.DOCUMENTED if name != "model_state_dict"}
        return artifact

    def save_checkpoint(self, path: Path | str, step: int) -> Path:
        """Write `path/step_<step>/checkpoint.pt`, or `path` itself if that is a .pt; returns the file."""
        file = Path(path)
        if file.suffix not in (".pt", ".pth"):
            file = file / f"step_{step}" / checkpoint.NAME
        model = self.manager.artifact.model
        values = {"step": step, "model_state_dict": state_of(model), "config": model.spec.to_json()}
        checkpoint.save(file, {**self._trained, **values})
        return file


class LiveRewardWorker:
    """Scores single frames for an arm elsewhere; asking twice does no harm."""

    def __init__(self, model: Packed, options: RewardOptions, how: Mapping[str, Any]) -> None:
        self._model, self._options, self._how = model, options, dict(how)
        self._manager: RewardManager | None = None

    def init_worker(self) -> None:
        """Load the model where the worker lives."""
        self._manager = RewardManager(self._model.unpacked(), self._options, **self._how)

    def compute_rewards(self, observations: Any) -> Any:
        """f32[B]; see `RewardManager.compute_rewards`."""
        return self._ready().compute_rewards(observations)

    def compute_probabilities(self, observations: Any) -> Any:
        """f32[B]: the probability of success, which `use_reward_prob` shows."""
        manager = self._ready()
        images, axes = flat(by_camera(observations, manager.artifact.spec.cameras))
        probability = manager.judge(images).probability
        assert probability is not None  # a classifier's
        return like(probability.reshape(axes), observations)

    def pid(self) -> int:
        """Of the process that it lives in."""
        return os.getpid()

    def _ready(self) -> RewardManager:
        if self._manager is None:
            raise RefereeError("the reward worker has no model yet: call init_worker().wait() first")
        return self._manager


class LaunchedRewardWorker:
    """A reward worker where its placement says. A call gives a `Call`: `.wait()` returns a list, one entry per rank."""

    def __init__(self, group: Group, cluster: Cluster | None) -> None:
        self._group, self._cluster = group, cluster

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_"):
            raise AttributeError(method)
        return getattr(self._group, method)

    def close(self) -> None:
        """End it, and the cluster if it was opened for it."""
        if self._cluster is not None:
            self._cluster.close()
        else:
            self._group.close()

    def __enter__(self) -> LaunchedRewardWorker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class RewardWorker(ClassifierReward):
    """The reward worker: of a configuration, or of a manager, an environment and a number of steps.

    worker = RewardWorker(cfg)
    worker.init_worker()
    rewards = worker.compute_batch_rewards(observations)

    With `runner.task_type: text` it rewards answers by rule.
    """

    def __new__(cls, first: Any, *rest: Any, **options: Any) -> Any:
        """See the class."""
        if not is_cfg(first):
            return super().__new__(cls)
        if not trains(first):
            config = loaded_of(first, "train_policy", SCORES).config
            if config.runner.task_type == "text":
                return TextRewardWorker(config.reward.text)
        return ConfiguredRewardWorker(first)

    def init_worker(self) -> None:
        """Nothing is left to do: a worker is ready once it is made."""

    def compute_rewards(self, observations: Mapping[str, np.ndarray]) -> np.ndarray:
        """f32[n]: what the model pays for observations, each by itself."""
        return self.manager.compute_rewards(observations, cameras=self._names(observations))

    compute_batch_rewards = compute_rewards

    def to_device(self, device: str) -> None:
        """Move the model."""
        self.manager.to_device(device)

    def save_checkpoint(self, folder: Path | str) -> None:
        """A copy of the artifact that pays."""
        self.manager.artifact.save(Path(folder))

    def _names(self, observations: Mapping[str, Any]) -> tuple[str, ...] | None:
        extra = observations.get("extra_view_images")
        views = 1 + (0 if extra is None else extra.shape[1])
        return self.cameras if views == len(self.cameras) else self._env.cameras[:views]

    @staticmethod
    def launch_for_realworld(
        reward_cfg: Cfg,
        node_rank: int | None = None,
        node_group_label: str | int | None = None,
        hardware_rank: int = 0,
        env_idx: int = 0,
        worker_rank: int = 0,
        *,
        cluster: Cluster | None = None,
    ) -> LaunchedRewardWorker:
        """Start a reward worker for an arm, on the node that has the GPU; the model is sent there from here.

        reward_cfg: a configuration with a `reward` section, or that section alone. Its `cluster` section says where
            `component_placement.reward` is; without one, the worker is in this process.
        node_rank, node_group_label, hardware_rank: another place than that: a slot of a node, or of a node group.
        env_idx, worker_rank: of the arm, for the worker's name.
        cluster: one that is open already, with a place for `reward`.
        """
        loaded = loaded_of(reward_cfg, "teleop", SCORES)
        artifact, options, how = _parts(loaded.config.reward, {})
        options = replace(options, reward_mode="per_step")
        own = None
        if cluster is None:
            own = Cluster(_placed(loaded.config, node_rank, node_group_label, hardware_rank))
        elif (node_rank, node_group_label) != (None, None):
            raise ConfigError(
                "node_rank and node_group_label: the cluster that is open says where reward is, drop them"
            )
        try:
            workers = WorkerGroup(
                _make_live, Packed.of(artifact), options, how,
                fallback=Fallback(retry=("init_worker", "compute_rewards", "compute_probabilities", "pid")),
            )  # fmt: skip
            place = own or cluster
            assert place is not None
            group = workers.launch(place, "reward", name=f"reward-{worker_rank}-{env_idx}")
        except BaseException:
            if own is not None:
                own.close()
            raise
        return LaunchedRewardWorker(group, own)


def _make_live(rank: Rank, model: Packed, options: RewardOptions, how: Mapping[str, Any]) -> LiveRewardWorker:
    return LiveRewardWorker(model, options, how)


def _placed(
    config: Config, node_rank: int | None, node_group_label: str | int | None, hardware_rank: int
) -> ClusterConfig:
    """The cluster section, with `reward` at another place if one is named."""
    cluster, label = config.cluster, node_group_label
    if node_rank is None and label is None:
        return cluster
    group = next((each for each in cluster.node_groups if each.label == label), None)
    if label is not None and group is None:
        labels = ", ".join(str(each.label) for each in cluster.node_groups) or "none"
        raise ConfigError(f"node_group_label {label!r} is none of cluster.node_groups ({labels}): add it there")
    groups = cluster.node_groups
    if node_rank is not None:
        if not 0 <= node_rank < cluster.num_nodes:
            raise ConfigError(f"node_rank is {node_rank}, but cluster.num_nodes is {cluster.num_nodes}")
        label = f"node {node_rank}"
        env_vars = group.env_vars if group is not None else ()
        groups = (*groups, NodeGroupConfig(label=label, node_ranks=node_rank, env_vars=env_vars))
    places = dict(cluster.component_placement or {})
    places["reward"] = PlacementConfig(node_group=label, placement=hardware_rank)
    return replace(cluster, component_placement=places, node_groups=groups)


def _parts(config: RewardConfig, how: Mapping[str, Any]) -> tuple[Any, RewardOptions, dict[str, Any]]:
    """The model, the options and the rest that a manager takes, of a `reward` section."""
    model = config.model
    if not isinstance(model, RewardModelConfig):
        raise ConfigError(f"reward.model.model_type={model.model_type} judges windows: use HistoryVLMRewardModel(cfg)")
    values = {name: getattr(config, name) for name in RewardOptions.__dataclass_fields__}
    options = RewardOptions(**{**values, "terminate_on": config.terminate_on or "never"})
    own = {"backend": model.backend, "int8": model.int8, "debug_save_dir": model.debug_save_dir}
    return open_model(model), options, {**own, **how}
