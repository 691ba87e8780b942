"""Learning uses one thread or all, whichever was faster when it was timed."""

import os

import pytest
import torch

from referee.rl import threads
from referee.rl.threads import AGAIN, Threads


class Machine:
    """A clock that moves by what a piece of work takes with so many threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: dict[int, float]) -> None:
        self.now, self.seconds = 0.0, seconds
        monkeypatch.setattr(threads.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(os, "cpu_count", lambda: 4)

    def work(self, chosen: Threads, pieces: int) -> list[int]:
        """How many threads each piece of work got."""
        used = []
        for _ in range(pieces):
            with chosen.at_work(1.0):
                used.append(torch.get_num_threads())
                self.now += self.seconds[used[-1]]
            assert torch.get_num_threads() == 1
        return used


def test_the_faster_choice_is_kept_and_the_other_timed_again_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, chosen = Machine(monkeypatch, {1: 3.0, 4: 1.0}), Threads(0)
    used = machine.work(chosen, 2 * AGAIN)
    assert used[:3] == [1, 1, 4]  # warming up, and each once
    assert [index for index, count in enumerate(used) if count == 1] == [0, 1, AGAIN]
    machine.seconds = {1: 3.0, 4: 30.0}  # somebody else needs the cores
    assert machine.work(chosen, AGAIN)[-1] == 1


def test_as_many_as_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, {1: 1.0, 2: 9.0, 3: 1.0})
    assert set(machine.work(Threads(2), 5)) == {2}
    assert Threads(0, spare=1).most == 3
    with Threads(0, spare=1).all_at_work():
        assert torch.get_num_threads() == 3


def test_work_that_fails_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, chosen = Machine(monkeypatch, {1: 1.0, 4: 2.0}), Threads(0)
    machine.work(chosen, 1)
    with pytest.raises(ValueError, match="broken"), chosen.at_work(1.0):
        raise ValueError("broken")
    assert torch.get_num_threads() == 1
    assert machine.work(chosen, 3) == [1, 4, 1]
