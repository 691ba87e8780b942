"""Where Referee keeps what it can make again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """`$REFEREE_CACHE`, else `~/.cache/referee`."""
    home = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    return Path(os.environ.get("REFEREE_CACHE", f"{home}/referee")).expanduser()
