"""Verb: pay for the answers of a file by rule."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from referee import files
from referee.config.history import TextRewardConfig
from referee.errors import RefereeError
from referee.metrics import Rate
from referee.workers.text import TextRewardWorker


@dataclass(frozen=True, kw_only=True)
class TextScores:
    """How many answers of a file are right."""

    source: Path
    rule: str
    rate: Rate
    mean_reward: float
    out: Path | None
    """Where each line was written with its success and reward."""


def score_text(source: Path, *, rule: str, out: Path | None = None) -> TextScores:
    """Score the answers of a .jsonl file; with `out`, each line is written there with success and reward."""
    config = TextRewardConfig(rule=rule)
    if out is not None and out.exists():
        raise RefereeError(f"{out} is there already: choose another --out, or remove it")
    rows = list(_rows(source))
    if not rows:
        raise RefereeError(f'{source} holds no lines: each is {{"answer": …, "reference": …}}')
    batch = {"answers": [row["answer"] for row in rows], "references": [row["reference"] for row in rows]}
    verdict = TextRewardWorker(config).judge(batch)
    assert verdict.success is not None
    rate = Rate(int(verdict.success.sum()), len(rows))
    if out is not None:
        said = zip(rows, verdict.success.tolist(), verdict.score.tolist(), strict=True)
        lines = [json.dumps({**row, "success": success, "reward": reward}) for row, success, reward in said]
        files.write_text(out, "\n".join(lines) + "\n")
    return TextScores(source=source, rule=config.rule, rate=rate, mean_reward=float(verdict.score.mean()), out=out)


def _rows(source: Path) -> Iterator[dict[str, Any]]:
    try:
        text = source.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise RefereeError(f"{source} cannot be read: {error}") from error
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = files.parse_json(line)
        except ValueError as error:
            raise RefereeError(f"{source}:{number} is not JSON: {error}") from error
        for name in ("answer", "reference"):
            if not isinstance(row, dict) or not isinstance(row.get(name), str):
                raise RefereeError(f"{source}:{number} has no text under {name!r}: a line is an object with both texts")
        yield row
