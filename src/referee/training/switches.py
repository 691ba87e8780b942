"""Switches of torch that hold for the whole process: set while a model learns, and put back afterwards.

Threads, because the processes of a training share the cores, and a head is too little work to share out. oneDNN,
because strided 1x1 convolutions of fewer than 8 channels write past their memory in its backward pass (torch 2.13).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from referee.models.contract import RewardModel

NARROW = 8
"""Channels below which oneDNN is not used for learning."""


@contextmanager
def threads(count: int) -> Iterator[None]:
    """So many threads of torch for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def safe_convolutions(model: RewardModel, *, head_only: bool) -> Iterator[None]:
    """No oneDNN for a while, where the convolutions of a narrow model learn."""
    if head_only or getattr(model.spec, "width", NARROW) >= NARROW:
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch also asks about GPUs that are not there
        with torch.backends.mkldnn.flags(enabled=False):
            yield
