"""One episode as a model sees it: a logit for every state, beside the label. Images are read, scored and let go."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from referee.datasets.payload import RewardBinaryDataset
from referee.datasets.source import resolve
from referee.episodes import Episode, EpisodeStore
from referee.errors import RefereeError
from referee.labels.log import FAILURE, SUCCESS, LabelLog
from referee.models.spec import MAIN_NAMES

CHUNK = 512
"""Frames scored at once: a long episode never has to fit into memory."""
MEAN_OF = 32
"""Episodes that the picture is averaged over which stands in for a camera."""


class Scorer(Protocol):
    """What an audit needs of an artifact."""

    @property
    def model(self) -> Any:
        """Its `spec.cameras` name the views."""

    @property
    def calibration(self) -> Any:
        """Temperature, threshold and gate."""

    @property
    def provenance(self) -> dict[str, Any]:
        """Where it comes from, with the ids of the episodes that it was trained on."""

    def logits(self, images: np.ndarray, batch_size: int = 256) -> np.ndarray:
        """f32[n] of uint8[n,V,H,W,3], or [n,H,W,3] for one camera."""


@dataclass(frozen=True, eq=False)
class Judged:
    """What a model says about the states of an episode."""

    id: str
    labels: np.ndarray
    """int8[S]: 1 success, 0 failure, -1 unlabelled."""
    logits: np.ndarray
    """f32[S]: as the network gives them, before any temperature."""
    without: Mapping[str, np.ndarray] = field(default_factory=dict)
    """f32[S] for each camera: the logits when its picture is replaced by its mean."""
    frames: np.ndarray | None = None
    """int[S]: which states these are, where some are left out; None for all of them."""

    def __post_init__(self) -> None:
        if not len(self.labels) or any(len(self.labels) != len(each) for each in (self.logits, *self.without.values())):
            raise ValueError(f"episode {self.id}: {len(self.labels)} labels and {len(self.logits)} logits do not fit")
        if not all(np.isfinite(each).all() for each in (self.logits, *self.without.values())):
            raise RefereeError(f"the model gives NaN or infinity for episode {self.id}: look at its images and weights")

    @property
    def succeeds(self) -> bool | None:
        """Whether a state is labelled as success; None where no state is labelled at all."""
        if (self.labels == SUCCESS).any():
            return True
        return False if (self.labels == FAILURE).any() else None

    @property
    def first_success(self) -> int:
        """The first state labelled as success; -1 for none."""
        return int((self.labels == SUCCESS).argmax()) if self.succeeds else -1

    @property
    def whole(self) -> bool:
        """Whether every state is here, so that a gate over time means what it says."""
        return self.frames is None or bool((np.diff(self.frames) == 1).all() and len(self.frames) > 1)

    def frame(self, place: int) -> int:
        """The number of a state in its episode."""
        return place if self.frames is None else int(self.frames[place])


def judge(
    artifact: Scorer,
    source: EpisodeStore | Iterable[Episode],
    labels: LabelLog | None = None,
    *,
    ablate: bool = False,
    skip: Callable[[str], bool] = lambda id: False,
    see: Callable[[Episode], object] = lambda episode: None,
    batch_size: int = 256,
) -> list[Judged]:
    """Score every episode, one at a time.

    labels: words beside the recorded truth; a store's own log unless another is given.
    ablate: also score with each camera's picture replaced by its mean; needs a model with several cameras.
    skip: ids of episodes to leave out. see: called with each of the others.
    """
    cameras = cameras_of(artifact)
    if isinstance(source, EpisodeStore):
        labels = labels or LabelLog.of(source)
    blank = mean_views(source, cameras) if ablate and len(cameras) > 1 else None
    judged = []
    for episode in named(source, skip):
        see(episode)
        judged.append(_judge_one(artifact, episode, resolve(episode, labels), cameras, blank, batch_size))
    return judged


def judge_frames(artifact: Scorer, dataset: RewardBinaryDataset, *, batch_size: int = 256) -> list[Judged]:
    """The same for a file of frames, as val.pt; samples of an episode are put together again by its metadata.

    A file that does not say where its samples come from gives an episode of one state for each.
    """
    logits = np.concatenate(
        [_score(artifact, images.numpy(), batch_size, str(dataset.path)) for images, _ in dataset.epoch(batch_size)]
    )
    found, meta = dataset.labels.numpy().astype(np.int8), dataset.metadata
    if not {"episodes", "episode_of_sample", "frame_of_sample"} <= meta.keys():
        return [
            Judged(f"{i:06d}", found[i : i + 1], logits[i : i + 1], frames=np.zeros(1, int)) for i in range(len(found))
        ]
    which, frames = np.asarray(meta["episode_of_sample"]), np.asarray(meta["frame_of_sample"])
    if len(which) != len(found) or len(frames) != len(found):
        raise RefereeError(f"{dataset.path}: its metadata name {len(which)} samples, but it holds {len(found)}")
    judged = []
    for number, id in enumerate(meta["episodes"]):
        rows = np.flatnonzero(which == number)
        rows = rows[np.argsort(frames[rows])]
        judged.append(Judged(id, found[rows], logits[rows], frames=frames[rows]))
    return judged


def cameras_of(artifact: Scorer) -> tuple[str, ...]:
    """The names of the views that a model looks at."""
    return tuple(artifact.model.spec.cameras) or ("main_images",)


def views(episode: Episode, cameras: Sequence[str], frames: slice | Sequence[int] | np.ndarray) -> np.ndarray:
    """uint8[n,V,H,W,3] of some states; one line where a camera is missing or of another size."""
    found = [episode.view(_known(camera, episode)) for camera in cameras]
    if any(view.shape != found[0].shape for view in found):
        sizes = ", ".join(f"{name} {view.shape[2]}x{view.shape[1]}" for name, view in zip(cameras, found, strict=True))
        raise RefereeError(f"episode {episode.meta.id} has cameras of different size ({sizes})")
    return np.stack([view[frames] for view in found], axis=1)


def _known(camera: str, episode: Episode) -> str:
    return "main_images" if camera in MAIN_NAMES and camera not in episode.meta.cameras else camera


def named(source: Iterable[Episode], skip: Callable[[str], bool] = lambda id: False) -> Iterator[Episode]:
    """The episodes of a source; those without an id are numbered, as datasets number them."""
    if isinstance(source, EpisodeStore):
        yield from (source.read(id, verify=True) for id in list(source.rows) if not skip(id))
        return
    for index, episode in enumerate(source):
        found = episode if episode.meta.id else replace(episode, meta=replace(episode.meta, id=f"{index:06d}"))
        if not skip(found.meta.id):
            yield found


def mean_views(source: Iterable[Episode], cameras: Sequence[str]) -> np.ndarray:
    """uint8[V,H,W,3]: what each camera shows on average, over some episodes spread evenly."""
    if isinstance(source, EpisodeStore):
        ids = list(source.rows)
        chosen: Iterable[Episode] = (source.read(id) for id in ids[:: max(1, -(-len(ids) // MEAN_OF))])
    elif isinstance(source, Iterator):
        raise TypeError("ablation reads the episodes twice: give a store or a sequence, not an iterator")
    else:
        chosen = itertools.islice(named(source), MEAN_OF)
    means = [views(episode, cameras, slice(0, CHUNK)).mean(axis=0) for episode in chosen]
    if not means:
        raise RefereeError("there is no episode to judge")
    if any(mean.shape != means[0].shape for mean in means):
        raise RefereeError("the episodes have images of different sizes: judge them apart")
    return np.mean(means, axis=0).round().astype(np.uint8)


def _judge_one(
    artifact: Scorer,
    episode: Episode,
    labels: np.ndarray,
    cameras: tuple[str, ...],
    blank: np.ndarray | None,
    batch_size: int,
) -> Judged:
    parts: list[np.ndarray] = []
    without: dict[str, list[np.ndarray]] = {camera: [] for camera in cameras if blank is not None}
    where = f"episode {episode.meta.id}"
    for start in range(0, episode.states_count, CHUNK):
        images = views(episode, cameras, slice(start, start + CHUNK))
        parts.append(_score(artifact, images, batch_size, where))
        for place, camera in enumerate(without):
            assert blank is not None
            covered = images.copy()
            covered[:, place] = blank[place]
            without[camera].append(_score(artifact, covered, batch_size, where))
    joined = {camera: np.concatenate(each) for camera, each in without.items()}
    return Judged(episode.meta.id, labels, np.concatenate(parts), joined)


def _score(artifact: Scorer, images: np.ndarray, batch_size: int, where: str) -> np.ndarray:
    """f32[n]; a refusal of the model names what it was about."""
    if images.ndim == 5 and images.shape[1] == 1:
        images = images[:, 0]
    try:
        return np.asarray(artifact.logits(images, batch_size=batch_size), np.float32)
    except RefereeError as error:
        raise RefereeError(f"{where}: {error}") from error
