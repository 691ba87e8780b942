"""Recipe: how far a vision-language model that tells trends can be trusted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from referee import cpu, files
from referee.audit import trend
from referee.audit.measure import TrainingEpisodes, refuse_seen
from referee.audit.trend import Labelled, TrendAudit
from referee.audit.trend_page import write_trend_page
from referee.config.datasets import WindowConfig
from referee.datasets.fingerprint import of_artifact
from referee.datasets.source import open_source
from referee.datasets.windows import INFO, SEGMENTS
from referee.episodes import EpisodeStore
from referee.labels.log import LabelLog
from referee.models.vlm.judge import HistoryVLMRewardModel, ReadOut
from referee.models.vlm.prompts import QWENTREND, make_input_builder
from referee.models.vlm.qwen import QwenOptions, base_of, load, read_note, taught_both_ways
from referee.recipes.audit import title_of
from referee.training.vlm.segments import pictures_of, read_segments

Shown = Iterable[tuple[str, Callable[[], np.ndarray]]]
"""Ids of episodes, and what reads their pictures."""


@dataclass(frozen=True)
class AuditedTrend:
    """What an audit of trends measured, and its page."""

    metrics: TrendAudit
    page: Path


def audit_vlm(
    path: Path, data: Path, *, out: Path | None = None, training_episodes: TrainingEpisodes = "refuse"
) -> AuditedTrend:
    """Judge labelled windows, and write the report card and metrics.json."""
    cpu.cap_if_needed()
    note = read_note(path)
    windows, shown = _windows(data)
    ids, seen = trained_on(note, shown)
    refuse_seen(len(seen), len(ids), min(seen, default=""), training_episodes)
    if training_episodes == "skip":
        windows = (each for each in windows if each.episode not in seen)
    base, lora = base_of(path)
    chat = bool(note.get("use_chat_template", True))
    model = load(QwenOptions(model_path=base, lora_path=lora, use_chat_template=chat))
    asked = note.get("input_builder_name", QWENTREND), note.get("input_builder_params")
    builder = make_input_builder(*asked)
    both_ways = taught_both_ways(note)
    scorer = HistoryVLMRewardModel(model, builder, how=ReadOut(readout="score", both_ways=both_ways))
    writer = HistoryVLMRewardModel(model, builder, how=ReadOut(readout="generate"))
    found = trend.audit(scorer, windows, writer=writer)
    if seen and training_episodes == "allow":
        found = replace(found, notes=[f"the model was trained on {len(seen)} of these {len(ids)} episodes: "
                                      "these numbers prove nothing"])  # fmt: skip
    folder = out or path / "report"
    files.write_json(folder / "metrics.json", json.loads(json.dumps(found.to_json()), parse_constant=lambda _: None))
    card = folder / "report.html"
    facts = {"model": str(base), **({"adapter": str(lora)} if lora else {}), "audited on": str(data),
             "asked": "both ways" if both_ways else "forwards", "input builder": asked[0],
             **{name: str(value) for name, value in (asked[1] or {}).items()}}  # fmt: skip
    prompt = None if found.example is None else builder(found.example)
    write_trend_page(card, found, prompt, title=title_of(path), facts=facts)
    return AuditedTrend(found, card)


def trained_on(note: dict[str, Any], shown: Shown) -> tuple[list[str], set[str]]:
    """The ids of some episodes, and of those that the model was trained on, by their ids or their frames."""
    known, fingerprint = set(note.get("episodes", {}).get("train", ())), of_artifact(note)
    ids, seen = [], set()
    for id, pictures in shown:
        ids.append(id)
        if id in known or (fingerprint is not None and fingerprint.holds(pictures())):
            seen.add(id)
    return ids, seen


def _windows(data: Path) -> tuple[Iterator[Labelled], Shown]:
    """Labelled windows, and the episodes that they come from: of a windows dataset (its eval side), or of episodes."""
    if data.name == SEGMENTS or (data / SEGMENTS).is_file() or (data / INFO).is_file():
        segments = read_segments([data / "eval" if (data / INFO).is_file() else data])
        return trend.of_segments(segments), pictures_of(segments)
    source = open_source(data)
    labels = LabelLog.of(source) if isinstance(source, EpisodeStore) else None
    shown = ((each.meta.id, partial(each.view, "main_images")) for each in source)
    return trend.of_episodes(source, WindowConfig(), labels), shown
