"""The gain of a run: first evaluation against the last, per label and minute; what is not known is not told."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from referee.refine.loop import Round
from referee.runs.gain import Gain, control_hz, gain

HOUR = 20 * 3600
"""Steps of a robot."""


def evaluation(step: int, true: float | None, model: float | None = None) -> dict[str, float]:
    line: dict[str, float] = {"step": step, "env/return": 1.0}
    if true is not None:
        line |= {
            "eval/success_at_end": true,
            "eval/success_at_end_low": true - 0.1,
            "eval/success_at_end_high": true + 0.1,
        }
    return line if model is None else {**line, "eval/reward/model_success": model}


def written(folder: Path, *lines: dict[str, float], tail: str = "") -> Path:
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + tail)
    return folder


def rounds(*answered: tuple[int, int]) -> list[Round]:
    return [
        Round(
            step=step, version=0, asked=24, answered=count, fooled=0, missed=0, swapped=False, compared=None, seconds={}
        )
        for step, count in answered
    ]


def test_points_for_each_label_and_minute(tmp_path: Path) -> None:
    run = written(tmp_path, evaluation(0, 0.2, 0.9), {"step": 5, "env/return": 2.0}, evaluation(2 * HOUR, 0.7, 0.8))
    found = gain(run, rounds((10, 20), (20, 50)), 3.0)
    assert isinstance(found, Gain)
    assert found.numbers() == pytest.approx({
        "points_gained": 50, "points_per_100_labels": 100, "points_per_label_minute": 20, "points_per_robot_hour": 25,
    })  # fmt: skip
    said = "\n".join(found.lines())
    assert "20.0 % [10.0, 30.0] → 70.0 % [60.0, 80.0]" in said and "overlap" not in said
    assert "+100.0 per 100 labels, +20.0 per minute of a person, +25.0 per hour of the robot" in said
    assert "the model said         90.0 % → 80.0 %" in said


def test_the_robot_s_own_clock_counts(tmp_path: Path) -> None:
    """An arm at 10 Hz needs twice the time of the simulation for as many steps."""
    run = written(tmp_path, evaluation(0, 0.2), evaluation(HOUR, 0.7))
    assert control_hz(run) == 20
    (run / "checkpoints" / "step_7").mkdir(parents=True)
    (run / "checkpoints" / "step_7" / "meta.json").write_text('{"version": 1, "control_hz": 10}')
    found = gain(run, [], 2.0)
    assert isinstance(found, Gain) and found.robot_minutes == pytest.approx(120)
    assert found.numbers()["points_per_robot_hour"] == pytest.approx(25)


def test_only_labels_between_the_two_evaluations_count(tmp_path: Path) -> None:
    run = written(tmp_path, evaluation(100, 0.5), evaluation(200, 0.4))
    found = gain(run, rounds((50, 24), (100, 48), (200, 60), (300, 99)), 2.0)
    assert isinstance(found, Gain) and found.labels == 36 and found.points == pytest.approx(-10)
    assert "-10.0 points (the intervals overlap)" in "\n".join(found.lines())


def test_a_resumed_run_forgets_and_a_cut_line_is_skipped(tmp_path: Path) -> None:
    lines = [evaluation(100, 0.1), evaluation(200, 0.9), evaluation(300, 1.0), {"step": 150}, evaluation(200, 0.5)]
    found = gain(written(tmp_path, *lines, tail='{"step": 300, "eval/succ'), [], 2.0)
    assert isinstance(found, Gain) and found.points == pytest.approx(40) and found.last["step"] == 200


def test_what_cost_nothing_or_is_not_known_is_left_out(tmp_path: Path) -> None:
    run = written(tmp_path, evaluation(0, 0.2), evaluation(HOUR, 0.7))
    for labels, seconds in ((0, 2.0), (10, 0.0), (10, None)):
        found = gain(run, rounds((1, labels)), seconds)
        assert isinstance(found, Gain) and "points_per_label_minute" not in found.numbers()
        assert "minute of a person" not in found.lines()[-2] and "hour of the robot" in found.lines()[-2]
    assert "an unknown time of a person" in "\n".join(found.lines())


def test_without_evaluations_or_truth_no_gain_is_told(tmp_path: Path) -> None:
    assert "no evaluation was written down" in str(gain(tmp_path, [], 2.0))
    assert "one evaluation only, at step 1,000" in str(gain(written(tmp_path, evaluation(1000, 0.5)), [], 2.0))
    for missing in (None, math.nan):
        found = gain(written(tmp_path, evaluation(0, missing, 0.1), evaluation(9, 0.5, 0.7)), [], 2.0)
        assert isinstance(found, Gain) and found.numbers() == {}
        said = "\n".join(found.lines())
        assert "not known" in said and "10.0 % → 70.0 %" in said and "points" not in said
