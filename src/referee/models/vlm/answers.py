"""What a model says about windows, and what every such model can do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from referee.datasets.windows import LABELS
from referee.errors import RefereeError
from referee.models.window import Window

INVALID = "invalid"


@dataclass(frozen=True, eq=False)
class Answers:
    """One answer for each of n windows."""

    label: tuple[str, ...]
    """positive, negative, unclear, or invalid where the text could not be read."""
    reward: np.ndarray
    """f32[n]"""
    probabilities: np.ndarray | None
    """f32[n,3] of positive, negative, unclear; None where only a text came back."""
    text: tuple[str, ...]

    @classmethod
    def read(
        cls,
        texts: Sequence[str],
        parser: Callable[[str], tuple[str, float]],
        probabilities: np.ndarray | None = None,
    ) -> Answers:
        """The answers in some texts."""
        said = [parser(text) for text in texts]
        rewards = np.array([reward for _, reward in said], np.float32)
        return cls(tuple(label for label, _ in said), rewards, probabilities, tuple(texts))

    @classmethod
    def join(cls, parts: Sequence[Answers]) -> Answers:
        """Those of several batches, in their order; probabilities only where all have some."""
        known = [part.probabilities for part in parts if part.probabilities is not None]
        return cls(
            tuple(label for part in parts for label in part.label),
            np.concatenate([part.reward for part in parts]) if parts else np.empty(0, np.float32),
            np.concatenate(known) if known and len(known) == len(parts) else None,
            tuple(text for part in parts for text in part.text),
        )

    def expected(self, parser: Callable[[str], tuple[str, float]], words: Sequence[str]) -> Answers:
        """The same, paid by what each of the three words would pay and how likely it is: a measure, not a count."""
        if self.probabilities is None:
            raise RefereeError("what is expected needs probabilities: use the read-out `score`")
        pays = np.array([parser(word)[1] for word in words])
        return replace(self, reward=(self.probabilities @ pays).astype(np.float32))

    def __len__(self) -> int:
        return len(self.label)

    @property
    def counts(self) -> dict[str, int]:
        """Windows by label, those that could not be read included."""
        return dict.fromkeys((*LABELS, INVALID), 0) | Counter(self.label)

    @property
    def invalid(self) -> int:
        """Answers that could not be read; they are paid `invalid_reward`."""
        return self.counts[INVALID]


class WindowModel(Protocol):
    """Whatever judges windows: a model in this process, or one behind a server."""

    def judge(self, windows: Sequence[Window]) -> Answers:
        """One answer per window."""
        ...
