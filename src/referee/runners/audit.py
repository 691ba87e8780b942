"""Recipes: how far a reward model can be trusted, which of two is better, and what one says about pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

from referee import cpu
from referee.audit import compare as comparing
from referee.audit import measure, report
from referee.audit.judged import cameras_of, views
from referee.audit.measure import Metrics, TrainingEpisodes
from referee.audit.words import NAMES, headline, plain, span, verdict
from referee.datasets.source import Reread, open_source
from referee.episodes import Episode, EpisodeStore
from referee.episodes.formats.frames import FILMS, PICTURES, decode_picture, naming
from referee.errors import RefereeError
from referee.metrics.gate import first, gate
from referee.models.artifact import Artifact
from referee.models.contract import Verdict
from referee.pictures import GREEN, GREY, banner, check_writable, save_gif

TONES = {"good": "green", "open": "yellow", "bad": "red"}


def audit(
    path: Path, data: Path, console: Console, *, out: Path | None = None, training_episodes: TrainingEpisodes = "refuse"
) -> Metrics:
    """Judge episodes, print the numbers, and write the report card and metrics.json."""
    artifact, source = _open(path, data)
    folder = out or path / "report"
    with console.status(f"judging {data}"):
        metrics, judged = measure.audit(artifact, source, training_episodes=training_episodes)
    card = folder / "report.html"
    report.write_report(card, metrics, judged, artifact, source, title=title_of(path), facts={"audited on": str(data)})
    metrics.save(folder / "metrics.json")
    tone, word, promise = verdict(metrics)
    console.print(f"[bold {TONES[tone]}]{word}[/]  {headline(metrics)}", highlight=False)
    console.print(promise, highlight=False)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name, side in (("", "left"), ("value", "right"), ("95 %", "left")):
        table.add_column(name, justify=side)  # type: ignore[arg-type]
    for key, name in NAMES.items():
        table.add_row(name, plain(metrics[key].value), span(metrics[key]))
    for camera, found in metrics.cameras.items():
        table.add_row(f"AUROC without {camera}", plain(found["auroc"].value), span(found["auroc"]))
    console.print(table)
    for note in metrics.notes:
        console.print(f"note: {note}", style="yellow", highlight=False, markup=False, soft_wrap=True)
    console.print(f"report card {card}", highlight=False, soft_wrap=True)
    return metrics


def compare(a: Path, b: Path, data: Path, console: Console) -> None:
    """Two models on the same episodes."""
    first_one, source = _open(a, data)
    with console.status(f"judging {data}"):
        found = comparing.compare(first_one, Artifact.open(b), source, names=(str(a), str(b)))
    console.print(str(found), highlight=False, markup=False, soft_wrap=True)


def score(path: Path, what: Sequence[Path], console: Console, *, gif: Path | None = None) -> None:
    """What a model says about pictures, or about episodes."""
    cpu.cap_if_needed()
    artifact = Artifact.open(path)
    if gif is not None:
        check_writable(gif)
    if all(each.suffix.lower() in PICTURES for each in what) or _is_folder_of_pictures(what):
        frames = _score_pictures(artifact, _pictures(what), console)
    else:
        frames = _score_episodes(artifact, what, console)
    if gif is not None:
        save_gif(gif, frames)
        console.print(f"wrote {gif}", highlight=False, soft_wrap=True)


def _open(path: Path, data: Path) -> tuple[Artifact, EpisodeStore | Reread]:
    cpu.cap_if_needed()
    if data.suffix in (".pt", ".pth") or (data / "train.pt").exists():
        raise RefereeError(f"{data} holds single frames, but an audit is about whole episodes: give those it came from")
    return Artifact.open(path), open_source(data)


def title_of(path: Path) -> str:
    """Of a run logs/x/checkpoints/best_model, what tells it from others."""
    parts = [part for part in path.resolve().parts if part not in ("checkpoints", "best_model")]
    return parts[-1]


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


def _score_pictures(artifact: Artifact, paths: Sequence[Path], console: Console) -> list[np.ndarray]:
    cameras = cameras_of(artifact)
    if len(cameras) > 1:
        raise RefereeError(
            f"the model looks at {len(cameras)} cameras ({', '.join(cameras)}), and a picture shows one: score episodes"
        )
    frames = []
    for path in paths:
        with naming(path):
            image = decode_picture(path)
        try:
            said = artifact.judge(image[None])
        except RefereeError as error:
            raise RefereeError(f"{path}: {error}") from error
        assert said.probability is not None and said.success is not None
        word = "[green]success[/]   " if said.success[0] else "no success"
        console.print(f"{said.probability[0]:.4f}  {word}  {path}", highlight=False, soft_wrap=True)
        frames.append(_overlay(image, said, 0))
    return frames


def _score_episodes(artifact: Artifact, what: Sequence[Path], console: Console) -> list[np.ndarray]:
    """One line per episode; the frames are those of the first."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("episode", "highest", "gate fires", "recorded"):
        table.add_column(name)
    frames: list[np.ndarray] = []
    calibration = artifact.calibration
    for path in what:
        for episode in open_source(path):
            images = views(episode, cameras_of(artifact), slice(None))
            said = artifact.judge(images if images.shape[1] > 1 else images[:, 0])
            assert said.probability is not None and said.success is not None
            fire = int(first(gate(said.success, calibration.gate_k, calibration.gate_n)))
            when = "never" if fire < 0 else f"at state {fire}"
            name = episode.meta.id or str(episode.meta.extra.get("name", path))
            table.add_row(name, f"{said.probability.max():.4f}", when, _recorded(episode))
            if not frames:
                wide = [np.concatenate(list(each), axis=1) for each in images]
                frames = [_overlay(image, said, number) for number, image in enumerate(wide)]
    console.print(table)
    return frames


def _recorded(episode: Episode) -> str:
    if episode.success is None:
        return "no label"
    at = int(first(episode.success))
    return "no success" if at < 0 else f"success at state {at}"


def _overlay(image: np.ndarray, said: Verdict, number: int) -> np.ndarray:
    assert said.probability is not None and said.success is not None
    times = max(1, round(240 / image.shape[0]))
    size = (image.shape[1] * times, image.shape[0] * times)
    large = np.asarray(Image.fromarray(image).resize(size, Image.Resampling.NEAREST))
    good = bool(said.success[number])
    text = f"{'success' if good else 'no success'} {said.probability[number]:.3f}"
    return banner(large, text, GREEN if good else GREY)
