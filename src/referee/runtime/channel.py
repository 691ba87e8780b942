"""Channels: bounded queues with tags, between threads of this process or between Ray workers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Hashable
from multiprocessing.managers import BaseManager
from typing import Any, Protocol

import numpy as np

from referee.errors import ChannelClosed, ClusterError, TimedOut, WorkerDied
from referee.runtime.engine import pinned, ray

GRACE = 10.0
"""Seconds beyond a time-out that the queue's own process has to say so."""
WAITERS = 1000
"""Calls that may wait in a channel at once."""
SMALL, FEW = 65536, 16
"""Bytes, and entries, of an item that is handed over as it is."""
EMPTY, FULL, CLOSED = "empty", "full", "closed"


class Channel(Protocol):
    """A queue for each tag. Time-outs are in seconds; None waits until there is something, or the channel is closed."""

    def put(self, item: Any, *, tag: Hashable = None, timeout: float | None = None) -> None:
        """Add an item; while `capacity` items of this tag wait, so does the caller."""

    def get(self, *, tag: Hashable = None, timeout: float | None = None) -> Any:
        """The oldest item of this tag. A closed channel still gives what is in it."""

    def close(self) -> None:
        """Wake all who wait, and take nothing more."""


class _Shelf:
    """The items of all tags; who waits, and how, is not its business."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.items: defaultdict[Hashable, deque[Any]] = defaultdict(deque)
        self.closed = False

    def why_not_put(self, tag: Hashable) -> str | None:
        if self.closed:
            return CLOSED
        return FULL if len(self.items.get(tag, ())) >= self.capacity else None

    def why_not_get(self, tag: Hashable) -> str | None:
        if self.items.get(tag):
            return None
        return CLOSED if self.closed else EMPTY

    def put(self, tag: Hashable, item: Any) -> None:
        self.items[tag].append(item)

    def get(self, tag: Hashable) -> Any:
        queue = self.items[tag]
        item = queue.popleft()
        if not queue:
            del self.items[tag]
        return item


def _check(name: str, why: str | None, tag: Hashable, timeout: float | None) -> None:
    """Raise what an answer of the shelf means."""
    which = f"channel {name}" if tag is None else f"channel {name}, tag {tag!r}"
    if why == CLOSED:
        raise ChannelClosed(f"{which} is closed")
    if why == EMPTY:
        raise TimedOut(f"{which}: nothing came within {timeout:g} s")
    if why == FULL:
        raise TimedOut(f"{which}: nobody took anything within {timeout:g} s, and it is full")


class LocalChannel:
    """Between threads; items are handed over as they are."""

    def __init__(self, name: str, capacity: int = 8) -> None:
        self.name = name
        self._shelf = _Shelf(capacity)
        self._changed = threading.Condition()

    def put(self, item: Any, *, tag: Hashable = None, timeout: float | None = None) -> None:
        """See Channel."""
        with self._changed:
            self._changed.wait_for(lambda: self._shelf.why_not_put(tag) != FULL, timeout)
            _check(self.name, self._shelf.why_not_put(tag), tag, timeout)
            self._shelf.put(tag, item)
            self._changed.notify_all()

    def get(self, *, tag: Hashable = None, timeout: float | None = None) -> Any:
        """See Channel."""
        with self._changed:
            self._changed.wait_for(lambda: self._shelf.why_not_get(tag) != EMPTY, timeout)
            _check(self.name, self._shelf.why_not_get(tag), tag, timeout)
            item = self._shelf.get(tag)
            self._changed.notify_all()
            return item

    def close(self) -> None:
        """See Channel."""
        with self._changed:
            self._shelf.closed = True
            self._changed.notify_all()


class ChannelKeeper(BaseManager):
    """A process that keeps channels for others of this machine; items are copied through it."""


ChannelKeeper.register("LocalChannel", LocalChannel, exposed=("put", "get", "close"))


Parcel = tuple[bool, list[Any]]
"""Whether the item itself is inside, and the item, or Ray's reference to it."""


def is_small(item: Any, most: int = SMALL) -> bool:
    """Whether an item is quicker to hand over than to share: numbers, short texts and arrays, a few of them."""
    match item:
        case None | bool() | int() | float() | np.generic():
            return True
        case str() | bytes():
            return len(item) <= most
        case np.ndarray():
            return item.nbytes <= most and not item.dtype.hasobject
        case list() | tuple():
            return len(item) <= FEW and all(is_small(each, most // FEW) for each in item)
        case dict():
            return is_small([*item.keys(), *item.values()], most)
    return False


class _Keeper:
    """The Ray actor behind a channel. What is not small is a reference: the item itself stays where it was made."""

    def __init__(self, capacity: int) -> None:
        self._shelf = _Shelf(capacity)
        self._changed = asyncio.Condition()

    async def put(self, tag: Hashable, parcel: Parcel, timeout: float | None) -> str | None:
        async with self._changed:
            await self._wait(lambda: self._shelf.why_not_put(tag) != FULL, timeout)
            why = self._shelf.why_not_put(tag)
            if why is None:
                self._shelf.put(tag, parcel)
                self._changed.notify_all()
            return why

    async def get(self, tag: Hashable, timeout: float | None) -> tuple[str | None, Parcel]:
        async with self._changed:
            await self._wait(lambda: self._shelf.why_not_get(tag) != EMPTY, timeout)
            why = self._shelf.why_not_get(tag)
            if why is not None:
                return why, (True, [])
            self._changed.notify_all()
            return None, self._shelf.get(tag)

    async def close(self) -> None:
        async with self._changed:
            self._shelf.closed = True
            self._changed.notify_all()

    async def _wait(self, predicate: Callable[[], bool], timeout: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._changed.wait_for(predicate)


class RayChannel:
    """Between Ray workers; it may be handed to them as an argument."""

    def __init__(self, name: str, capacity: int = 8) -> None:
        self.name = name
        here = ray().get_runtime_context().get_node_id()
        options = {"num_cpus": 0, "max_concurrency": WAITERS, "scheduling_strategy": pinned(here)}
        self._keeper = ray().remote(_Keeper).options(**options).remote(capacity)

    def put(self, item: Any, *, tag: Hashable = None, timeout: float | None = None) -> None:
        """See Channel. What is not small is written to shared memory once, and only its reference travels."""
        small = is_small(item)
        parcel: Parcel = (small, [item if small else ray().put(item)])
        why = self._ask(self._keeper.put.remote(tag, parcel, timeout), timeout)
        _check(self.name, why, tag, timeout)

    def get(self, *, tag: Hashable = None, timeout: float | None = None) -> Any:
        """See Channel. Large arrays are read-only: they lie in shared memory.

        An item whose worker has died is given as long as it is still there, and reported as lost from then on.
        """
        why, (small, content) = self._ask(self._keeper.get.remote(tag, timeout), timeout)
        _check(self.name, why, tag, timeout)
        library = ray()
        try:
            return content[0] if small else library.get(content[0])
        except library.exceptions.ObjectLostError as error:
            raise WorkerDied(
                f"channel {self.name}: the worker that put this item died, and the item with it"
            ) from error

    def close(self) -> None:
        """See Channel."""
        self._ask(self._keeper.close.remote(), 0.0)

    def _ask(self, question: Any, timeout: float | None) -> Any:
        library = ray()
        try:
            return library.get(question, timeout=None if timeout is None else timeout + GRACE)
        except library.exceptions.GetTimeoutError as error:
            raise TimedOut(f"channel {self.name}: its process does not answer; is its node still up?") from error
        except library.exceptions.RayActorError as error:
            raise ClusterError(f"channel {self.name}: its process is gone") from error
