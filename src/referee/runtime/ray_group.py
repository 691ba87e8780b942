"""The Ray side of groups: actors on their planned nodes, made again when their process dies."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from referee.errors import ClusterError, TimedOut, WorkerDied
from referee.runtime.engine import pinned, ray
from referee.runtime.failure import Failure
from referee.runtime.group import Call, Group, Latest, Shared, WorkerGroup, unwrapped
from referee.runtime.placement import VISIBLE, Rank, device

if TYPE_CHECKING:
    from referee.runtime.cluster import Cluster

_log = logging.getLogger(__name__)
CLOSING = 5.0
"""Seconds that workers have to close what they have open."""
HEARTBEAT = 5.0
"""Seconds between looks at the head, while an answer is waited for."""


class NodeGone(WorkerDied):
    """The planned node of a worker is not there any more."""


class Shell:
    """The Ray actor around a worker. Each answer is (what went wrong, the result): only the first is always fetched."""

    def start(self, rank: Rank, make: Any, *args: Any, **kwargs: Any) -> tuple[Failure | None, Any]:
        """Make the worker; it sees no other accelerator than its own."""
        if rank.accelerator is not None:
            os.environ[VISIBLE] = device(rank.accelerator, os.environ.get(VISIBLE))
        try:
            self._worker = make(rank, *args, **kwargs)
        except Exception as error:
            return Failure.of(error), None
        return None, None

    def call(self, method: str, *args: Any, **kwargs: Any) -> tuple[Failure | None, Any]:
        """Call a method of the worker."""
        try:
            return None, getattr(self._worker, method)(*args, **kwargs)
        except Exception as error:
            return Failure.of(error), None

    def close(self) -> str | None:
        """Let the worker close what it has open; what went wrong with that."""
        try:
            if hasattr(self._worker, "close"):
                self._worker.close()
        except Exception:
            return traceback.format_exc()
        return None


@dataclass
class Member:
    """One rank: its present actor, and how often it was made again."""

    rank: Rank
    actor: Any
    restarts: int = 0
    state: Any = None  # a reference to what `keep` kept
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class Pending:
    """A call on one rank, with all that is needed to make it again."""

    member: Member
    actor: Any
    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outcome: Any = None
    value: Any = None


class RayGroup(Group):
    """Workers as Ray actors."""

    def __init__(self, how: WorkerGroup, cluster: Cluster, ranks: Sequence[Rank], name: str) -> None:
        super().__init__(ranks, name)
        self._how = how
        self._args = unwrapped(how.args, how.kwargs)
        self._cluster = cluster
        self._max_restarts = cluster.config.max_restarts
        self._members: dict[Rank, Member] = {}
        try:
            outcomes = {}
            for rank in ranks:
                actor, outcomes[rank] = self._start(rank)
                self._members[rank] = Member(rank, actor)
            for rank in ranks:
                self._check_started(rank, outcomes[rank])
        except BaseException:
            self._kill()
            raise

    def call(self, method: str, *args: Any, **kwargs: Any) -> Call:
        """See Group."""
        args, kwargs = unwrapped(args, kwargs)
        return RayCall(self, [self._submit(self._members[rank], method, args, kwargs) for rank in self.ranks])

    def spawn(self, method: str, *args: Any, **kwargs: Any) -> Call:
        """See Group."""
        return self.call(method, *args, **kwargs)

    def share(self, value: Any) -> Shared:
        """See Group."""
        return Shared(ray().put(value), _fetch)

    def latest(self, value: Any) -> Latest:
        """See Group."""
        return Latest(ray().put, value)

    def keep(self) -> None:
        """See Group."""
        # Fetched and put again, because what a worker returned may be lost with its node.
        states = self.call(self._how.fallback.save).wait()
        for rank, state in zip(self.ranks, states, strict=True):
            self._members[rank].state = ray().put(state)

    def close(self) -> None:
        """See Group."""
        end = time.monotonic() + CLOSING
        asked = [(member, member.actor.close.remote()) for member in self._members.values()]
        for member, answer in asked:
            with contextlib.suppress(ray().exceptions.RayError):  # it is dead, or too busy to answer
                trace = ray().get(answer, timeout=max(0.0, end - time.monotonic()))
                if trace:
                    _log.warning("%s did not close well:\n%s", self._name(member.rank), trace)
        self._kill()
        self._members.clear()

    def _kill(self) -> None:
        for member in self._members.values():
            ray().kill(member.actor)

    # --- making, and making again ---

    def _start(self, rank: Rank) -> tuple[Any, Any]:
        """A new actor for a rank, and what it answers when its worker is there."""
        variables = dict(rank.env_vars)
        options: dict[str, Any] = {
            "num_cpus": 0,  # the plan says what goes where, not Ray's counting of cores
            "max_restarts": 0,
            "scheduling_strategy": pinned(self._cluster.nodes[rank.node].id),
            "runtime_env": {"env_vars": variables} if variables else None,
        }
        actor = ray().remote(Shell).options(**options).remote()
        args, kwargs = self._args
        outcome, _ = actor.start.options(num_returns=2).remote(rank, self._how.make, *args, **kwargs)
        return actor, outcome

    def _check_started(self, rank: Rank, outcome: Any) -> None:
        """Wait until a worker is there, or has its state again."""
        errors = ray().exceptions
        try:
            failure = self._answer(outcome, None)
        except errors.ActorUnschedulableError as error:
            raise NodeGone(f"{self._name(rank)} cannot be made, the node is gone: start Ray there again") from error
        except errors.RayActorError as error:
            raise WorkerDied(f"{self._name(rank)} died while it was made ({_reason(error)})") from error
        except errors.RayTaskError as error:
            raise self._unreadable(rank, error) from error
        if failure is not None:
            failure.raise_at(rank, self.name)

    def revive(self, pending: Pending, error: Exception) -> None:
        """Make the worker of a call again, unless somebody else has done so since."""
        self._cluster.check_head()
        member = pending.member
        with member.lock:
            while member.actor is pending.actor:
                ray().kill(pending.actor)
                if member.restarts >= self._max_restarts:
                    raise WorkerDied(
                        f"{self._name(member.rank)} died during {pending.method} ({_reason(error)}), and was made "
                        f"again {member.restarts} times before: see its log, or raise cluster.max_restarts"
                    ) from error
                member.restarts += 1
                _log.warning("%s died (%s): made again, %d of %d", self._name(member.rank), _reason(error),
                             member.restarts, self._max_restarts)  # fmt: skip
                try:
                    member.actor = self._again(member)  # not before it has its state: others may call it from now on
                except NodeGone:
                    raise
                except WorkerDied as again:
                    error = again

    def _again(self, member: Member) -> Any:
        """A new actor in the place of a dead one, with the state that was kept."""
        actor, outcome = self._start(member.rank)
        try:
            self._check_started(member.rank, outcome)
            if member.state is not None:
                restore = self._how.fallback.restore
                outcome, _ = actor.call.options(num_returns=2).remote(restore, member.state)
                self._check_started(member.rank, outcome)
        except BaseException:
            ray().kill(actor)
            raise
        return actor

    def _name(self, rank: Rank) -> str:
        return f"{self.name} rank {rank.rank} on node {rank.node} ({self._cluster.nodes[rank.node].address})"

    def _unreadable(self, rank: Rank, error: Exception) -> ClusterError:
        """A worker catches what its own code raises; what is left is what could not be read or written on the way."""
        last = str(error).strip().splitlines()[-1]
        return ClusterError(
            f"{self._name(rank)} cannot read what it is sent, or send what it has ({last}): "
            "install the same version of everything on each node, and send what can be pickled"
        )

    # --- calls ---

    def _submit(self, member: Member, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Pending:
        pending = Pending(member, member.actor, method, args, kwargs)
        pending.outcome, pending.value = pending.actor.call.options(num_returns=2).remote(method, *args, **kwargs)
        return pending

    def _answer(self, outcome: Any, end: float | None) -> Failure | None:
        """What a worker answers. Whoever waits for long looks now and then whether the cluster is still there."""
        while True:
            left = _left(end)
            patience = HEARTBEAT if left is None else min(left, HEARTBEAT)
            try:
                failure: Failure | None = ray().get(outcome, timeout=patience)
                return failure
            except ray().exceptions.GetTimeoutError:
                if patience == left:
                    raise
                self._cluster.check_head()

    def settle(self, pending: Pending, end: float | None, timeout: float | None) -> Pending:
        """Wait for a call, and make it again where its worker died and that is safe; its errors are raised.

        end: when to give up, by time.monotonic(); timeout: the seconds that are said to have passed then.
        """
        errors = ray().exceptions
        while True:
            try:
                failure = self._answer(pending.outcome, end)
            except errors.GetTimeoutError as error:
                who = self._name(pending.member.rank)
                raise TimedOut(f"{who} has not answered {pending.method} within {timeout:g} s") from error
            except (errors.RayActorError, errors.ActorUnschedulableError) as error:
                self.revive(pending, error)
                if pending.method not in self._how.fallback.retry:
                    who = self._name(pending.member.rank)
                    raise WorkerDied(
                        f"{who} died during {pending.method} ({_reason(error)}), which must not be repeated; it "
                        "was made again: call it anew from a state you know, or name the method in Fallback.retry"
                    ) from error
                pending = self._submit(pending.member, pending.method, pending.args, pending.kwargs)
                continue
            except errors.RayTaskError as error:
                raise self._unreadable(pending.member.rank, error) from error
            if failure is not None:
                failure.raise_at(pending.member.rank, self.name)
            return pending


class RayCall(Call):
    """A call on Ray actors."""

    def __init__(self, group: RayGroup, pending: list[Pending]) -> None:
        self._group = group
        self._pending = pending

    def _settle(self, timeout: float | None, end: float | None) -> list[Any]:
        for index, each in enumerate(self._pending):
            self._pending[index] = self._group.settle(each, end, timeout)
        return [each.value for each in self._pending]

    def wait(self, timeout: float | None = None) -> list[Any]:
        """See Call."""
        end = _end(timeout)
        values, errors = self._settle(timeout, end), ray().exceptions
        try:
            return list(ray().get(values, timeout=_left(end)))
        except errors.GetTimeoutError as error:
            raise TimedOut(f"{self._group.name}: results are done, but not here within {timeout:g} s") from error
        except errors.ObjectLostError as error:
            raise WorkerDied(f"{self._group.name}: a result was lost with the node that held it") from error

    def shared(self, timeout: float | None = None) -> list[Shared]:
        """See Call."""
        return [Shared(value, _fetch) for value in self._settle(timeout, _end(timeout))]

    def done(self, timeout: float = 0.0) -> bool:
        """See Call."""
        outcomes = [each.outcome for each in self._pending]
        ready, _ = ray().wait(outcomes, num_returns=len(outcomes), timeout=timeout)
        return len(ready) == len(outcomes)


def _end(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout


def _left(end: float | None) -> float | None:
    return None if end is None else max(0.001, end - time.monotonic())


def _fetch(reference: Any) -> Any:
    return ray().get(reference)


def _reason(error: BaseException) -> str:
    """The first line of what Ray says about a death, without its list of all it knows."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".:")
