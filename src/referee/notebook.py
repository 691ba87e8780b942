"""What objects show of themselves in a notebook: small tables and pictures; all text is escaped."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image

from referee.pictures import GREEN, GREY, border

TILE, COLUMNS, VIEWS = 72, 8, 3
"""Pixels of a frame, frames of a strip, and cameras of it, at most."""
_RIM = 3


def panel(title: str, facts: Mapping[str, object], *pictures: str) -> str:
    """The HTML of an object: a heading, a table of facts, and pictures made by `picture`."""
    rows = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(value)}</td></tr>'
        for name, value in facts.items()
        if value not in (None, "")
    )
    return f"<div><b>{escape(title)}</b><table>{rows}</table>{''.join(pictures)}</div>"


def escape(value: object) -> str:
    """Text for HTML; not endless."""
    text = str(value)
    return html.escape(text if len(text) <= 300 else f"{text[:300]} …", quote=True)


def picture(image: np.ndarray, caption: str = "") -> str:
    """An embedded PNG of uint8[H,W,3] with a caption."""
    data = io.BytesIO()
    Image.fromarray(image).save(data, "PNG", optimize=True)
    source = f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"
    text = escape(caption)
    return f'<figure style="margin:6px 0"><figcaption>{text}</figcaption><img src="{source}" alt="{text}"></figure>'


def film_strip(views: Sequence[np.ndarray], labels: np.ndarray | None = None) -> np.ndarray:
    """uint8[h,w,3]: a few frames of each view uint8[T,H,W,3], evenly spaced, a row per view.

    labels: [T]; frames with label 1 get a green rim, others a grey one.
    """
    count = len(views[0])
    rows = np.linspace(0, count - 1, min(COLUMNS, count)).round().astype(int)
    colours = [GREEN if labels is not None and labels[row] == 1 else GREY for row in rows]
    return np.concatenate(
        [
            np.concatenate(
                [border(thumbnail(view[row]), colour, _RIM) for row, colour in zip(rows, colours, strict=True)], axis=1
            )
            for view in views[:VIEWS]
        ]
    )


def thumbnail(frame: np.ndarray) -> np.ndarray:
    """A frame as a square of TILE pixels; small frames keep their pixels visible."""
    exact = Image.Resampling.NEAREST if max(frame.shape[:2]) < TILE else Image.Resampling.BOX
    return np.asarray(Image.fromarray(frame).resize((TILE, TILE), exact))
