"""Workers in processes of this machine. A process answers its calls in order; one that dies is started again."""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
import pickle
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import cloudpickle  # type: ignore[import-untyped]

from referee.errors import TimedOut, WorkerDied
from referee.processes import ignore_signals, main_left_out
from referee.runtime.failure import Failure
from referee.runtime.group import Call, Group, Latest, Shared, WorkerGroup, unwrapped
from referee.runtime.placement import Rank, variables_of

if TYPE_CHECKING:
    from referee.runtime.cluster import Cluster

_log = logging.getLogger(__name__)
CLOSING = 20.0
"""Seconds that workers have to finish what they do and to close what they have open."""
SETUP, CALL, LATEST, CLOSE = "setup", "call", "latest", "close"


@dataclass(frozen=True)
class Pickled:
    """A value as bytes; as an argument of a call it arrives as the value."""

    content: bytes

    @staticmethod
    def of(value: Any) -> Pickled:
        """Of a value. What is defined in the program that was started goes along."""
        return value if isinstance(value, Pickled) else Pickled(cloudpickle.dumps(value))

    def value(self) -> Any:
        """A copy of it."""
        return pickle.loads(self.content)


@dataclass(frozen=True)
class LatestOf:
    """Stands for the newest value of a `Latest` in the arguments of a call."""

    number: int


class ProcessGroup(Group):
    """Workers in processes of their own."""

    def __init__(self, how: WorkerGroup, cluster: Cluster, ranks: Sequence[Rank], name: str) -> None:
        super().__init__(ranks, name)
        self._fallback = how.fallback
        args, kwargs = unwrapped(how.args, how.kwargs)
        self._members: dict[Rank, Member] = {}
        self._numbers = itertools.count()
        try:
            started = []
            for rank in ranks:
                make = Pickled.of((how.make, (rank, *args), kwargs))
                member = Member(rank, f"{name} rank {rank.rank}", how, make, cluster.config.max_restarts)
                started.append(member.start())
                self._members[rank] = member
            for rank, future in zip(ranks, started, strict=True):
                future.result().value(rank, name)
        except BaseException:
            self.close()
            raise

    def call(self, method: str, *args: Any, **kwargs: Any) -> Call:
        """See Group."""
        packed = Pickled.of(unwrapped(args, kwargs))
        return ProcessCall(self.name, method, {rank: self._members[rank].ask(method, packed) for rank in self.ranks})

    def spawn(self, method: str, *args: Any, **kwargs: Any) -> Call:
        """See Group."""
        return self.call(method, *args, **kwargs)

    def share(self, value: Any) -> Shared:
        """See Group."""
        return Shared(Pickled.of(value), Pickled.value)

    def latest(self, value: Any) -> Latest:
        """See Group; workers get it when they begin with a call, not when the call is made."""
        number = LatestOf(next(self._numbers))

        def send(value: Any) -> Any:
            packed = Pickled.of(value)
            for member in self._members.values():
                member.update(number, packed)
            return number

        return Latest(send, value)

    def keep(self) -> None:
        """See Group."""
        states = self.call(self._fallback.save).shared()
        for rank, state in zip(self.ranks, states, strict=True):
            self._members[rank].state = state.held

    def close(self) -> None:
        """See Group."""
        for member in self._members.values():
            member.end()
        stop = time.monotonic() + CLOSING
        for member in self._members.values():
            member.join(max(0.0, stop - time.monotonic()))
        self._members.clear()


@dataclass(frozen=True)
class Answer:
    """What a worker answers: an error, or the result as bytes."""

    failure: Failure | None
    result: Pickled | None = None

    def value(self, rank: Rank, name: str) -> Any:
        """The result here; the error is raised."""
        if self.failure is not None:
            self.failure.raise_at(rank, name)
        assert self.result is not None
        return self.result


@dataclass(frozen=True)
class Pending:
    """A call that was not answered yet."""

    future: Future[Answer]
    method: str
    args: Pickled


class Member:
    """One rank: its process, and all that is needed to start that again."""

    def __init__(self, rank: Rank, name: str, how: WorkerGroup, make: Pickled, max_restarts: int) -> None:
        self.rank, self.name = rank, name
        self.state: Pickled | None = None
        """What `Group.keep` kept."""
        self._fallback, self._make, self._max_restarts = how.fallback, make, max_restarts
        self._lock = threading.RLock()
        self._numbers = itertools.count()
        self._open: dict[int, Pending] = {}
        self._latest: dict[LatestOf, Pickled] = {}
        self._restarts = 0
        self._closing = False
        self._why_dead: WorkerDied | None = None

    def start(self) -> Future[Answer]:
        """Start the process; answered when the worker is there."""
        context = multiprocessing.get_context("spawn")
        self._link, theirs = context.Pipe()
        self._sending = threading.Lock()
        # Not a daemon: environments start processes of their own.
        self._process = context.Process(target=serve, args=(theirs, variables_of(self.rank)), name=self.name)
        with main_left_out():
            self._process.start()
        theirs.close()
        threading.Thread(
            target=self._listen, args=(self._link, self._process), name=f"{self.name} answers", daemon=True
        ).start()
        with self._lock:
            for number, value in self._latest.items():
                self._send(LATEST, number, value)
            return self._ask(SETUP, "start", self._make)

    def ask(self, method: str, args: Pickled) -> Future[Answer]:
        """Call a method of the worker."""
        with self._lock:
            return self._ask(CALL, method, args)

    def _ask(self, kind: str, method: str, args: Pickled, future: Future[Answer] | None = None) -> Future[Answer]:
        future = Future() if future is None else future
        if self._why_dead is not None:
            future.set_exception(self._why_dead)
            return future
        number = next(self._numbers)
        self._open[number] = Pending(future, method, args)
        self._send(kind, (number, method), args)
        return future

    def update(self, number: LatestOf, value: Pickled) -> None:
        """Let calls that begin from now on have this value."""
        with self._lock:
            self._latest[number] = value
            self._send(LATEST, number, value)

    def _send(self, kind: str, head: Any, body: Pickled) -> None:
        try:
            self._link.send((kind, head))
            self._link.send_bytes(body.content)
        except OSError:  # it has died: `_listen` hears that as well, and asks again
            pass

    def _listen(self, link: Connection, process: Any) -> None:
        """The thread that takes the answers of one process, until it has ended."""
        while True:
            try:
                number, failure = link.recv()
                result = Pickled(link.recv_bytes())
            except (EOFError, OSError):
                break
            with self._lock:
                pending = self._open.pop(number, None)
            if pending is not None:
                pending.future.set_result(Answer(failure, result))
        process.join()
        with self._lock:
            self._died(f"exit code {process.exitcode}")

    def _died(self, how: str) -> None:
        """Start the process again, with the state that was kept and the calls that may be repeated."""
        lost, self._open = list(self._open.values()), {}
        again = [each for each in lost if each.method in self._fallback.retry]
        if self._closing or not self._started_once(lost):
            self._give_up(lost, f"{self.name} died{'' if self._closing else ' while it was made'} ({how})")
            return
        if self._restarts >= self._max_restarts:
            during = lost[0].method if lost else "no call"
            self._give_up(
                lost, f"{self.name} died during {during} ({how}), and was made again {self._restarts} times before: "
                "see its log, or raise cluster.max_restarts",
            )  # fmt: skip
            return
        self._restarts += 1
        _log.warning("%s died (%s): made again, %d of %d", self.name, how, self._restarts, self._max_restarts)
        for each in lost:
            if each not in again:
                each.future.set_exception(
                    WorkerDied(
                        f"{self.name} died during {each.method} ({how}), which must not be repeated; it was made "
                        "again: call it anew from a state you know, or name the method in Fallback.retry"
                    )
                )
        self.start()
        if self.state is not None:
            self._ask(SETUP, self._fallback.restore, Pickled.of(((self.state,), {})))
        for each in again:
            self._ask(CALL, each.method, each.args, each.future)

    @staticmethod
    def _started_once(lost: Sequence[Pending]) -> bool:
        """Whether the worker has been there: one that dies while it is made would do so again."""
        return not any(each.method == "start" for each in lost)

    def _give_up(self, lost: Sequence[Pending], why: str) -> None:
        self._why_dead = WorkerDied(why)
        for each in lost:
            each.future.set_exception(self._why_dead)

    def end(self) -> None:
        """Let the process end by itself, after the call that it is in."""
        with self._lock:
            self._closing = True
            self._send(CLOSE, None, Pickled(b""))

    def join(self, seconds: float) -> None:
        """Wait until it has ended; after so many seconds it is killed."""
        self._process.join(seconds)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._link.close()


class ProcessCall(Call):
    """A call on some processes."""

    def __init__(self, group: str, method: str, futures: Mapping[Rank, Future[Answer]]) -> None:
        self._group, self._method, self._futures = group, method, futures

    def _results(self, timeout: float | None) -> list[Pickled]:
        end = None if timeout is None else time.monotonic() + timeout
        results = []
        for rank, future in self._futures.items():
            try:
                answer = future.result(None if end is None else max(0.0, end - time.monotonic()))
            except FutureTimeout as error:
                who = f"{self._group} rank {rank.rank}"
                raise TimedOut(f"{who} has not answered {self._method} within {timeout:g} s") from error
            results.append(answer.value(rank, self._group))
        return results

    def wait(self, timeout: float | None = None) -> list[Any]:
        """See Call."""
        return [result.value() for result in self._results(timeout)]

    def shared(self, timeout: float | None = None) -> list[Shared]:
        """See Call."""
        return [Shared(result, Pickled.value) for result in self._results(timeout)]

    def done(self, timeout: float = 0.0) -> bool:
        """See Call."""
        return not wait(self._futures.values(), timeout).not_done


# --- in the process of a worker ---


def serve(link: Connection, variables: Mapping[str, str]) -> None:
    """The process: make the worker, and answer calls until told to stop or until nobody is there to ask."""
    os.environ.update(variables)
    ignore_signals()
    mailbox = Mailbox(link)
    worker: Any = None
    broken: Failure | None = None
    while (message := mailbox.next()) is not None:
        kind, (number, method), packed = message
        failure, answer = broken, Pickled(b"")
        if broken is None:
            try:
                if kind == SETUP and method == "start":
                    make, args, kwargs = packed.value()
                    worker = make(*args, **kwargs)
                else:
                    args, kwargs = packed.value()
                    arrived = {name: mailbox.arrived(each) for name, each in kwargs.items()}
                    answer = Pickled.of(getattr(worker, method)(*map(mailbox.arrived, args), **arrived))
            except Exception as error:
                failure = Failure.of(error)
                if kind == SETUP:
                    broken = failure
        mailbox.answer(number, failure, answer)
        if kind == SETUP:
            mailbox.flush()  # whoever asks knows that the worker is there, even if its first call ends it
    try:
        if hasattr(worker, "close"):
            worker.close()
    finally:
        mailbox.close()


class Mailbox:
    """The worker's end of the line: threads take what comes in and send what goes out, so the worker never waits."""

    def __init__(self, link: Connection) -> None:
        self._link = link
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._answers: queue.Queue[Any] = queue.Queue()
        self._latest: dict[LatestOf, Pickled] = {}
        self._over = False
        threading.Thread(target=self._receive, daemon=True).start()
        self._sender = threading.Thread(target=self._send, daemon=True)
        self._sender.start()

    def _receive(self) -> None:
        while not self._over:
            try:
                kind, head = self._link.recv()
                body = Pickled(self._link.recv_bytes())
            except (EOFError, OSError):  # whoever asks is gone
                kind, head, body = CLOSE, None, Pickled(b"")
            if kind == LATEST:
                self._latest[head] = body
                continue
            self._over |= kind == CLOSE
            self._calls.put((kind, head, body))

    def _send(self) -> None:
        while (answer := self._answers.get()) is not None:
            number, failure, result = answer
            try:
                self._link.send((number, failure))
                self._link.send_bytes(result.content)
            except OSError:
                pass  # nobody is there any more, which `_receive` hears as well
            self._answers.task_done()

    def flush(self) -> None:
        """Wait until all answers have gone out."""
        self._answers.join()

    def next(self) -> tuple[str, Any, Pickled] | None:
        """The next call; None at the end, whatever is waiting."""
        kind, head, body = self._calls.get()
        return None if self._over or kind == CLOSE else (kind, head, body)

    def arrived(self, argument: Any) -> Any:
        """An argument as the worker gets it."""
        if isinstance(argument, LatestOf):
            argument = self._latest[argument]
        return argument.value() if isinstance(argument, Pickled) else argument

    def answer(self, number: int, failure: Failure | None, result: Pickled) -> None:
        """Send an answer on its way."""
        self._answers.put((number, failure, result))

    def close(self) -> None:
        """Once all answers have gone out."""
        self._answers.put(None)
        self._sender.join()
