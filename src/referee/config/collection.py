"""The keys of recording episodes while an environment is used."""

from __future__ import annotations

from dataclasses import dataclass

from referee.config.declare import key


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """The format in which episodes are written."""

    export_format: str = key(
        "native",
        "native; pickle: a file per episode; pickle_frames: success/, failure/; npy: positive/, negative/; lerobot",
        choices=("native", "pickle", "pickle_frames", "npy", "lerobot"),
        only_if="enabled",
    )


@dataclass(frozen=True, kw_only=True)
class DataCollectionConfig(ExportConfig):
    """Recording of episodes while an environment is used."""

    enabled: bool = key(False, "record every finished episode")
    save_dir: str | None = key(None, "where to; null = collected_data in the run's directory", only_if="enabled")
    only_success: bool = key(
        False, "keep only episodes with a success", only_if="enabled or runner.recipe=collect_data"
    )
    target_success: int | None = key(
        None, "stop keeping successful episodes at this number; null = never", low=0, only_if="enabled"
    )
    target_failure: int | None = key(
        None, "stop keeping failed episodes at this number; null = never", low=0, only_if="enabled"
    )
    cameras: tuple[str, ...] | None = key(
        None,
        "the cameras to record; null = all of the env's, [] = none",
        choices=("base_camera", "front", "side", "wrist"),
        only_if="enabled",
    )
    positive_dir: str | None = key(
        None, "folder of trajectories with a success; null = save_dir/positive", only_if="export_format=npy"
    )
    negative_dir: str | None = key(
        None, "folder of trajectories without; null = save_dir/negative", only_if="export_format=npy"
    )
    queue_size: int | None = key(
        None, "finished episodes that may wait for the disk; null = one per environment", low=1, only_if="enabled"
    )


@dataclass(frozen=True, kw_only=True)
class LabellingConfig:
    """Labels by key, while an arm moves."""

    reaction_seconds: float = key(0.0, "how late a person presses: labels are moved so far towards the start", low=0)
    ends_on: tuple[str, ...] = key(
        (), "labels of a single frame that end the episode, too", choices=("success", "fail"), single=True
    )
