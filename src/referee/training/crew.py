"""The micro-batches of a step side by side: the same gradients as one after the other, summed in the same order."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import nn

from referee.models.threads import pool

J = TypeVar("J")
R = TypeVar("R")


class Crew:
    """Copies of a network that share its parameters, each with buffers of its own and a thread to work on."""

    def __init__(self, net: nn.Module, pieces: int) -> None:
        """pieces: as many as a step has; there is no use for more threads.

        Those of torch are shared out, and until the crew is closed whatever is done beside it has one.
        """
        self._threads = torch.get_num_threads()
        # All dropout draws from one generator: its numbers would depend on who comes first.
        random = any(isinstance(each, nn.modules.dropout._DropoutNd) and each.p for each in net.modules())
        workers = 1 if random else min(self._threads, pieces)
        shared = {id(each): each for each in net.parameters()}
        self.nets = [net, *(copy.deepcopy(net, dict(shared)) for _ in range(workers - 1))]
        self._pool = None
        if workers > 1:
            self._pool = pool(workers, self._threads)
            torch.set_num_threads(1)

    def map(self, work: Callable[[nn.Module, J], R], jobs: Sequence[J]) -> list[R]:
        """What `work` makes of each job, with one of the networks."""
        if self._pool is None:
            return [work(self.nets[0], job) for job in jobs]
        shares = [jobs[number :: len(self.nets)] for number in range(len(self.nets))]
        done = self._pool.map(lambda net, share: [work(net, job) for job in share], self.nets, shares)
        found = [iter(each) for each in done]
        return [next(found[number % len(found)]) for number in range(len(jobs))]

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()
            torch.set_num_threads(self._threads)


def seed_dropout(seed: int) -> None:
    """For one micro-batch.

    `torch.manual_seed` keeps a trace of its callers for every device that is not in use yet: slow, and it grows.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)
