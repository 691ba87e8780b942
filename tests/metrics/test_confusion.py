"""Confusion by hand."""

import numpy as np
import pytest

from referee.metrics.confusion import Confusion
from referee.metrics.rates import Rate

NAMES = ("up", "down", "flat")


def test_confusion_by_hand() -> None:
    truth = ["up", "up", "up", "down", "down"]
    said = ["up", "down", "what?", "down", "down"]
    found = Confusion.of(truth, said, NAMES)
    assert found.counts.tolist() == [[1, 1, 0, 1], [0, 2, 0, 0], [0, 0, 0, 0]]
    assert found.accuracy == Rate(3, 5)
    assert found.recalls == {"up": Rate(1, 3), "down": Rate(2, 2), "flat": Rate(0, 0)}
    assert found.balanced == pytest.approx((1 / 3 + 1) / 2)
    assert found.unread == 1
    assert found.to_json() == {"names": list(NAMES), "counts": found.counts.tolist()}


def test_nothing_and_nonsense() -> None:
    assert np.isnan(Confusion.of([], [], NAMES).balanced)
    with pytest.raises(ValueError, match="do not fit"):
        Confusion.of(["up"], [], NAMES)
    with pytest.raises(KeyError):
        Confusion.of(["sideways"], ["up"], NAMES)
