"""Cameras as sources of numbered, dated frames: RealSense by serial number, or anything that does the same."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from PIL import Image

from referee.errors import MissingDependency, RefereeError
from referee.robots.clock import Clock

INSTALL = 'pip install "referee-rl[franka]" (pyrealsense2; on Debian and Ubuntu also: apt-get install libusb-1.0-0)'
WIDTH, HEIGHT, RATE = 640, 480, 30
FIRST_FRAME = 5
"""Seconds that a camera has until its first frame."""


class CameraError(RefereeError):
    """A camera gave no frame."""


@dataclass(frozen=True)
class Frame:
    """One picture, and when it was taken."""

    picture: np.ndarray | Callable[[], np.ndarray]
    """uint8[S,S,3], or what draws it when somebody looks."""
    time: float
    """In seconds of the loop's clock."""
    number: int
    """Counts up by the camera; the same number is the same picture."""

    @cached_property
    def image(self) -> np.ndarray:
        """uint8[S,S,3]"""
        return self.picture() if callable(self.picture) else self.picture


class Camera(Protocol):
    """One view."""

    name: str

    def frame(self) -> Frame:
        """The newest picture; raises CameraError where there is none."""

    def close(self) -> None:
        """Let go of the device."""


def square(image: np.ndarray, pixels: int) -> np.ndarray:
    """The middle of a picture uint8[H,W,3], scaled to uint8[pixels,pixels,3]."""
    height, width = image.shape[:2]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    middle = np.ascontiguousarray(image[top : top + side, left : left + side])
    if side == pixels:
        return middle
    return np.asarray(Image.fromarray(middle).resize((pixels, pixels), Image.Resampling.BOX))


class RealSense:
    """A RealSense's colour stream, its middle scaled to `pixels`; `open_realsense` opens one.

    Frames come in through `take`, from the driver's thread, and are dated there: a frame that nobody has replaced
    keeps its time and its number.
    """

    def __init__(self, name: str, pixels: int, clock: Clock) -> None:
        self.name = name
        self._pixels, self._clock = pixels, clock
        self._lock = threading.Lock()
        self._last: Frame | None = None
        self.pipeline: Any = None

    def take(self, found: Any) -> None:
        """What the driver calls with each frame (or set of frames)."""
        if found.is_frameset():
            found = found.as_frameset().get_color_frame()
        image = square(np.asanyarray(found.get_data()), self._pixels)
        frame = Frame(image, self._clock.now(), int(found.get_frame_number()))
        with self._lock:
            self._last = frame

    def frame(self) -> Frame:
        """See Camera."""
        with self._lock:
            last = self._last
        if last is None:
            raise CameraError(f"camera {self.name} has given no frame yet: check its USB 3 cable")
        return last

    def close(self) -> None:
        """See Camera."""
        if self.pipeline is not None:
            self.pipeline.stop()
            self.pipeline = None


def realsense() -> Any:
    """The module, or one line that says how to install it."""
    try:
        import pyrealsense2
    except ImportError as error:
        raise MissingDependency(f"pyrealsense2 cannot be imported ({error}): {INSTALL}") from error
    return pyrealsense2


def connected_serials() -> list[str]:
    """Serial numbers of the RealSense cameras that are plugged in."""
    rs = realsense()
    return [device.get_info(rs.camera_info.serial_number) for device in rs.context().query_devices()]


def open_realsense(name: str, serial: str, pixels: int, clock: Clock) -> RealSense:
    """The camera with that serial number, streaming."""
    rs = realsense()
    found = connected_serials()
    if serial not in found:
        there = f"plugged in are {', '.join(found)}" if found else "none is plugged in"
        raise CameraError(
            f"camera {name} (serial {serial}) is not there, {there}: check its USB 3 cable, and camera_serials"
        )
    camera, wanted, pipeline = RealSense(name, pixels, clock), rs.config(), rs.pipeline()
    wanted.enable_device(serial)
    wanted.enable_stream(rs.stream.color, WIDTH, HEIGHT, rs.format.rgb8, RATE)
    try:
        pipeline.start(wanted, camera.take)
    except RuntimeError as error:
        raise CameraError(
            f"camera {name} (serial {serial}) does not start ({error}): is another program using it?"
        ) from error
    camera.pipeline = pipeline
    for _ in range(FIRST_FRAME * 10):
        try:
            camera.frame()
            return camera
        except CameraError:
            time.sleep(0.1)
    camera.close()
    raise CameraError(f"camera {name} (serial {serial}) streams nothing: plug it into a USB 3 port, or replug it")
