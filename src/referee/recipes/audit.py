"""Recipes: how far a reward model can be trusted, and which of two is better."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from referee import cpu
from referee.audit import compare as comparing
from referee.audit import report
from referee.audit.card import ReportCard, report_card
from referee.audit.compare import Comparison
from referee.audit.measure import TrainingEpisodes
from referee.datasets.source import EpisodeFiles, left_out, open_source
from referee.episodes import EpisodeStore
from referee.errors import RefereeError
from referee.models.artifact import Artifact


@dataclass(frozen=True)
class Audited:
    """A report card, and the page that it was saved as."""

    card: ReportCard
    page: Path
    replaced: str
    """The earlier audit that stood there, in words; empty where there was none."""


def audit(
    path: Path, data: Path, *, out: Path | None = None, training_episodes: TrainingEpisodes = "refuse"
) -> Audited:
    """Score episodes, measure, and save the report card and metrics.json."""
    artifact, source = _open(path, data)
    folder = out or path / "report"
    replaced = report.earlier(folder)
    card = report_card(artifact, source, training_episodes=training_episodes, title=title_of(path))
    return Audited(card, card.save(folder, facts={"audited on": str(data)}), replaced)


def compare(a: Path, b: Path, data: Path) -> Comparison:
    """Two models on the same episodes."""
    first_one, source = _open(a, data)
    lost = left_out(source)
    comparison = comparing.compare(first_one, Artifact.open(b), source, names=(str(a), str(b)))
    return replace(comparison, notes=tuple(lost))


def _open(path: Path, data: Path) -> tuple[Artifact, EpisodeStore | EpisodeFiles]:
    cpu.cap_if_needed()
    if data.suffix in (".pt", ".pth") or (data / "train.pt").exists():
        raise RefereeError(f"{data} holds single frames, but an audit is about whole episodes: give those it came from")
    return Artifact.open(path), open_source(data)


def title_of(path: Path) -> str:
    """Of a run logs/x/checkpoints/best_model, what tells it from others."""
    parts = [part for part in path.resolve().parts if part not in ("checkpoints", "best_model")]
    return parts[-1]
