"""Verb: pay for the answers of a file by rule."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from referee import files
from referee.errors import RefereeError
from referee.metrics import Rate
from referee.rewards.text import TextOptions
from referee.workers.text import TextRewardWorker


def score_text(source: Path, *, rule: str, out: Path | None = None) -> Rate:
    """How many answers of a .jsonl file are right; with `out`, each line once more with success and reward."""
    console, options = Console(), TextOptions(rule=rule)
    rows = list(_rows(source))
    if not rows:
        raise RefereeError(f'{source} holds no lines: each is {{"answer": …, "reference": …}}')
    batch = {"answers": [row["answer"] for row in rows], "references": [row["reference"] for row in rows]}
    verdict = TextRewardWorker(options).judge(batch)
    assert verdict.success is not None
    rate = Rate(int(verdict.success.sum()), len(rows))
    console.print(
        f"{source}: right by rule {options.rule} {rate}; mean reward {verdict.score.mean():.3f}", soft_wrap=True
    )
    if out is not None:
        said = zip(rows, verdict.success.tolist(), verdict.score.tolist(), strict=True)
        lines = [json.dumps({**row, "success": success, "reward": reward}) for row, success, reward in said]
        files.write_text(out, "\n".join(lines) + "\n")
        console.print(f"wrote {out}", soft_wrap=True)
    return rate


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
