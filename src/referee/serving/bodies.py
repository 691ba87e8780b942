"""From the body of a request to frames: JSON, PNG, JPEG or .npy; nothing in it runs, or grows beyond its limit."""

from __future__ import annotations

import base64
import binascii
import contextlib
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from referee.episodes.episode import EpisodeError
from referee.episodes.formats.frames import decode_picture, naming
from referee.errors import RefereeError
from referee.models.contract import check_shape, select_views
from referee.models.spec import ModelSpec
from referee.reading.npy_header import read_header

TYPES = ("application/json", "application/x-npy", "image/png", "image/jpeg")
MAX_FRAMES = 256
"""In one request, and in one pass through the model."""
MAX_PIXELS = 32 << 20
"""Of all pictures in one request together, before they are decoded: a small file can hold a large picture."""


class Refused(RefereeError):
    """A request that is not answered with scores, and the HTTP status that says so."""

    def __init__(self, status: int, reason: str, **headers: str) -> None:
        super().__init__(reason)
        self.status, self.headers = status, headers


def read_frames(body: bytearray, content_type: str, spec: ModelSpec) -> np.ndarray:
    """Frames uint8[n,V,H,W,3] for a model, or uint8[n,H,W,3] where it has one camera."""
    if content_type == "application/json":
        frames = _from_json(body, spec)
    elif content_type == "application/x-npy":
        frames = _from_npy(body)
    elif len(spec.cameras) > 1:
        raise Refused(
            415,
            f"a picture alone is not enough: the model looks at {', '.join(spec.cameras)}; send application/json "
            "with one picture each, or application/x-npy",
        )
    else:
        frames = _pictures({spec.cameras[0]: [bytes(body)]})[spec.cameras[0]]
    _check_count(len(frames))
    check_shape(frames, spec)
    return frames


def _from_json(body: bytearray, spec: ModelSpec) -> np.ndarray:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is no JSON: {error}") from error
    images = value.get("images") if isinstance(value, dict) else None
    if not isinstance(images, dict) or set(value) != {"images"}:
        raise Refused(422, 'the body must be {"images": {camera: base64 of a PNG or JPEG, or a list of them}}')
    for camera in images:
        if camera not in spec.cameras:
            raise Refused(422, f"the model does not look at camera {camera[:80]!r}, but at {', '.join(spec.cameras)}")
    coded = {camera: given if isinstance(given, list) else [given] for camera, given in images.items()}
    counts = {camera: len(given) for camera, given in coded.items()}
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{count} of {camera}" for camera, count in counts.items())
        raise Refused(422, f"every frame needs a picture of each camera, but there are {said}")
    _check_count(min(counts.values(), default=0))
    data = {
        camera: [_unbase64(text, f"images.{camera}[{place}]") for place, text in enumerate(given)]
        for camera, given in coded.items()
    }
    return np.asarray(select_views(_pictures(data), spec.cameras))


def _unbase64(text: Any, where: str) -> bytes:
    if not isinstance(text, str):
        raise Refused(422, f"{where} is no text, but base64 of a PNG or JPEG is needed")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refused(400, f"{where} is no base64: {error}") from error


def _pictures(data: Mapping[str, Sequence[bytes]]) -> dict[str, np.ndarray]:
    """{camera: uint8[n,H,W,3]}; how large they are is asked before any is decoded."""
    pixels = sum(_pixels(each, camera, place) for camera in data for place, each in enumerate(data[camera]))
    if pixels > MAX_PIXELS:
        raise Refused(
            413, f"the pictures have {pixels:,} pixels in all, more than {MAX_PIXELS:,}: send fewer or smaller"
        )
    return {camera: _decoded(given, camera) for camera, given in data.items()}


def _pixels(data: bytes, camera: str, place: int) -> int:
    with _reading(camera, place), Image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as image:
        return image.width * image.height


def _decoded(data: Sequence[bytes], camera: str) -> np.ndarray:
    found: list[np.ndarray] = []
    for place, each in enumerate(data):
        with _reading(camera, place):
            found.append(decode_picture(each))
        if found[-1].shape != found[0].shape:
            raise Refused(422, f"the pictures of {camera} differ in size: send those of one size together")
    return np.stack(found)


@contextlib.contextmanager
def _reading(camera: str, place: int) -> Iterator[None]:
    """Turns what a library makes of a broken picture into one line that names it."""
    name = f"images.{camera}[{place}]"
    try:
        with naming(Path(name)):
            yield
    except RefereeError as error:
        cause = error.__cause__
        if isinstance(cause, Image.DecompressionBombError):
            raise Refused(413, f"{name} has too many pixels") from error
        broken = isinstance(cause, UnidentifiedImageError)
        raise Refused(400, f"{name} is no PNG or JPEG" if broken else str(error)) from error


def _from_npy(body: bytearray) -> np.ndarray:
    try:
        dtype, shape, fortran, start = read_header(memoryview(body))
    except EpisodeError as error:
        raise Refused(400, f"the body is no .npy file: it {error}") from error
    if dtype != np.uint8 or fortran:
        raise Refused(
            422, f"the array holds {'Fortran-ordered ' if fortran else ''}{dtype}, but uint8 in C order is needed"
        )
    if not all(side > 0 for side in shape) or math.prod(shape) != len(body) - start:
        raise Refused(400, f"the array should hold {list(shape)}, but {len(body) - start} bytes follow its header")
    return np.frombuffer(body, np.uint8, offset=start).reshape(shape)


def _check_count(count: int) -> None:
    if count == 0:
        raise Refused(422, "there is no frame in the request")
    if count > MAX_FRAMES:
        raise Refused(413, f"{count} frames are too many for one request: send at most {MAX_FRAMES} at once")
