"""Plain workers for the tests of the runtime."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from referee.errors import ChannelClosed
from referee.runtime import Channel, Rank


class Counter:
    """Counts, waits, fails, and hands things back."""

    def __init__(
        self,
        rank: Rank,
        start: int = 0,
        *,
        closed: list[int] | None = None,
        born: str | None = None,
        closing: str | None = None,
    ) -> None:
        self.rank = rank
        self.count = start + rank.rank
        self._closed = closed
        self._closing = closing
        self._note(born)

    def _note(self, path: str | None) -> None:
        if path is not None:
            with Path(path).open("a") as file:
                file.write(f"{self.rank.rank}\n")

    def add(self, amount: int) -> int:
        self.count += amount
        return self.count

    def value(self) -> int:
        return self.count

    def who(self) -> Rank:
        return self.rank

    def pid(self) -> int:
        return os.getpid()

    def node_address(self) -> str:
        """The address of the Ray node that this runs on."""
        import ray

        return str(ray.util.get_node_ip_address())

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    def ping(self, seconds: float = 0.0) -> int:
        time.sleep(seconds)
        return self.rank.rank

    def die(self) -> None:
        os._exit(1)

    def same(self, value: Any) -> Any:
        return value

    def ones(self, size: int) -> np.ndarray:
        return np.ones(size, np.uint8)

    def look(self, array: np.ndarray) -> tuple[int, bool, bool]:
        """(sum, whether it can be written to, whether it lies in the store's shared memory)."""
        address = array.__array_interface__["data"][0]
        maps = Path("/proc/self/maps").read_text().splitlines()
        spans = [line.split()[0].split("-") for line in maps if "plasma" in line or "/dev/shm" in line]
        inside = any(int(low, 16) <= address < int(high, 16) for low, high in spans)
        return int(array.sum()), array.flags.writeable, inside

    def fail(self, error: Exception) -> None:
        raise error

    def take(self, channel: Channel, tag: Any = None) -> list[Any]:
        """All that comes, until the channel is closed."""
        found = []
        while True:
            try:
                found.append(channel.get(tag=tag))
            except ChannelClosed:
                return found

    def give(self, channel: Channel, items: list[Any], tag: Any = None) -> None:
        for item in items:
            channel.put(item, tag=tag, timeout=20)

    def save_state(self) -> int:
        return self.count

    def restore_state(self, count: int) -> None:
        self.count = count

    def close(self) -> None:
        self._note(self._closing)
        if self._closed is not None:
            self._closed.append(self.rank.rank)


def pump(channel: Channel, items: int) -> int:
    """The most items that were under way at once between a quick giver and a slow taker."""
    given, most = 0, 0

    def give() -> None:
        nonlocal given
        for item in range(items):
            given = item + 1
            channel.put(item, timeout=10)

    thread = threading.Thread(target=give)
    thread.start()
    for taken in range(items):
        time.sleep(0.002)
        most = max(most, given - taken)
        assert channel.get(timeout=10) == taken
    thread.join(10)
    return most
