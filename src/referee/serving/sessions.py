"""The gate over time of clients who send frame after frame: who they are, and what was said of their last frames."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict

import numpy as np

from referee.metrics.gate import check_gate, gate
from referee.serving.bodies import Refused

NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Sessions:
    """As many gates as there are clients, up to a limit; then the one that was silent longest is forgotten."""

    def __init__(self, k: int, n: int, limit: int = 1024) -> None:
        check_gate(k, n)
        self._k, self._n, self._limit = k, n, limit
        self._recent: OrderedDict[str, np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._recent)

    def gate(self, name: str, success: np.ndarray, *, start: bool = False) -> np.ndarray:
        """bool[m]: whether the gate fires at each of these frames, which follow those sent before.

        start: an episode begins with the first of them.
        """
        nothing = np.zeros(0, bool)
        with self._lock:
            before = self._recent.pop(name, nothing)
            before = nothing if start else before
            whole = np.concatenate([before, success])
            self._recent[name] = whole[len(whole) - min(len(whole), self._n - 1) :]
            if len(self._recent) > self._limit:
                self._recent.popitem(last=False)
        return gate(whole, self._k, self._n)[len(before) :]


def check_name(name: str) -> str:
    """The name, if it can be one."""
    if not NAME.fullmatch(name):
        raise Refused(422, "session must be 1 to 64 of the characters A-Z a-z 0-9 . _ -")
    return name
