"""What a demo measured: its story for the page, a sentence and numbers for each arm."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from referee import __version__
from referee.demo.story import Arm, Card, Fooled, Stage, Story
from referee.demo.words import whole
from referee.envs.panda.tasks import TASKS
from referee.episodes import EpisodeStore
from referee.metrics.ranking import auroc
from referee.metrics.rates import Rate
from referee.models import Artifact

ROWS: dict[str, Callable[[Arm], str]] = {
    "true success before": lambda arm: whole(arm.start.share),
    "after [95 %]": lambda arm: f"{whole(arm.end.share)} [{', '.join(f'{100 * x:.0f}' for x in arm.end.interval)}]",
    "the model says": lambda arm: whole(arm.end_model),
    "gap, points": lambda arm: f"{100 * arm.gap:+.0f}",
    "labels": lambda arm: str(arm.labels),
    "minutes": lambda arm: f"{arm.minutes:.1f}",
}
"""Of the table at the end."""


@dataclass(frozen=True, eq=False)
class Ends:
    """The last states of some episodes: what was seen, and whether it was a success."""

    images: np.ndarray
    """uint8[n,V,H,W,3]"""
    truth: np.ndarray
    """bool[n]"""


@dataclass(frozen=True, eq=False)
class Finished:
    """An arm that has been trained and judged."""

    arm: Arm
    artifact: Artifact
    """The model that judged at its end."""
    ends: Ends
    account: Mapping[str, float]


def learned(arm: Arm) -> str:
    """How an arm went, in a sentence."""
    caught = "the alarm stayed silent" if arm.alarm_at is None else f"the alarm was raised at step {arm.alarm_at:,}"
    better = f"better models took over {len(arm.swaps)} time{'s' * (len(arm.swaps) != 1)}"
    asked = f" {arm.labels} frames were asked about, and {better}." if arm.labels else ""
    true = f"True success {whole(arm.start.share)} → {whole(arm.end.share)}"
    return f"{true}; the model says {whole(arm.end_model)}; {caught}.{asked}"


def numbers(found: Finished) -> dict[str, object]:
    """The same for result.json."""
    arm = found.arm
    return {
        "start": arm.start.share, "end": arm.end.share, "end_interval": list(arm.end.interval),
        "model_at_end": arm.end_model, "alarm_at": arm.alarm_at, "swaps": list(arm.swaps), "minutes": arm.minutes,
        "account": dict(found.account),
    }  # fmt: skip


def story_of(
    task: str,
    store: EpisodeStore,
    frozen: Artifact,
    stages: Sequence[Stage],
    arms: Sequence[Finished],
    *,
    seed: int,
    episodes: int,
) -> Story:
    """What happened, for the page. store: what the frozen model learned from. episodes: of each evaluation."""
    first, last = arms[0], arms[-1]
    (said, fires), (after, still) = (_judged(each, first.ends.images) for each in (frozen, last.artifact))
    rows = np.flatnonzero(fires & ~first.ends.truth)
    rows = rows[np.argsort(-said[rows], kind="stable")][:6]
    step = first.arm.steps[-1]
    fooled = [Fooled(first.ends.images[i], float(said[i]), float(after[i]), bool(still[i]), step) for i in rows]
    both = Ends(*(np.concatenate([getattr(each.ends, name) for each in arms]) for name in ("images", "truth")))
    cards = [_card(name, each, both) for name, each in (("before refinement", frozen), ("after", last.artifact))]
    account = last.account
    return Story(
        task=task,
        task_words=TASKS[task].description,
        stages=stages,
        arms=[each.arm for each in arms],
        fooled=fooled,
        cards=cards,
        labels=int(account["labels"]),
        label_minutes=account["label_minutes"],
        seconds_per_label=account["seconds_per_label"],
        robot_minutes=account["robot_minutes"],
        examples=_examples(store, frozen),
        links={
            "the audit's full report card": "audit/report.html",
            "the episodes that the model learned from": "episodes.png",
            "numbers": "result.json",
        },
        facts={
            "seed": str(seed),
            "evaluation": f"{episodes} fresh episodes, the policy's mean action",
            "Referee": __version__,
            "Python, PyTorch": f"{platform.python_version()}, {torch.__version__}",
            "CPU cores": str(os.cpu_count()),
        },
    )


def _card(name: str, artifact: Artifact, ends: Ends) -> Card:
    """How far a model can be trusted on what the policies do."""
    (said, fires), truth = _judged(artifact, ends.images), ends.truth
    mixed = 0 < truth.sum() < len(truth)
    return Card(name, {
        "frames": f"last states of {len(truth)} episodes of both policies",
        "right answers": str(Rate(int((fires == truth).sum()), len(truth))),
        "AUROC": f"{auroc(truth.astype(int), said):.3f}" if mixed else "–",
        "failing episodes paid": f"{int((fires & ~truth).sum())} of {int((~truth).sum())}",
        "successes detected": f"{int((fires & truth).sum())} of {int(truth.sum())}",
    })  # fmt: skip


def _judged(artifact: Artifact, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """f32[n], bool[n]: what a model says of last states, and which of them it calls a success."""
    said = artifact.judge(images).probability
    assert said is not None
    return said, said >= artifact.calibration.threshold_in("terminal")


def _examples(store: EpisodeStore, artifact: Artifact) -> list[tuple[str, np.ndarray]]:
    """A success and a failure of the recorded episodes, with what the model says of each."""
    found = []
    for wanted, word in ((True, "A success"), (False, "A failure")):
        for episode in store:
            if episode.success_at_end is wanted:
                image = np.stack([episode.view(camera)[-1] for camera in artifact.spec.cameras])
                said = artifact.judge(image[None]).probability
                assert said is not None
                found.append((f"{word}: the model says {said[0]:.2f}", image))
                break
    return found
