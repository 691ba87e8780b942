"""A report card: what an audit measured, with intervals, to be read, shown in a notebook, or saved as a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from referee import notebook
from referee.audit import measure, report
from referee.audit.exhibits import most_wrong, read_frames
from referee.audit.judged import Judged, Scorer, cameras_of
from referee.audit.measure import Metrics, TrainingEpisodes
from referee.audit.words import NAMES, headline, likely, plain, span, verdict
from referee.episodes import Episode, EpisodeStore
from referee.metrics.intervals import Estimate

SHOWN = 8
"""Wrong frames in a notebook."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ReportCard:
    """The metrics of a reward model on episodes, each an `Estimate`: `value`, `low` and `high` of a 95 % interval."""

    auroc: Estimate
    """Area under the ROC curve, of frames."""
    average_precision: Estimate
    """Area under the precision-recall curve, of frames."""
    precision: Estimate
    """Of frames, at the threshold."""
    recall: Estimate
    """Of frames, at the threshold."""
    false_positive_rate: Estimate
    """Of frames, at the threshold."""
    episode_false_positive_rate: Estimate
    """The share of failing episodes in which the gate fires."""
    episode_recall: Estimate
    """The share of successful episodes in which the gate fires, and not before the success."""
    early_rate: Estimate
    """The share of successful episodes in which the gate fires before the success."""
    fire_precision: Estimate
    """The share of fires of the gate that are right."""
    steps_to_detect: Estimate
    """Median number of steps from the first success state to the gate."""
    steps_to_detect_90: Estimate
    """The same for nine episodes of ten."""
    ece: Estimate
    """Expected calibration error, bins of equal width."""
    ece_equal_mass: Estimate
    """Expected calibration error, bins of equal mass."""
    brier: Estimate
    """Brier score."""
    voc_success: Estimate
    """Value-order correlation in successful episodes: whether the score rises with time."""
    voc_failure: Estimate
    """The same in failing episodes."""

    metrics: Metrics
    """All of it with counts, curves and what each camera contributes."""
    judged: Sequence[Judged]
    """Label and logit of every state."""
    title: str = "Reward model"
    artifact: Scorer
    source: EpisodeStore | Iterable[Episode]

    @property
    def notes(self) -> list[str]:
        """What must be said beside the numbers."""
        return list(self.metrics.notes)

    @property
    def verdict(self) -> str:
        """`holds`, `not proven`, `too many`, …: whether the episode false-positive rate that was aimed at is kept."""
        return verdict(self.metrics)[1]

    def save(self, folder: Path | str, *, facts: dict[str, str] | None = None) -> Path:
        """Write report.html, one page with everything in it, and metrics.json; returns the page.

        facts: more lines for the table at its end.
        """
        page = Path(folder) / "report.html"
        report.write_report(
            page, self.metrics, self.judged, self.artifact, self.source, title=self.title, facts=facts or {}
        )
        self.metrics.save(page.with_name("metrics.json"))
        return page

    def __str__(self) -> str:
        rows = [f"{name:<44} {getattr(self, key)}" for key, name in NAMES.items()]
        return "\n".join(
            [f"{self.verdict}: {headline(self.metrics)}", *rows, *(f"note: {each}" for each in self.notes)]
        )

    def __repr__(self) -> str:
        return f"ReportCard({self.verdict}: {headline(self.metrics)} AUROC {self.auroc})"

    def _repr_html_(self) -> str:
        facts: dict[str, object] = {"": headline(self.metrics)}
        facts |= {name: f"{plain(getattr(self, key).value)}  ({span(getattr(self, key)) or '–'})"
                  for key, name in NAMES.items()}  # fmt: skip
        facts |= {f"note {number}": note for number, note in enumerate(self.notes, 1)}
        return notebook.panel(f"Report card: {self.verdict}", facts, *self._wrong())

    def _wrong(self) -> list[str]:
        """The frames that the model is surest about and wrong."""
        wrong = most_wrong(self.judged, self.artifact.calibration, SHOWN)
        if not wrong:
            return []
        places: dict[str, list[int]] = {}
        for each in wrong:
            places.setdefault(each.episode, []).append(each.frame)
        frames = read_frames(self.source, cameras_of(self.artifact), places)
        views = np.stack([notebook.thumbnail(frames[each.episode, each.frame][0]) for each in wrong])
        labels = np.array([each.label for each in wrong])
        said = ", ".join(likely(each.probability) for each in wrong)
        return [notebook.picture(notebook.film_strip([views], labels), f"most wrong frames; the model says {said}")]


def report_card(
    artifact: Scorer,
    source: EpisodeStore | Iterable[Episode],
    *,
    training_episodes: TrainingEpisodes = "refuse",
    title: str = "Reward model",
) -> ReportCard:
    """Audit an artifact on episodes; see `measure.audit`."""
    metrics, judged = measure.audit(artifact, source, training_episodes=training_episodes)
    return ReportCard(
        **metrics.estimates, metrics=metrics, judged=judged, title=title, artifact=artifact, source=source
    )
