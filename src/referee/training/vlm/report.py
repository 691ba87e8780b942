"""Where a fine-tuning is and how it ended: plain values that processes can send each other."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from referee.training.vlm.scores import TrendScores


@dataclass(frozen=True)
class SftReport:
    """Where a fine-tuning is."""

    step: int
    total_steps: int
    epoch: float
    lr: float
    train_loss: float
    """Mean of this epoch so far."""
    seconds: float
    val: TrendScores | None = None
    best: bool = False

    @property
    def log_step(self) -> int:
        """The step under which it is logged."""
        return self.step

    @property
    def merit(self) -> tuple[float, float]:
        """Larger is better; the loss decides between equals."""
        return (-self.train_loss, 0.0) if self.val is None else (self.val.merit, -self.val.loss)

    def numbers(self) -> dict[str, float]:
        """The same under the names of logs."""
        metrics = {"train/loss": self.train_loss, "train/lr": self.lr, "time/seconds": self.seconds}
        if self.val is not None:
            metrics |= {f"val/{name}": value for name, value in self.val.numbers().items()}
        return metrics

    def to_json(self) -> dict[str, Any]:
        """Plain values, from which `from_json` makes the same."""
        return {**asdict(replace(self, val=None)), "val": None if self.val is None else self.val.to_json()}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> SftReport:
        """The inverse."""
        val = values["val"]
        return cls(**{**values, "val": None if val is None else TrendScores.from_json(val)})

    def __str__(self) -> str:
        words = f"training loss {self.train_loss:.4f}"
        return words if self.val is None else f"validation {self.val}; {words}"


@dataclass
class SftResult:
    """How it ended."""

    step: int
    reason: str
    """`finished`, `early stop` or `interrupted`."""
    best: SftReport
    history: list[SftReport] = field(default_factory=list)
    """One report per validation."""
