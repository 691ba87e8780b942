"""Pictures and films as arrays, decoded under limits: a small file cannot fill the memory or open another file."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageSequence, UnidentifiedImageError

from referee import files
from referee.episodes.episode import EpisodeError
from referee.optional import require
from referee.reading import naming as reading

MAX_EPISODE_BYTES = 4 << 30
"""What one episode may take in memory."""
MAX_EPISODE_FRAMES = 1_000_000
MAX_PIXELS = 64_000_000
PICTURES = (".png", ".jpg", ".jpeg")
FILMS = (".mp4", ".m4v", ".mov")
GIF = ".gif"
_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """See `reading.naming`; a picture that is too large is a broken file, too."""
    with reading.naming(path):
        try:
            yield
        except Image.DecompressionBombError as error:
            raise ValueError(str(error)) from error


def check_size(frames: int, bytes_per_frame: int) -> None:
    """Refuse an episode that would not fit."""
    if frames > MAX_EPISODE_FRAMES:
        raise EpisodeError(f"{frames} frames are too many for one episode: cut it into shorter ones")
    if frames * bytes_per_frame > MAX_EPISODE_BYTES:
        raise EpisodeError(
            f"{frames} frames of {bytes_per_frame / 1e6:.3g} MB are more than the {MAX_EPISODE_BYTES >> 30} GiB that "
            "an episode may have: cut it into shorter ones, or make the pictures smaller"
        )


def decode_picture(data: bytes | Path) -> np.ndarray:
    """A PNG or JPEG as uint8[H,W,3]."""
    try:
        opened = Image.open(io.BytesIO(data) if isinstance(data, bytes) else data, formats=("PNG", "JPEG"))
    except UnidentifiedImageError as error:
        raise EpisodeError("is no PNG or JPEG picture" if isinstance(data, Path) else "a picture is broken") from error
    with opened as image:
        if image.width * image.height > MAX_PIXELS:
            raise EpisodeError(f"a picture of {image.width}×{image.height} pixels is too large")
        if image.mode not in _MODES:
            raise EpisodeError(f"a picture has the mode {image.mode}, which is no colour picture of 8 bits")
        return np.asarray(image.convert("RGB"))


def encode_picture(frame: np.ndarray) -> bytes:
    """A frame uint8[H,W,3] as PNG, without loss."""
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def stack_views(images: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Per camera uint8[N,H,W,3] as observations: the first is `main_images`, the rest are `extra_view_images`."""
    if not images:
        return {}
    (_, main), *extra = images.items()
    if not extra:
        return {"main_images": main}
    if len({array.shape for _, array in extra}) > 1:
        sizes = ", ".join(f"{name} {array.shape[1]}×{array.shape[2]}" for name, array in images.items())
        raise EpisodeError(f"the views after the first differ in size ({sizes}): choose cameras of one size")
    return {"main_images": main, "extra_view_images": np.stack([array for _, array in extra], axis=1)}


class Film:
    """The frames of an mp4 file, in order. Iterating gives (seconds, uint8[H,W,3]); it can be done once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._av = require("av", extra="lerobot", what="reading mp4 files")
        with naming(path):
            # The format is not guessed: a playlist named .mp4 could make FFmpeg open other files.
            options = {"protocol_whitelist": "file"}
            self._container: Any = self._av.open(f"file:{path}", format="mp4", container_options=options)
            if not self._container.streams.video:
                raise EpisodeError("holds no film")
            self._stream: Any = self._container.streams.video[0]
            if self._stream.codec_context is None:
                raise EpisodeError("is coded in a way that this PyAV cannot decode")
            self._stream.thread_type = "AUTO"
            self.width, self.height = self._stream.width, self._stream.height
            if not 0 < self.width * self.height <= MAX_PIXELS:
                raise EpisodeError(f"its frames have {self.width}×{self.height} pixels")
        self.fps = float(self._stream.average_rate) if self._stream.average_rate else None
        self.count = int(self._stream.frames)
        """How many frames the file says it has; 0 where it does not say."""

    @property
    def bytes_per_frame(self) -> int:
        """Of a decoded frame."""
        return int(self.width * self.height * 3)

    def __iter__(self) -> Iterator[tuple[float, np.ndarray]]:
        with naming(self.path):
            for frame in self._container.decode(self._stream):
                if (frame.width, frame.height) != (self.width, self.height):
                    raise EpisodeError(f"its frames change from {self.width}×{self.height} to another size")
                if frame.is_corrupt or frame.time is None:
                    raise EpisodeError("a frame is broken")
                yield frame.time, frame.to_ndarray(format="rgb24")

    def close(self) -> None:
        """Close the file."""
        self._container.close()


class Gif:
    """The frames of an animated GIF, as `Film` gives those of an mp4 file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with naming(path):
            self._image: Any = Image.open(path, formats=("GIF",))
            self.width, self.height = self._image.size
            if not 0 < self.width * self.height <= MAX_PIXELS:
                raise EpisodeError(f"its frames have {self.width}×{self.height} pixels")
            milliseconds = self._image.info.get("duration", 0)
        self.fps = 1000 / milliseconds if milliseconds else None
        self.count = 0

    @property
    def bytes_per_frame(self) -> int:
        """Of a decoded frame."""
        return int(self.width * self.height * 3)

    def __iter__(self) -> Iterator[tuple[float, np.ndarray]]:
        with naming(self.path):
            for number, frame in enumerate(ImageSequence.Iterator(self._image)):
                yield number / (self.fps or 1.0), np.asarray(frame.convert("RGB"))

    def close(self) -> None:
        """Close the file."""
        self._image.close()


def open_film(path: Path) -> Film | Gif:
    """An mp4 file or a GIF."""
    return Gif(path) if path.suffix.lower() == GIF else Film(path)


class FilmWriter:
    """Encodes frames into one mp4 file (H.264), frame i at i/fps seconds."""

    def __init__(self, path: Path, *, height: int, width: int, fps: float, comment: str = "") -> None:
        self.path, self.height, self.width = path, height, width
        self._av = require("av", extra="lerobot", what="writing mp4 files")
        self._container: Any = self._av.open(f"file:{path}", "w", format="mp4")
        if comment:
            self._container.metadata["comment"] = comment
        rate = Fraction(fps).limit_denominator(1001)
        # A key frame at every second frame, as in LeRobot: any frame is found quickly. No frame refers to a later one.
        options = {"crf": "18", "g": "2", "bf": "0", "preset": "veryfast"}
        self._stream: Any = self._container.add_stream("libx264", rate=rate, options=options)
        self._stream.width, self._stream.height = width, height
        self._stream.pix_fmt = "yuv444p" if width % 2 or height % 2 else "yuv420p"
        self.pix_fmt = str(self._stream.pix_fmt)
        self.frames = self.bytes = 0

    def write(self, frames: np.ndarray) -> None:
        """Append frames uint8[N,H,W,3]."""
        for array in frames:
            frame = self._av.VideoFrame.from_ndarray(np.ascontiguousarray(array), format="rgb24")
            frame.pts = self.frames
            self._mux(self._stream.encode(frame))
            self.frames += 1

    def close(self) -> None:
        """Finish the file."""
        self._mux(self._stream.encode())
        self._container.close()

    def abandon(self) -> None:
        """Let go of a file that nobody wants any more."""
        with contextlib.suppress(OSError, ValueError):
            self._container.close()

    def __enter__(self) -> FilmWriter:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def _mux(self, packets: list[Any]) -> None:
        self.bytes += sum(packet.size for packet in packets)
        self._container.mux(packets)


def save_mp4(path: Path, frames: Sequence[np.ndarray], *, fps: float, comment: str = "") -> None:
    """A film of frames uint8[H,W,3], all of the size of the first: smaller ones are put on white."""
    height, width = (max(frame.shape[axis] for frame in frames) for axis in (0, 1))
    with (
        files.replacing(path, sync=False) as temporary,
        FilmWriter(temporary, height=height, width=width, fps=fps, comment=comment) as film,
    ):
        for frame in frames:
            page = np.full((height, width, 3), 255, np.uint8)
            page[: frame.shape[0], : frame.shape[1]] = frame
            film.write(page[None])
