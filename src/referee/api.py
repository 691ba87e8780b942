"""The library: `import referee`, then train, audit, score, open_episodes, record and load; episodes or plain arrays."""

from __future__ import annotations

import hashlib
import json
import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from referee.errors import RefereeError

if TYPE_CHECKING:
    import gymnasium as gym

    from referee.audit.card import ReportCard
    from referee.audit.measure import TrainingEpisodes
    from referee.datasets.source import EpisodeFiles
    from referee.episodes import Episode, EpisodeStore
    from referee.episodes.gym_recorder import GymRecorder
    from referee.models import Artifact
    from referee.models.contract import FrameVerdict

    Source = EpisodeStore | EpisodeFiles | Iterable[Episode] | Path | str
    Arrays = np.ndarray | Mapping[str, np.ndarray]
_log = logging.getLogger(__name__)


class TrainKeys(TypedDict, total=False):
    """Options of `train`: keys of the preset `reward_training`, with its defaults."""

    cameras: Sequence[str]
    """The views to look at, the main one first; all of them unless given."""
    val_split: float
    """Share of the episodes for validation; 0 = none."""
    fail_success_ratio: float
    """Failures kept per success; 0 = all."""
    num_samples_per_episode: int
    """Frames of an episode, evenly spaced; 0 = all."""
    model_type: str
    """`resnet`, `binary_classifier`, or a model of your own."""
    arch: str
    """The encoder, e.g. `resnet18`."""
    width: int
    """Channels of its first layer."""
    image_size: int
    """Pixels that the model takes; those of the data unless given."""
    pretrained: Path | str
    """Weights of the encoder."""
    model_path: Path | str
    """An artifact to go on learning from."""
    freeze_encoder: bool
    """Train the head alone."""
    lr: float
    """Learning rate."""
    global_batch_size: int
    """Frames per step."""
    sampling: str
    """`balanced`: as many successes as failures in a batch; or `natural`."""
    num_threads: int
    """0 = the cores."""
    max_epochs: int
    """Passes over the data."""
    seed: int
    """Of weights and batches."""
    target_episode_fpr: float
    """The share of failing episodes in which the gate may fire."""


KEYS = {
    **{name: f"data.{name}" for name in ("cameras", "val_split", "fail_success_ratio", "num_samples_per_episode")},
    **{name: f"actor.model.{name}" for name in ("model_type", "arch", "width", "image_size", "pretrained",
                                                "model_path", "freeze_encoder")},
    "lr": "actor.optim.lr",
    **{name: f"actor.{name}" for name in ("global_batch_size", "sampling", "num_threads")},
    **{name: f"runner.{name}" for name in ("max_epochs", "seed", "target_episode_fpr")},
}  # fmt: skip
"""Where each option of `train` stands in the configuration."""


def train(
    episodes: Source | Arrays,
    labels: npt.ArrayLike | None = None,
    *,
    groups: npt.ArrayLike | None = None,
    out: Path | str | None = None,
    overrides: Sequence[str] = (),
    progress: bool = False,
    **options: Unpack[TrainKeys],
) -> Artifact:
    """Train a reward model and choose its threshold and gate, as `referee train` does.

    episodes: episodes of any kind, a path to them, or frames: uint8[N,H,W,3], or {camera: uint8[N,H,W,3]}.
    labels: of frames, 1 for success and 0 for failure. Episodes have their own.
    groups: of frames, the episode of each; training and validation share none. None: all frames are one recording.
    out: the folder of the run; None: a new one in logs/. The artifact is in its checkpoints/best_model.
    overrides: further keys of the preset, e.g. `["actor.augment.random_shift=0"]`.
    progress: print a bar and what was found in the data.
    options: see `TrainKeys`; defaults are those of `referee train`.
    """
    from rich.console import Console

    from referee.config import load as load_config
    from referee.recipes.train_reward import train_placed

    unknown = next((name for name in options if name not in KEYS), None)
    if unknown is not None:
        near = get_close_matches(unknown, KEYS, n=1)
        hint = f"did you mean {near[0]}?" if near else "give it in overrides, as `referee config show` lists it"
        raise RefereeError(f"train has no option {unknown}: {hint}")
    words = [f"{KEYS[name]}={_plain(value)}" for name, value in options.items()]
    if out is not None:
        words.append(f"runner.logger.log_path={_plain(out)}")
    with ExitStack() as stack:
        path = _on_disk(episodes, labels, groups, lambda: stack.enter_context(tempfile.TemporaryDirectory()))
        loaded = load_config("reward_training", [f"data.data_path={_plain(path)}", *words, *overrides])
        for notice in loaded.notices:
            _log.warning("%s", notice)
        trained = train_placed(loaded, Console(stderr=True, quiet=not progress))
    notes = ["without validation the threshold stays at 0.5"] if trained.choice is None else trained.choice.notes
    for note in notes:
        _log.warning("%s", note)
    return trained.artifact


def audit(
    artifact: Artifact | Path | str,
    episodes: Source | Arrays,
    labels: npt.ArrayLike | None = None,
    *,
    groups: npt.ArrayLike | None = None,
    training_episodes: TrainingEpisodes = "refuse",
) -> ReportCard:
    """Measure how far a reward model can be trusted, as `referee audit` does.

    episodes, labels, groups: as `train` takes them.
    training_episodes: those that the model was trained on are refused, left out (`skip`), or kept (`allow`): then the
        numbers prove nothing.
    """
    from referee import cpu
    from referee.audit.card import report_card
    from referee.recipes.audit import title_of

    cpu.cap_if_needed()
    model = load(artifact)
    title = "Reward model" if model.folder is None else title_of(model.folder)
    return report_card(model, _source(episodes, labels, groups), training_episodes=training_episodes, title=title)


def score(artifact: Artifact | Path | str, frames: Arrays | Episode) -> FrameVerdict:
    """The calibrated verdict on frames: score, probability and success, one of each per frame.

    frames: an episode, uint8[N,H,W,3], one picture uint8[H,W,3], or {camera: uint8[N,H,W,3]}.
    """
    from referee import cpu
    from referee.audit.judged import cameras_of, views
    from referee.episodes import Episode
    from referee.episodes.arrays import views_of

    cpu.cap_if_needed()
    model = load(artifact)
    if isinstance(frames, Episode):
        images = views(frames, cameras_of(model), slice(None))
        return model.judge(images if images.shape[1] > 1 else images[:, 0])
    if isinstance(frames, Mapping):
        return model.score(views_of(frames))
    images = np.asarray(frames)
    return model.judge(images[None] if images.ndim == 3 else images)


def open_episodes(path: Path | str, *, labels: Path | str | None = None) -> EpisodeStore | EpisodeFiles:
    """Episodes of any format, to be read one at a time and as often as one likes; files are closed in between.

    path: an episode store, films, folders of pictures, LeRobot, .npy, .pkl or .hdf5.
    labels: a file that labels frames; it goes over what the recordings hold.
    """
    from referee.datasets.source import open_source

    return open_source(Path(path), None if labels is None else Path(labels))


def record(
    env: gym.Env[Any, Any],
    folder: Path | str,
    *,
    success: str | Callable[[Mapping[str, Any]], bool] | None = None,
    images: str | Callable[[gym.Env[Any, Any]], Any] | None = None,
    image_size: int | None = None,
) -> GymRecorder:
    """The environment, with each finished episode kept in a store; `close()` writes the last ones.

    success, images, image_size: see `referee.episodes.gym_recorder.GymRecorder`.
    """
    from referee.episodes.gym_recorder import GymRecorder

    return GymRecorder(env, folder, success=success, images=images, image_size=image_size)


def load(artifact: Artifact | Path | str) -> Artifact:
    """A trained reward model from its folder, or from its weights."""
    from referee.models import Artifact

    return artifact if isinstance(artifact, Artifact) else Artifact.open(artifact)


# --- episodes, paths and arrays as one ---


def _source(
    episodes: Source | Arrays, labels: npt.ArrayLike | None, groups: npt.ArrayLike | None
) -> EpisodeStore | EpisodeFiles | list[Episode]:
    """Episodes that can be read several times."""
    from referee.datasets.source import EpisodeFiles
    from referee.episodes import Episode, EpisodeStore
    from referee.episodes.arrays import episodes_of

    if isinstance(episodes, np.ndarray | Mapping):
        if labels is None:
            raise RefereeError("frames need labels: 1 for success, 0 for failure, one per frame")
        return episodes_of(episodes, labels, groups)
    if labels is not None or groups is not None:
        raise RefereeError("labels and groups belong to arrays of frames: episodes have labels of their own")
    if isinstance(episodes, str | Path):
        return open_episodes(episodes)
    if isinstance(episodes, EpisodeStore | EpisodeFiles):
        return episodes
    listed = [episodes] if isinstance(episodes, Episode) else list(episodes)
    for each in listed:
        if not isinstance(each, Episode):
            raise RefereeError(f"{type(each).__name__} is no episode: give episodes, a path, or frames and labels")
    return list(_with_ids(listed))


def _with_ids(episodes: Iterable[Episode]) -> Iterator[Episode]:
    """Those without an id get one that follows from their content, so that an audit knows them again."""
    for each in episodes:
        if each.meta.id:
            yield each
            continue
        content = hashlib.blake2b(digest_size=6)
        for name, array in each.arrays().items():
            content.update(name.encode() + np.ascontiguousarray(array).tobytes())
        yield replace(each, meta=replace(each.meta, id=f"episode-{content.hexdigest()}"))


def _on_disk(
    episodes: Source | Arrays, labels: npt.ArrayLike | None, groups: npt.ArrayLike | None, spool: Callable[[], str]
) -> Path:
    """Where the episodes are, or a store in the folder that `spool` gives, for what is nowhere yet."""
    from referee.episodes import EpisodeStore

    if isinstance(episodes, str | Path) and labels is None and groups is None:
        return Path(episodes)  # also files of frames, as train.pt
    source = _source(episodes, labels, groups)
    if isinstance(source, EpisodeStore):
        return source.root
    if not isinstance(source, list) and source.labels is None:
        return source.path
    store = EpisodeStore(spool())
    for episode in _with_ids(source):
        store.append(episode)
    if not len(store):
        raise RefereeError("there is no episode to learn from")
    return store.root


def _plain(value: object) -> str:
    """A value as an override writes it."""
    if isinstance(value, np.generic):
        value = value.item()
    return json.dumps(str(value) if isinstance(value, Path) else value)
