"""Regular expressions with a time limit in any thread: a process of its own matches, and is ended if it is late."""

from __future__ import annotations

import json
import logging
import os
import select
import subprocess
import sys
import threading
import time

SECONDS = 2.0
"""For one text; one that takes longer does not fit."""
_CHILD = """
import json, re, sys
for line in sys.stdin:
    pattern, text = json.loads(line)
    print(int(re.fullmatch(pattern, text, re.DOTALL) is not None), flush=True)
"""
"""Only the standard library, so that it is there at once."""
_log = logging.getLogger(__name__)


class Matcher:
    """Python's own engine cannot be stopped, and lets no other thread run meanwhile; so it works elsewhere."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._made_by = 0

    def fits(self, pattern: str, text: str) -> bool:
        """Whether all of a text fits a pattern, which must be a valid one; False if that takes too long to say."""
        with self._lock:
            child = self._ready()
            assert child.stdin is not None and child.stdout is not None
            child.stdin.write(json.dumps([pattern, text]).encode() + b"\n")
            child.stdin.flush()
            if self._answered(child.stdout.fileno()) and (said := child.stdout.readline()):
                return said == b"1\n"
            child.kill()
            child.wait()
            self._child = None
        _log.warning("the pattern %r had no result in %g s on an answer, which counts as wrong", pattern, self._seconds)
        return False

    def _answered(self, pipe: int) -> bool:
        end = time.monotonic() + self._seconds
        while (left := end - time.monotonic()) > 0:
            if select.select([pipe], [], [], left)[0]:
                return True
        return False

    def _ready(self) -> subprocess.Popen[bytes]:
        """The process; a new one where there is none, and after a fork: one cannot be shared. It ends with its pipe."""
        if self._child is None or self._made_by != os.getpid() or self._child.poll() is not None:
            self._child = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _CHILD],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,  # Ctrl-C is not for it
            )  # fmt: skip
            self._made_by = os.getpid()
        return self._child
