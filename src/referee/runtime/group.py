"""Groups of workers: a call on the group is a call on every rank, in this process, in others, or under Ray.

Workers are plain classes. `WorkerGroup` says how one is made; `launch` makes one for each rank of a placement.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from referee.errors import TimedOut
from referee.runtime.placement import Rank

if TYPE_CHECKING:
    from referee.runtime.cluster import Cluster


@dataclass(frozen=True)
class Fallback:
    """What may be done when a worker's process dies; it is made again in any case, `cluster.max_restarts` times.

    retry: methods whose call may be repeated, because asking twice does no harm. Any other call that was under way
        ends in WorkerDied.
    save, restore: methods that give and take the state which `Group.keep` keeps; a worker that is made again gets it.
    """

    retry: Collection[str] = ()
    save: str = "save_state"
    restore: str = "restore_state"


@dataclass(frozen=True)
class Shared:
    """A value that is handed on without being copied: the value itself, or Ray's reference to it.

    As an argument of a call it arrives as the value; arrays are read-only there.
    """

    held: Any
    fetch: Callable[[Any], Any]

    def get(self) -> Any:
        """The value, here."""
        return self.fetch(self.held)


class Latest:
    """A value of which only the newest counts, such as the weights of a policy that learns.

    As an argument of a call it arrives as the value: the newest when the call is made, or when a process of this
    machine begins with it.
    """

    def __init__(self, send: Callable[[Any], Any], value: Any) -> None:
        self._send = send
        self.set(value)

    def set(self, value: Any) -> None:
        """From now on, this is it."""
        self.held = self._send(value)


NOTHING_TWICE = Fallback()


class WorkerGroup:
    """How to make the workers of a group: `make(rank, *args, **kwargs)`, called where the worker will live.

    make: a class whose first argument is its Rank, or a function that returns a worker.
    """

    def __init__(self, make: Callable[..., Any], *args: Any, fallback: Fallback = NOTHING_TWICE, **kwargs: Any) -> None:
        self.make = make
        self.args = args
        self.kwargs = kwargs
        self.fallback = fallback

    def launch(self, cluster: Cluster, placement: str | Sequence[Rank], name: str | None = None) -> Group:
        """Make the workers, and wait until all are there.

        placement: a component of the cluster's plan, or ranks.
        name: of the group, in messages; the component's by default.
        """
        ranks = tuple(cluster.plan[placement]) if isinstance(placement, str) else tuple(placement)
        name = name or ranks[0].component
        group: Group
        if cluster.remote:
            from referee.runtime.ray_group import RayGroup

            group = RayGroup(self, cluster, ranks, name)
        elif cluster.config.backend == "process":
            from referee.runtime.process_group import ProcessGroup

            group = ProcessGroup(self, cluster, ranks, name)
        else:
            group = LocalGroup(self, ranks, name)
        cluster.on_close(group.close)
        return group


class Call(ABC):
    """A call on some ranks, under way or done."""

    @abstractmethod
    def wait(self, timeout: float | None = None) -> list[Any]:
        """The results in the order of the ranks; the first error of a worker is raised."""

    @abstractmethod
    def shared(self, timeout: float | None = None) -> list[Shared]:
        """The same by reference, once all are done: they stay where they are until somebody looks at them."""

    @abstractmethod
    def done(self, timeout: float = 0.0) -> bool:
        """Whether `wait` would return at once; so many seconds are given to it first, at most."""


class Group(ABC):
    """The workers of a launched group. `group.score(x)` is `group.call("score", x)`: a Call on every rank.

    A method of the worker that has the name of one of the group's own (as `close`) is reached by `call`.
    """

    def __init__(self, ranks: Sequence[Rank], name: str) -> None:
        self.ranks = tuple(ranks)
        self.name = name

    def __len__(self) -> int:
        return len(self.ranks)

    def __getattr__(self, method: str) -> Callable[..., Call]:
        if method.startswith("_"):
            raise AttributeError(method)
        return lambda *args, **kwargs: self.call(method, *args, **kwargs)

    def on(self, *ranks: int) -> Group:
        """The same group, of which only these ranks are called."""
        chosen = copy.copy(self)
        chosen.ranks = tuple(self.ranks[rank] for rank in ranks)
        return chosen

    @abstractmethod
    def call(self, method: str, *args: Any, **kwargs: Any) -> Call:
        """Call a method on every rank; a Shared argument arrives as its value."""

    @abstractmethod
    def spawn(self, method: str, *args: Any, **kwargs: Any) -> Call:
        """The same for what goes on for long: in this process, each rank has a thread for it."""

    @abstractmethod
    def share(self, value: Any) -> Shared:
        """Put a value where every rank can read it, once."""

    @abstractmethod
    def latest(self, value: Any) -> Latest:
        """The same for a value that changes again and again."""

    @abstractmethod
    def keep(self) -> None:
        """Save the state of every rank, for the case that one has to be made again."""

    @abstractmethod
    def close(self) -> None:
        """Let each worker close what it has open (its `close`, where there is one), and end it."""


class LocalGroup(Group):
    """Workers in this process. A call is a plain call, made at once; what it raises goes through as it is."""

    def __init__(self, how: WorkerGroup, ranks: Sequence[Rank], name: str) -> None:
        super().__init__(ranks, name)
        args, kwargs = unwrapped(how.args, how.kwargs)
        self._workers = {rank: how.make(rank, *args, **kwargs) for rank in ranks}

    def call(self, method: str, *args: Any, **kwargs: Any) -> Call:
        """See Group."""
        args, kwargs = unwrapped(args, kwargs)
        made = []
        for rank in self.ranks:
            future: Future[Any] = Future()
            future.set_result(getattr(self._workers[rank], method)(*args, **kwargs))
            made.append(future)
        return LocalCall(made, f"{self.name}.{method}")

    def spawn(self, method: str, *args: Any, **kwargs: Any) -> Call:
        """See Group."""
        args, kwargs = unwrapped(args, kwargs)
        made: list[Future[Any]] = []
        for rank in self.ranks:
            made.append(Future())
            work = (made[-1], getattr(self._workers[rank], method), args, kwargs)
            threading.Thread(target=_run, args=work, name=f"{rank}", daemon=True).start()
        return LocalCall(made, f"{self.name}.{method}")

    def share(self, value: Any) -> Shared:
        """See Group."""
        return Shared(value, _itself)

    def latest(self, value: Any) -> Latest:
        """See Group."""
        return Latest(_itself, value)

    def keep(self) -> None:
        """See Group; a worker in this process dies with it."""

    def close(self) -> None:
        """See Group."""
        with contextlib.ExitStack() as stack:
            for worker in self._workers.values():
                if hasattr(worker, "close"):
                    stack.callback(worker.close)
        self._workers.clear()


class LocalCall(Call):
    """A call in this process."""

    def __init__(self, futures: Sequence[Future[Any]], what: str) -> None:
        self._futures = futures
        self._what = what

    def wait(self, timeout: float | None = None) -> list[Any]:
        """See Call."""
        try:
            return [future.result(timeout) for future in self._futures]
        except TimeoutError as error:
            if all(future.done() for future in self._futures):
                raise  # a worker's own
            raise TimedOut(f"{self._what} has not answered within {timeout:g} s") from error

    def shared(self, timeout: float | None = None) -> list[Shared]:
        """See Call."""
        return [Shared(value, _itself) for value in self.wait(timeout)]

    def done(self, timeout: float = 0.0) -> bool:
        """See Call."""
        return not wait(self._futures, timeout).not_done


def _run(future: Future[Any], method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    try:
        future.set_result(method(*args, **kwargs))
    except BaseException as error:
        future.set_exception(error)


def _itself(value: Any) -> Any:
    return value


def unwrapped(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with what each Shared or Latest holds in its place."""
    return (
        tuple(each.held if isinstance(each, Shared | Latest) else each for each in args),
        {name: each.held if isinstance(each, Shared | Latest) else each for name, each in kwargs.items()},
    )
