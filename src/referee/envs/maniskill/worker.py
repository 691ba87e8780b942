"""The worker process of a pool: a few worlds that are stepped one after the other, and an easel that draws them.

To import ManiSkill takes seconds, so a nursery process does it once, and workers are forks of it.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, NoReturn

import numpy as np
import torch

from referee.config.maniskill import ManiSkillEnvConfig
from referee.envs.maniskill.shared import Arrays, parse_config
from referee.envs.maniskill.world import Easel, World
from referee.errors import RefereeError
from referee.sim.studio import ORPHAN_CHECK, next_order


class Share:
    """The worlds of one worker, by the number of their environment."""

    def __init__(self, config: ManiSkillEnvConfig, ids: range) -> None:
        self._config = config
        self.worlds = {i: World(config) for i in ids}
        self.arrays: Arrays
        self._seeds = dict.fromkeys(ids, 0)
        self._last: dict[int, tuple[np.ndarray, int]] = {}
        self._easel: Easel | None = None

    def begin(self, seeds: Mapping[str, int], keep: bool) -> None:
        """Start those episodes; with `keep`, the last states of the present ones are kept to be drawn."""
        for name, seed in seeds.items():
            i = int(name)
            if keep:
                self._last[i] = (self.worlds[i].snapshot()[0], self._seeds[i])
            self._seeds[i] = seed
            self.worlds[i].begin([0], [seed])
            self._write(i)

    def step(self, progress: bool) -> None:
        """One step of all."""
        arrays = self.arrays
        for i, world in self.worlds.items():
            arrays.rewards[i] = world.step(arrays.actions[i, arrays.elapsed[i]][None])[0]
            self._write(i, progress)

    def replay(self, seeds: Mapping[str, int], progress: bool) -> None:
        """Live episodes again."""
        self.begin(seeds, keep=False)
        for name in seeds:
            i = int(name)
            for action in self.arrays.actions[i, : self.arrays.elapsed[i]]:
                self.worlds[i].step(action[None])
            self._write(i, progress)

    def look(self, progress: bool) -> None:
        """Write states and truth once more."""
        for i in self.worlds:
            self._write(i, progress)

    def draw(self, rows: list[tuple[int, int]], final: bool, cameras: list[str]) -> None:
        """Pictures of environments into rows of `arrays.images`."""
        if self._easel is None and rows:
            self._easel = Easel(self._config)
        for row, i in rows:
            snapshot, seed = self._last[i] if final else (self.worlds[i].snapshot()[0], self._seeds[i])
            assert self._easel is not None
            self.arrays.images[row, : len(cameras)] = self._easel.draw(snapshot, seed, cameras)

    def _write(self, i: int, progress: bool = False) -> None:
        world, arrays = self.worlds[i], self.arrays
        arrays.states[i] = world.states[0]
        arrays.success[i] = world.success[0]
        if world.facts.grasp:
            arrays.grasp[i] = world.grasp[0]
        if progress and world.facts.progress:
            arrays.progress[i] = world.progress[0]


def serve(channel: socket.socket, memory: int) -> None:
    """Do what the pool asks for until it goes away. memory: number of the open file that is shared."""
    parent = os.getppid()
    channel.settimeout(ORPHAN_CHECK)
    setup = next_order(channel, parent)

    def answer(words: dict[str, Any]) -> None:
        channel.sendall(json.dumps(words).encode() + b"\n")

    config = parse_config(setup["config"])
    try:
        share = Share(config, range(*setup["share"]))
    except RefereeError as error:
        answer({"error": str(error)})
        return
    gc.freeze()  # ManiSkill collects garbage with every new scene; what is there by now is none
    facts = share.worlds[setup["share"][0]].facts
    answer({"facts": asdict(facts)})
    size = next_order(channel, parent)["size"]
    share.arrays = Arrays(config, facts, mmap.mmap(memory, size))
    answer({})
    while True:
        order = next_order(channel, parent)
        try:
            getattr(share, order.pop("do"))(**order)
        except RefereeError as error:
            answer({"error": str(error)})
        else:
            answer({})


def raise_workers(channel: socket.socket, parent: int) -> None:
    """Start a worker whenever the parent sends the three files of one; each is a fork of this process."""
    channel.settimeout(ORPHAN_CHECK)
    while os.getppid() == parent:
        try:
            words, files, _, _ = socket.recv_fds(channel, 1, 3)
        except TimeoutError:
            continue
        if not words:
            return
        pid = os.fork()
        if pid == 0:
            channel.close()
            _be_worker(*files)
        for file in files:
            os.close(file)
        channel.sendall(f"{pid}\n".encode())


def _be_worker(channel: int, memory: int, complaints: int) -> NoReturn:
    os.dup2(complaints, 2)
    try:
        serve(socket.socket(fileno=channel), memory)
    except BaseException as error:  # the pool reads the last line
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(0)  # drivers may crash while the interpreter shuts down


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # Ctrl-C is for the parent
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()
    try:
        raise_workers(socket.socket(fileno=0), int(sys.argv[1]))
    finally:
        os._exit(0)
