"""Recipe: what a reward model says about pictures, or about episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from referee import cpu
from referee.audit.scores import EpisodeScore, PictureScore, score_episodes, score_pictures
from referee.episodes.formats.frames import FILMS, PICTURES
from referee.models.artifact import Artifact
from referee.pictures import check_writable, save_gif


@dataclass(frozen=True)
class Scores:
    """One entry per picture or per episode."""

    pictures: tuple[PictureScore, ...] = ()
    episodes: tuple[EpisodeScore, ...] = ()
    gif: Path | None = None
    """Where frames were drawn with the verdict on them: of the pictures, or of the first episode."""


def score(path: Path, what: Sequence[Path], *, gif: Path | None = None) -> Scores:
    """Score pictures, a folder of them, or episodes."""
    cpu.cap_if_needed()
    artifact = Artifact.open(path)
    if gif is not None:
        check_writable(gif)
    if all(each.suffix.lower() in PICTURES for each in what) or _is_folder_of_pictures(what):
        pictures, frames = score_pictures(artifact, _pictures(what), draw=gif is not None)
        scores = Scores(pictures=tuple(pictures), gif=gif)
    else:
        episodes, frames = score_episodes(artifact, what, draw=gif is not None)
        scores = Scores(episodes=tuple(episodes), gif=gif)
    if gif is not None:
        save_gif(gif, frames)
    return scores


def _is_folder_of_pictures(what: Sequence[Path]) -> bool:
    return (
        len(what) == 1
        and what[0].is_dir()
        and any(each.suffix.lower() in PICTURES for each in what[0].iterdir())
        and not any(each.suffix.lower() in FILMS for each in what[0].iterdir())
    )


def _pictures(what: Sequence[Path]) -> list[Path]:
    if what[0].is_dir():
        return sorted(each for each in what[0].iterdir() if each.suffix.lower() in PICTURES)
    return list(what)
