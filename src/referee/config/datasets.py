"""Settings of datasets: keys under `data`, and what `referee dataset` asks for."""

from __future__ import annotations

from dataclasses import dataclass

from referee.config.declare import Checked, key
from referee.errors import RefereeError

OF_EPISODES = "data_path or positive_dir"


@dataclass(frozen=True, kw_only=True)
class SplitConfig(Checked):
    """What is taken of each episode, and which episodes are left for validation."""

    val_split: float = key(0.2, "share of the episodes for validation; 0 = none", low=0, high=0.9, only_if=OF_EPISODES)
    num_samples_per_episode: int = key(
        0, "frames (or windows) of an episode, evenly spaced with the last one kept; 0 = all", low=0,
        only_if=OF_EPISODES,
    )  # fmt: skip
    split_seed: int = key(42, "of the split into training and validation", low=0)


@dataclass(frozen=True, kw_only=True)
class FrameConfig(SplitConfig):
    """Which frames of episodes a reward model learns from."""

    fail_success_ratio: float = key(0.0, "failures kept per success in training; 0 = all", low=0, only_if=OF_EPISODES)


@dataclass(frozen=True, kw_only=True)
class WindowConfig(SplitConfig):
    """How windows of several frames are cut, named and chosen."""

    window_size: int = key(5, "states from the first frame to the last, both counted")
    keep_frames: int = key(0, "frames of a window that are written, evenly spaced with both ends; 0 = all")
    """Long windows of few frames teach a small model what comes closer before it must see it in short ones."""
    stride: int = key(1, "states from one window to the next", low=1)
    tail: str = key("drop", "frames behind the last whole window", choices=("drop", "shift", "short"))
    delta_threshold: float = key(0.05, "a smaller change of progress is unclear", low=0)
    tail_unclear_ratio: float = key(
        0.0, "the last windows of each episode that are unclear whatever happens in them, as a share", low=0, high=1
    )
    discount: float = key(0.97, "of the success to go: the progress where none was recorded", high=1)
    balance: bool = key(True, "as many training windows of each label as of the rarest")
    reverse_positives: bool = key(False, "add each positive training window played backwards, as a negative one")
    task: str = key("", "in words, for episodes that do not say it themselves")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window_size < 2:
            raise RefereeError(f"window_size is {self.window_size}, but there is no trend in less than 2 frames")
        if self.keep_frames and not 2 <= self.keep_frames <= self.window_size:
            raise RefereeError(
                f"keep_frames is {self.keep_frames}: it must be 0, or 2 to window_size ({self.window_size})"
            )
        if self.discount <= 0:
            raise RefereeError(f"discount is {self.discount}, but it must be more than 0")


@dataclass(frozen=True, kw_only=True)
class DataConfig(FrameConfig):
    """What a reward model learns from: data_path, or train_data_paths, or positive_dir and negative_dir."""

    data_path: str | None = key(None, "folder with train.pt and val.pt, an episode store, or any format of episodes")
    train_data_paths: tuple[str, ...] | None = key(None, "files of frames, as train.pt", single=True)
    val_data_paths: tuple[str, ...] | None = key(
        None, "the same for validation; null = none", single=True, only_if="train_data_paths"
    )
    positive_dir: str | None = key(None, ".npy trajectories with a success")
    negative_dir: str | None = key(None, "those without", only_if="positive_dir")
    cameras: tuple[str, ...] | None = key(None, "views to look at, the main one first; null = all", single=True)
    debug_save_dir: str | None = key(None, "write some frames there, by label and by verdict; null = none")
