"""Whole runs under the names of the guides: training a reward model, training a policy, collecting episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.console import Console

from referee import printing
from referee.config import Loaded, load
from referee.config.imports import import_modules
from referee.envs.contract import RefereeVectorEnv
from referee.episodes.formats.pickled import FramesPickleWriter
from referee.episodes.recorder import Recorder, Wanted
from referee.errors import ConfigError, RefereeError
from referee.learn.checks import check
from referee.legacy.configs import Cfg, is_cfg, loaded_of, tree_of
from referee.recipes.train_policy import train_policy
from referee.recipes.train_reward import train_placed


class FSDPRewardWorker:
    """Trains a reward model as a preset or `cfg` says, where its cluster section says: `init_worker()`, `fit()`."""

    def __init__(self, preset: str | Cfg = "reward_training", overrides: Sequence[str] = ()) -> None:
        """preset: a name, a file, or a configuration; overrides: on top of a name or a file."""
        self._preset, self._overrides = preset, list(overrides)
        self._loaded: Loaded | None = None

    def init_worker(self) -> None:
        """Read and check the configuration."""
        loaded = _loaded(self._preset, self._overrides, "train_reward")
        if loaded.config.runner.recipe != "train_reward":
            raise ConfigError(f"{loaded.preset} trains no reward model: use reward_training")
        self._loaded = loaded

    def fit(self) -> Path:
        """Train, over all ranks of the placement; the artifact."""
        if self._loaded is None:
            raise RefereeError("FSDPRewardWorker.fit: call init_worker() first")
        console = Console()
        trained = train_placed(self._loaded, console)
        printing.calibration(trained.choice, console)
        return trained.folder


class EmbodiedRunner:
    """Trains a policy as a preset or `cfg` says, where its cluster section says: `init_workers()`, then `run()`."""

    def __init__(self, preset: str | Cfg, overrides: Sequence[str] = ()) -> None:
        """preset: a name, a file, or a configuration; overrides: on top of a name or a file."""
        self._preset, self._overrides = preset, list(overrides)
        self._loaded: Loaded | None = None

    def init_workers(self) -> None:
        """Read and check the configuration; the workers are made where the run begins."""
        loaded = _loaded(self._preset, self._overrides, "train_policy")
        if loaded.config.runner.recipe != "train_policy":
            raise ConfigError(f"{loaded.preset} trains no policy: use a preset such as maniskill_ppo_mlp")
        import_modules(loaded.config.runner.imports)
        check(loaded.config)
        self._loaded = loaded

    def run(self) -> None:
        """Collect, reward, learn, evaluate and save, to the end."""
        if self._loaded is None:
            raise RefereeError("EmbodiedRunner.run: call init_workers() first")
        train_policy(self._loaded)


class DataCollectorWrapper(Recorder):
    """A recorder that writes `success/` and `failure/` with one .pkl per episode, up to a target of each."""

    def __init__(
        self,
        env: RefereeVectorEnv,
        save_dir: Path | str | DictConfig | Mapping[str, Any],
        target_success: int | None = None,
        target_failure: int | None = None,
        **options: Any,
    ) -> None:
        """save_dir: the folder; or a `reward_data_collection` section, which names it and the targets."""
        if is_cfg(save_dir):
            section = tree_of(save_dir)  # type: ignore[arg-type]
            target_success = section.get("target_success", target_success)
            target_failure = section.get("target_failure", target_failure)
            save_dir = str(section["save_dir"])
        folder = Path(save_dir)  # type: ignore[arg-type]
        quota = Wanted(target_success=target_success, target_failure=target_failure)
        super().__init__(env, lambda: FramesPickleWriter(folder), wanted=quota, **options)


def _loaded(preset: str | Cfg, overrides: list[str], recipe: str) -> Loaded:
    if isinstance(preset, str):
        return load(preset, overrides)
    if overrides:
        raise ConfigError("overrides go on top of a preset's name: set the keys in the configuration itself")
    return loaded_of(preset, recipe)
