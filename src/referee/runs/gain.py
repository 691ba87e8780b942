"""The gain of a run with refinement: success from the first evaluation to the last, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from referee.refine.loop import Round
from referee.rl.checkpoint import CheckpointError, find, load_meta
from referee.runs.logbook import METRICS, read_metrics
from referee.sim.scene import CONTROL_HZ

TRUE, MODEL = "eval/success_at_end", "eval/reward/model_success"
UNITS = {
    "points_per_100_labels": "100 labels",
    "points_per_label_minute": "minute of a person",
    "points_per_robot_hour": "hour of the robot",
}


@dataclass(frozen=True)
class Gain:
    """Two evaluations of a run, as lines of its metrics, and what was spent between them."""

    first: Mapping[str, float]
    last: Mapping[str, float]
    labels: int
    seconds_per_label: float | None
    """None where nobody knows."""
    hz: float = CONTROL_HZ
    """Steps of the robot in a second."""

    @property
    def points(self) -> float:
        """Of true success; nan where the truth is not known."""
        return 100 * (self.last.get(TRUE, math.nan) - self.first.get(TRUE, math.nan))

    @property
    def label_minutes(self) -> float:
        """Of a person; nan where nobody knows."""
        return self.labels * (math.nan if self.seconds_per_label is None else self.seconds_per_label) / 60

    @property
    def robot_minutes(self) -> float:
        """By the robot's own clock."""
        return (self.last["step"] - self.first["step"]) / self.hz / 60

    def numbers(self) -> dict[str, float]:
        """Points gained, and points for each that was spent; what is not known or cost nothing is left out."""
        spent = {
            "points_gained": 1.0,
            "points_per_100_labels": self.labels / 100,
            "points_per_label_minute": self.label_minutes,
            "points_per_robot_hour": self.robot_minutes / 60,
        }
        found = {name: self.points / cost for name, cost in spent.items() if cost}
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def lines(self) -> list[str]:
        """The same in words."""
        said = [each[MODEL] for each in (self.first, self.last) if MODEL in each]
        model = ["the model said         " + " → ".join(f"{100 * each:.1f} %" for each in said)] if said[1:] else []
        steps = f"steps {self.first['step']:,.0f} → {self.last['step']:,.0f}"
        if math.isnan(self.points):
            return [f"true success           not known in the evaluations ({steps}), so no gain can be told", *model]
        found = self.numbers()
        time = "an unknown time" if math.isnan(self.label_minutes) else f"{self.label_minutes:.1f} minutes"
        per = [f"{found[name]:+.1f} per {unit}" for name, unit in UNITS.items() if name in found]
        spent = f"{self.labels} labels, {time} of a person, {self.robot_minutes:.1f} minutes of the robot"
        return [
            f"true success           {_rate(self.first)} → {_rate(self.last)} ({steps})",
            *model,
            f"gained                 {self.points:+.1f} points{self._doubt()}; meanwhile {spent}",
            f"that is, in points     {', '.join(per)}",
            "                       all that the policy learned: what refinement added, a run without it tells",
        ]

    def _doubt(self) -> str:
        (low, high), (last_low, last_high) = _interval(self.first), _interval(self.last)
        return " (the intervals overlap)" if low <= last_high and last_low <= high else ""


def gain(run: Path, rounds: Sequence[Round], seconds_per_label: float | None) -> Gain | str:
    """What a run gained by its metrics; where they cannot tell, the reason in words."""
    found = [line for line in read_metrics(run) if TRUE in line or MODEL in line]
    if not found:
        return f"not known: no evaluation was written down in {Path(run) / METRICS}"
    if len(found) < 2:
        return f"not known: there was one evaluation only, at step {found[0]['step']:,}"
    first, last = found[0], found[-1]
    before = max((each.answered for each in rounds if each.step < first["step"]), default=0)
    after = max((each.answered for each in rounds if each.step <= last["step"]), default=0)
    return Gain(first, last, after - before, seconds_per_label, control_hz(run))


def control_hz(run: Path) -> float:
    """Steps of a second in the world of a run, as its checkpoints say; those of the embedded Panda if they do not."""
    try:
        meta = load_meta(find(Path(run)))
    except CheckpointError:
        return CONTROL_HZ
    return float(meta.get("control_hz") or CONTROL_HZ)


def _interval(line: Mapping[str, float]) -> tuple[float, float]:
    return line.get(f"{TRUE}_low", math.nan), line.get(f"{TRUE}_high", math.nan)


def _rate(line: Mapping[str, float]) -> str:
    low, high = _interval(line)
    interval = "" if math.isnan(high - low) else f" [{100 * low:.1f}, {100 * high:.1f}]"
    return f"{100 * line[TRUE]:.1f} %{interval}"
