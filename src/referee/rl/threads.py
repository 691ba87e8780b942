"""How many threads learning uses: found out by timing it, since two that wait for each other can be slower than one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

AGAIN = 50
"""Pieces of work after which the slower choice is timed once more: other programs come and go."""


class Threads:
    """One thread or all, whichever does more: on a busy machine the threads of a small step wait for each other.

    Outside `at_work` torch has one thread, since others would only get in the way of the simulation's.
    """

    def __init__(self, wanted: int, *, spare: int = 0) -> None:
        """wanted: so many, always; 0 = find out. spare: cores that are left to others."""
        self.most = wanted or max(1, (os.cpu_count() or 1) - spare)
        self._choices = (self.most,) if wanted or self.most == 1 else (1, self.most)
        self._speeds: dict[int, float] = {}
        self._pieces = 0

    @contextmanager
    def at_work(self, amount: float) -> Iterator[None]:
        """A piece of work, with the faster choice. amount: of work in it, in any unit that stays the same."""
        count = self._choose()
        torch.set_num_threads(count)
        start = time.perf_counter()
        try:
            yield
            if self._pieces and amount:  # the first piece also warms up
                self._speeds[count] = amount / max(time.perf_counter() - start, 1e-9)
            self._pieces += 1
        finally:
            torch.set_num_threads(1)

    @contextmanager
    def all_at_work(self) -> Iterator[None]:
        """Large work, as judging many pictures, which all cores share well."""
        torch.set_num_threads(self.most)
        try:
            yield
        finally:
            torch.set_num_threads(1)

    def _choose(self) -> int:
        untimed = [count for count in self._choices if count not in self._speeds]
        if untimed:
            return untimed[0]
        by_speed = sorted(self._choices, key=self._speeds.__getitem__)
        return by_speed[0] if self._pieces % AGAIN == 0 else by_speed[-1]
