"""What a reward model says of pictures, and of whole episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from referee.audit.judged import cameras_of, views
from referee.datasets.source import open_source
from referee.episodes import Episode
from referee.episodes.formats.frames import decode_picture, naming
from referee.errors import RefereeError
from referee.metrics.gate import first, gate
from referee.models.artifact import Artifact
from referee.models.contract import FrameVerdict
from referee.pictures import GREEN, GREY, banner


@dataclass(frozen=True)
class PictureScore:
    """What a model says about one picture."""

    path: Path
    probability: float
    success: bool


@dataclass(frozen=True)
class EpisodeScore:
    """What a model says about one episode."""

    name: str
    highest: float
    """The highest probability of its states."""
    fires_at: int | None
    """The state in which the gate fires; None: never."""
    recorded: str
    """The recorded label, in words."""


def score_pictures(
    artifact: Artifact, paths: Sequence[Path], *, draw: bool
) -> tuple[list[PictureScore], list[np.ndarray]]:
    cameras = cameras_of(artifact)
    if len(cameras) > 1:
        raise RefereeError(
            f"the model looks at {len(cameras)} cameras ({', '.join(cameras)}), and a picture shows one: score episodes"
        )
    scores, frames = [], []
    for path in paths:
        with naming(path):
            image = decode_picture(path)
        try:
            verdict = artifact.judge(image[None])
        except RefereeError as error:
            raise RefereeError(f"{path}: {error}") from error
        scores.append(PictureScore(path, float(verdict.probability[0]), bool(verdict.success[0])))
        if draw:
            frames.append(_overlay(image, verdict, 0))
    return scores, frames


def score_episodes(
    artifact: Artifact, what: Sequence[Path], *, draw: bool
) -> tuple[list[EpisodeScore], list[np.ndarray]]:
    """One entry per episode; the frames are those of the first."""
    scores: list[EpisodeScore] = []
    frames: list[np.ndarray] = []
    calibration = artifact.calibration
    for path in what:
        for episode in open_source(path):
            images = views(episode, cameras_of(artifact), slice(None))
            verdict = artifact.judge(images if images.shape[1] > 1 else images[:, 0])
            fire = int(first(gate(verdict.success, calibration.gate_k, calibration.gate_n)))
            name = episode.meta.id or str(episode.meta.extra.get("name", path))
            highest = float(verdict.probability.max())
            if draw and not scores:
                wide = [np.concatenate(list(each), axis=1) for each in images]
                frames = [_overlay(image, verdict, number) for number, image in enumerate(wide)]
            scores.append(EpisodeScore(name, highest, None if fire < 0 else fire, _recorded(episode)))
    return scores, frames


def _recorded(episode: Episode) -> str:
    if episode.success is None:
        return "no label"
    at = int(first(episode.success))
    return "no success" if at < 0 else f"success at state {at}"


def _overlay(image: np.ndarray, verdict: FrameVerdict, number: int) -> np.ndarray:
    times = max(1, round(240 / image.shape[0]))
    size = (image.shape[1] * times, image.shape[0] * times)
    large = np.asarray(Image.fromarray(image).resize(size, Image.Resampling.NEAREST))
    good = bool(verdict.success[number])
    text = f"{'success' if good else 'no success'} {verdict.probability[number]:.3f}"
    return banner(large, text, GREEN if good else GREY)
