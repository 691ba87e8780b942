"""The gate over time of clients who send frame after frame: who they are, and what was said of their last frames."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict

import numpy as np

from referee.rewards import Gate, rules
from referee.serving.bodies import Refused

NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Sessions:
    """As many gates as there are clients, up to a limit; then the one that was silent longest is forgotten."""

    def __init__(self, k: int, n: int, limit: int = 1024) -> None:
        self._k, self._n, self._limit = k, n, limit
        self._gates: OrderedDict[str, Gate] = OrderedDict()
        self._lock = threading.Lock()
        Gate(1, k, n)  # refused now rather than at the first frame

    def __len__(self) -> int:
        return len(self._gates)

    def gate(
        self, name: str, success: np.ndarray, *, start: bool = False, stalled: np.ndarray | None = None
    ) -> np.ndarray:
        """bool[m]: whether the gate fires at each of these frames, which follow those sent before.

        start: an episode begins with the first of them. stalled: bool[m], where an arm stalled.
        """
        began = np.arange(len(success)) == 0 if start else np.zeros(len(success), bool)
        with self._lock:
            gate = self._gates.pop(name, None) or Gate(1, self._k, self._n)
            self._gates[name] = gate
            if len(self._gates) > self._limit:
                self._gates.popitem(last=False)
            columns = success[:, None], began[:, None], gate, None if stalled is None else stalled[:, None]
            return rules.gated(*columns)[:, 0]


def check_name(name: str) -> str:
    """The name, if it can be one."""
    if not NAME.fullmatch(name):
        raise Refused(422, "session must be 1 to 64 of the characters A-Z a-z 0-9 . _ -")
    return name
