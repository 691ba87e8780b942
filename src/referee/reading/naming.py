"""One line about a file that cannot be read, with its name."""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from referee.errors import EpisodeError


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turns what a library makes of a broken file into one line that names it."""
    try:
        yield
    except EpisodeError as error:
        raise error if str(path) in str(error) else EpisodeError(f"{path}: {error}") from error
    except (
        OSError, ValueError, KeyError, TypeError, IndexError, RuntimeError, OverflowError, MemoryError,
        EOFError, SyntaxError, struct.error, zlib.error,
    ) as error:  # fmt: skip
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise EpisodeError(f"{path}: cannot be read ({reason.splitlines()[0]})") from error
