"""From frames to what people look at: GIF films, film strips and contact sheets."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from referee.errors import RefereeError
from referee.files import replacing

PAPER = (250, 249, 246)
INK = (40, 44, 52)
MARK, MARKED_WITHIN = "drawn by Referee", 4096
"""What pictures and films say of themselves, within so many bytes."""


def check_writable(path: Path) -> None:
    """Refuse a path that cannot be written, or holds what Referee did not draw, before any work is done for it."""
    folder = next(each for each in path.absolute().parents if each.exists())
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise RefereeError(f"cannot write {path}: choose another --out, in a folder that you can write")
    if path.exists() and not is_ours(path):
        raise RefereeError(f"{path} is there already, and Referee did not draw it: choose another name, or remove it")


def is_ours(path: Path) -> bool:
    """Whether Referee wrote a picture or a film, which it may then replace."""
    mark = b"\x07referee" if path.suffix == ".rrd" else MARK.encode()
    with path.open("rb") as file:
        if path.suffix == ".mp4":  # says it at its end
            file.seek(max(0, path.stat().st_size - MARKED_WITHIN))
        return mark in file.read(MARKED_WITHIN)


GREEN, GREY = (22, 130, 62), (90, 94, 100)
"""Of success, and of anything else."""


def atomic_save(image: Image.Image, path: Path, **options: Any) -> None:
    """Save beside the goal and rename, so that a killed run leaves no half picture."""
    if path.suffix.lower() == ".png":
        options["pnginfo"] = PngInfo()
        options["pnginfo"].add_text("Software", MARK)
    elif path.suffix.lower() == ".gif":
        options["comment"] = MARK
    with replacing(path, sync=False) as temporary:
        image.save(temporary, **options)


def save_gif(path: Path, frames: Sequence[np.ndarray], *, fps: float = 20.0) -> None:
    """A looping film of frames uint8[H,W,3]."""
    images = [Image.fromarray(frame) for frame in frames]
    # One palette for the whole film: no flicker, and a smaller file.
    step = max(1, len(images) // 8)
    sample = Image.fromarray(np.concatenate([np.asarray(image) for image in images[::step]], axis=0))
    palette = sample.quantize(128, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    pages = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    duration = max(20, round(1000 / fps / 10) * 10)
    atomic_save(pages[0], path, save_all=True, append_images=pages[1:], duration=duration, loop=0, optimize=False)


def enlarged(frame: np.ndarray, pixels: int) -> np.ndarray:
    """The frame with its shorter side `pixels` long."""
    height, width = frame.shape[:2]
    factor = pixels / min(height, width)
    return np.asarray(Image.fromarray(frame).resize((round(width * factor), round(height * factor))))


def scaled(image: np.ndarray, size: int | tuple[int, int]) -> np.ndarray:
    """uint8[H,W,3]: a picture scaled to a square, or to (height, width); each new pixel the mean of those it covers."""
    height, width = (size, size) if isinstance(size, int) else size
    if image.shape[:2] == (height, width):
        return image
    smaller = image.shape[0] >= height and image.shape[1] >= width
    method = Image.Resampling.BOX if smaller else Image.Resampling.BILINEAR
    return np.asarray(Image.fromarray(image).resize((width, height), method))


def banner(frame: np.ndarray, text: str, colour: tuple[int, int, int] = INK) -> np.ndarray:
    """The frame with a small label in its lower left corner."""
    image = Image.fromarray(frame)
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(max(10, image.height // 20))
    left, top, right, bottom = draw.textbbox((0, 0), text, font=font)
    margin = image.height // 40
    box = (
        margin,
        image.height - (bottom - top) - 3 * margin,
        right - left + 3 * margin,
        image.height - margin,
    )
    draw.rounded_rectangle(box, radius=margin, fill=PAPER)
    draw.text((box[0] + margin, box[1] + margin - top), text, fill=colour, font=font)
    return np.asarray(image)


def border(frame: np.ndarray, colour: tuple[int, int, int], width: int = 3) -> np.ndarray:
    """The frame with a coloured rim."""
    framed = frame.copy()
    framed[:width], framed[-width:] = colour, colour
    framed[:, :width], framed[:, -width:] = colour, colour
    return framed


def contact_sheet(
    rows: Sequence[tuple[str, Sequence[np.ndarray]]],
    headings: Sequence[str],
    *,
    title: str,
    tile: int,
    gap: int = 8,
) -> Image.Image:
    """A titled grid: one row per (label, frames), one heading per column; frames are scaled to `tile` pixels."""
    font, small = ImageFont.load_default(22), ImageFont.load_default(15)
    left, top = 156, 84
    width = left + len(headings) * (tile + gap) + gap
    sheet = Image.new("RGB", (width, top + len(rows) * (tile + gap) + gap), PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((16, 14), title, fill=INK, font=font)
    for column, heading in enumerate(headings):
        draw.text((left + column * (tile + gap), top - 26), heading, fill=INK, font=small)
    for row, (label, frames) in enumerate(rows):
        y = top + row * (tile + gap)
        draw.text((16, y + tile // 2 - 10), label, fill=INK, font=small)
        for column, frame in enumerate(frames):
            # Small frames are enlarged without smoothing: people should see the pixels that a model sees.
            exact = Image.Resampling.NEAREST if frame.shape[0] < tile else Image.Resampling.LANCZOS
            image = Image.fromarray(frame).resize((tile, tile), exact)
            sheet.paste(image, (left + column * (tile + gap), y))
    return sheet
