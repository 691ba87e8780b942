"""Worlds on the CPU: processes that simulate and draw a share of the environments each."""

from __future__ import annotations

import json
import mmap
import socket
import weakref
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, BinaryIO

import numpy as np

from referee.config.maniskill import ManiSkillEnvConfig
from referee.envs.maniskill import nursery
from referee.envs.maniskill.shared import Arrays, Facts
from referee.errors import RefereeError
from referee.processes import cores
from referee.sim.studio import nameless_file

_PATIENCE = 2.0
"""Seconds after which one looks whether a silent worker still lives."""


class Pool:
    """All worlds of a configuration, spread over worker processes; a lost worker is an error at the next call."""

    def __init__(self, config: ManiSkillEnvConfig) -> None:
        count = min(config.num_envs, config.num_workers or cores())
        bounds = [config.num_envs * i // count for i in range(count + 1)]
        shares = [range(bounds[i], bounds[i + 1]) for i in range(count)]
        self._file = nameless_file()
        self._workers = [Worker(config, share, self._file.fileno()) for share in shares]
        try:
            answers = [worker.hear() for worker in self._workers]
            self.facts = Facts(**answers[0]["facts"])
            size = Arrays.size(config, self.facts)
            self._file.truncate(size)
            for worker in self._workers:
                worker.tell({"size": size})
            for worker in self._workers:
                worker.hear()
        except RefereeError:
            self.close()
            raise
        self.arrays = Arrays(config, self.facts, mmap.mmap(self._file.fileno(), size))

    def begin(self, ids: np.ndarray, seeds: np.ndarray, *, keep: bool) -> None:
        """Start those episodes; with `keep`, the last states of the present ones can still be drawn."""
        chosen = dict(zip(ids.tolist(), seeds.tolist(), strict=True))
        self._ask(
            lambda worker: {
                "do": "begin", "seeds": {str(i): chosen[i] for i in worker.share if i in chosen}, "keep": keep,
            }, [i in chosen for i in range(len(self.arrays.states))],
        )  # fmt: skip

    def step(self, *, tell_progress: bool) -> None:
        """One step of all, with the actions that stand in `arrays.actions` at `arrays.elapsed`."""
        self._ask(lambda worker: {"do": "step", "progress": tell_progress})

    def extra_state(self) -> dict[str, np.ndarray]:
        """What a saved state holds beside seeds and actions: nothing."""
        return {}

    def replay(self, seeds: np.ndarray, state: dict[str, np.ndarray], *, tell_progress: bool) -> None:
        """Live the present episodes again, from their seeds and all their actions."""
        self._ask(
            lambda worker: {
                "do": "replay", "seeds": {str(i): int(seeds[i]) for i in worker.share}, "progress": tell_progress,
            }
        )  # fmt: skip

    def look(self, *, tell_progress: bool) -> None:
        """Write states and truth of the present moment."""
        self._ask(lambda worker: {"do": "look", "progress": tell_progress})

    def draw(self, ids: Sequence[int], final: bool, cameras: Sequence[str]) -> np.ndarray:
        """uint8[n,V,S,S,3] of the present or the last states of `ids`, which are no more than there are worlds."""
        rows = list(enumerate(ids))
        wanted = np.zeros(len(self.arrays.states), bool)
        wanted[list(ids)] = True
        self._ask(
            lambda worker: {
                "do": "draw", "rows": [row for row in rows if row[1] in worker.share],
                "final": final, "cameras": list(cameras),
            }, wanted.tolist(),
        )  # fmt: skip
        return self.arrays.images[: len(rows), : len(cameras)].copy()

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.end()
        self._file.close()

    def _ask(self, words: Any, wanted: Sequence[bool] | None = None) -> None:
        """Let all workers that are concerned do something at the same time, and wait for all."""
        asked = [each for each in self._workers if wanted is None or any(wanted[i] for i in each.share)]
        for worker in asked:
            worker.tell(words(worker))
        errors = []
        for worker in asked:
            try:
                worker.hear()
            except RefereeError as error:  # the others have answers, too
                errors.append(error)
        if errors:
            raise errors[0]


class Worker:
    """One process, with its share of the environments."""

    def __init__(self, config: ManiSkillEnvConfig, share: range, memory: int) -> None:
        """memory: number of the open file whose memory all share."""
        self.share = share
        self._complaints = nameless_file()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self.pid = nursery.start_worker(theirs.fileno(), memory, self._complaints.fileno())
        self.end = weakref.finalize(self, _close, self._socket, self._complaints)
        self._heard = b""
        self.tell({"config": asdict(config), "share": [share.start, share.stop]})

    def tell(self, words: dict[str, Any]) -> None:
        """Ask for something."""
        if not self.end.alive:
            raise RefereeError("this ManiSkill environment is closed, or lost a worker: make it again")
        try:
            self._socket.sendall(json.dumps(words).encode() + b"\n")
        except OSError as error:
            raise self._lost() from error

    def hear(self) -> dict[str, Any]:
        """The answer, however long it takes while the worker lives."""
        self._socket.settimeout(_PATIENCE)
        while b"\n" not in self._heard:
            try:
                part = self._socket.recv(65536)
            except TimeoutError:
                continue  # it lives: the socket of a dead one ends
            except OSError:
                part = b""
            if not part:
                raise self._lost()
            self._heard += part
        line, _, self._heard = self._heard.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RefereeError(answer["error"])
        return answer

    def _lost(self) -> RefereeError:
        self._complaints.seek(0)
        lines = self._complaints.read().decode(errors="replace").strip().splitlines()
        said = [line for line in lines if "WARNING: UNSUPPORTED" not in line]
        self.end()
        why = f"; its last words: {said[-1].strip()}" if said else ""
        return RefereeError(
            f"the process of the ManiSkill environments {self.share.start}..{self.share.stop - 1} ended{why}; "
            "start again, or go on from a checkpoint with runner.resume_dir"
        )


def _close(channel: socket.socket, file: BinaryIO) -> None:
    """A worker that hears no more ends."""
    channel.close()
    file.close()
