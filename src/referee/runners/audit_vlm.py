"""Recipe: how far a vision-language model that tells trends can be trusted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from referee import cpu, files
from referee.audit import trend
from referee.audit.measure import TrainingEpisodes, refuse_seen
from referee.audit.trend import Labelled, TrendAudit
from referee.audit.trend_page import write_trend_page
from referee.datasets.source import open_source
from referee.datasets.windows import INFO, LABELS, SEGMENTS, WindowOptions
from referee.episodes import EpisodeStore
from referee.labels.log import LabelLog
from referee.models.vlm.judge import HistoryVLMRewardModel, ReadOut
from referee.models.vlm.prompts import QWENTREND, make_input_builder
from referee.models.vlm.qwen import QwenOptions, base_of, load, read_note, taught_both_ways
from referee.runners.audit import title_of
from referee.training.vlm.segments import read_segments


def audit_vlm(
    path: Path, data: Path, console: Console, *, out: Path | None = None, training_episodes: TrainingEpisodes = "refuse"
) -> TrendAudit:
    """Judge labelled windows, print the numbers, and write the report card and metrics.json."""
    cpu.cap_if_needed()
    note = read_note(path)
    windows, ids = _windows(data)
    seen = set(note.get("episodes", {}).get("train", ())) & set(ids)
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
    with console.status(f"judging {data}"):
        found = trend.audit(scorer, windows, writer=writer)
    if seen and training_episodes == "allow":
        found = replace(found, notes=[f"the model was trained on {len(seen)} of these {len(ids)} episodes: "
                                      "these numbers prove nothing"])  # fmt: skip
    folder = out or path / "report"
    files.write_json(folder / "metrics.json", json.loads(json.dumps(found.to_json()), parse_constant=lambda _: None))
    show(found, console)
    card = folder / "report.html"
    facts = {"model": str(base), **({"adapter": str(lora)} if lora else {}), "audited on": str(data),
             "asked": "both ways" if both_ways else "forwards", "input builder": asked[0],
             **{name: str(value) for name, value in (asked[1] or {}).items()}}  # fmt: skip
    prompt = None if found.example is None else builder(found.example)
    write_trend_page(card, found, prompt, title=title_of(path), facts=facts)
    console.print(f"report card {card}", highlight=False, soft_wrap=True)
    return found


def show(found: TrendAudit, console: Console) -> None:
    """The numbers as tables."""
    scores = found.scores
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("")
    table.add_column("value", justify="right")
    table.add_column("95 %")
    rates = {
        "accuracy, three labels": scores.confusion.accuracy,
        **{f"recall of {name}": rate for name, rate in scores.confusion.recalls.items()},
        "positive rather than negative": scores.up,
        "negative rather than positive": scores.down,
    }
    for name, rate in rates.items():
        low, high = rate.interval
        table.add_row(name, f"{rate.share:.3f}", f"{low:.3f} to {high:.3f}, of {rate.trials}")
    plain = {
        "up or down, both alike": scores.trend,
        "calibration error (ECE)": found.ece,
        "order in time (VOC)": found.voc,
        "following the true progress": found.following,
    }
    for name, value in plain.items():
        table.add_row(name, f"{value:.3f}", "")
    console.print(table)
    matrix = Table(box=None, pad_edge=False, header_style="dim", title_justify="left")
    for name in ("true \\ said", *LABELS):
        matrix.add_column(name, justify="left" if "true" in name else "right")
    for name, row in zip(LABELS, scores.confusion.counts, strict=True):
        matrix.add_row(name, *map(str, row[: len(LABELS)].tolist()))
    console.print()
    console.print(matrix)
    if found.said:
        total = sum(found.said.values())
        console.print(f"written answers that cannot be read: {found.said['invalid']} of {total}", highlight=False)
    for note in found.notes:
        console.print(f"note: {note}", style="yellow", highlight=False, markup=False, soft_wrap=True)


def _windows(data: Path) -> tuple[Iterator[Labelled], list[str]]:
    """Labelled windows, and the episodes that they come from: of a windows dataset (its eval side), or of episodes."""
    if data.name == SEGMENTS or (data / SEGMENTS).is_file() or (data / INFO).is_file():
        segments = read_segments([data / "eval" if (data / INFO).is_file() else data])
        return trend.of_segments(segments), sorted({each.episode for each in segments})
    source = open_source(data)
    labels = LabelLog.of(source) if isinstance(source, EpisodeStore) else None
    ids = list(source.rows) if isinstance(source, EpisodeStore) else [each.meta.id for each in source]
    return trend.of_episodes(source, WindowOptions(), labels), ids
