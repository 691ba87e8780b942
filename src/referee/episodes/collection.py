"""From the configuration `data_collection` of an environment to a recorder around it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from referee.config.collection import DataCollectionConfig
from referee.envs.contract import RefereeVectorEnv
from referee.episodes.episode import EpisodeError, Meta, action_bounds
from referee.episodes.recorder import Recorder, Wanted
from referee.episodes.store import EpisodeStore, adding_to
from referee.episodes.writer import Sink

_log = logging.getLogger(__name__)


def collecting(
    env: RefereeVectorEnv, config: DataCollectionConfig, *, folder: Path, task: str, source: str, rank: int = 0
) -> RefereeVectorEnv:
    """`env`, recorded if the configuration asks for it; files go to `save_dir`, else to `folder`/collected_data."""
    if not config.enabled:
        return env
    strange = [name for name in config.cameras or () if name not in env.cameras]
    if strange:
        raise EpisodeError(
            f"data_collection.cameras asks for {strange[0]}, but the env has {', '.join(env.cameras)}: add it there too"
        )
    return Recorder(
        env,
        _recording_into(place(config, folder), config),
        meta=Meta(
            task=task,
            source=source,
            rank=rank,
            fps=env.metadata.get("render_fps"),
            extra=action_bounds(env.single_action_space),
        ),
        wanted=Wanted(config.only_success, config.target_success, config.target_failure),
        cameras=config.cameras,
        capacity=config.queue_size,
    )


def place(config: DataCollectionConfig, folder: Path) -> Path:
    """Where the episodes of a run in `folder` go."""
    return Path(config.save_dir) if config.save_dir else folder / "collected_data"


def _recording_into(root: Path, config: DataCollectionConfig) -> Callable[[], Sink]:
    """A function that opens the sink of a run; what is there already is counted aloud, or refused where it cannot be
    added to."""
    if config.export_format == "native":
        return adding_to(root)
    there = [path for path in root.rglob("*") if path.is_file()] if root.is_dir() else []
    if there and config.export_format == "lerobot":
        raise EpisodeError(
            f"{root} is there already, and a LeRobot dataset cannot be added to: set data_collection.save_dir to a new "
            "folder, or record native episodes and convert them"
        )
    if there:
        _log.warning("%s holds %d files already: episodes recorded now are added, numbered on", root, len(there))
    return lambda: open_sink(config.export_format, root, config)


def open_sink(export_format: str, root: Path, config: DataCollectionConfig | None = None) -> Sink:
    """Where episodes of that format are written."""
    config = config or DataCollectionConfig()
    if export_format == "native":
        return EpisodeStore(root)
    if export_format == "npy":
        from referee.episodes.formats.npy import NpyWriter

        positive = Path(config.positive_dir) if config.positive_dir else root / "positive"
        negative = Path(config.negative_dir) if config.negative_dir else root / "negative"
        return NpyWriter(positive, negative)
    if export_format == "lerobot":
        from referee.episodes.formats.lerobot import LeRobotWriter

        return LeRobotWriter(root)
    from referee.episodes.formats.pickled import EpisodePickleWriter, FramesPickleWriter

    return EpisodePickleWriter(root) if export_format == "pickle" else FramesPickleWriter(root)
