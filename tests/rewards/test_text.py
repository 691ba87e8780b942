"""Rules that pay for texts: each by hand, and the verb that reads a file."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from referee import compat
from referee.cli import main
from referee.config import load
from referee.config.history import TextRewardConfig
from referee.errors import RefereeError
from referee.rewards.patterns import Matcher
from referee.rewards.text import final_answer, judge_texts, last_number
from referee.workers.text import TextRewardWorker


@pytest.mark.parametrize(
    ("rule", "answer", "reference", "right"),
    [
        ("exact", " the red  cube\n", "the red cube", True),
        ("exact", "The red cube", "the red cube", False),
        ("exact", r"So it is \boxed{B}, I think.", "B", True),
        ("numeric", "It takes 3 steps, so 1,234.50 in all", "1234.5", True),
        ("numeric", "3/4", "0.75", True),
        ("numeric", "75%", "0.75", True),
        ("numeric", "-2e3", "-2000", True),
        ("numeric", "0.333", "1/3", False),
        ("numeric", "I do not know", "7", False),
        ("numeric", "5 − 2 = 3 #### 4", "#### 4", True),
        ("numeric", "\u22123", "3", False),
        ("numeric", "\u22123", "-3", True),
        ("numeric", "7-4", "-4", False),
        ("numeric", "x = 7-4", "4", True),
        ("numeric", "x=-4", "-4", True),
        ("numeric", "(1)-4", "-4", False),
        ("numeric", "1e9999999", "7", False),  # once, a number of ten million digits
        ("numeric", "1e-9999999", "0", True),
        ("numeric", "9" * 100_000, "9", False),
        ("regex", "yes, lifted", r"yes.*", True),
        ("regex", "a\nb \u2212 ü", r"a.b . \w", True),
        ("regex", "oh yes", r"yes.*", False),
        ("math", r"\frac{1}{2}", "0.5", True),
        ("math", "(x+1)^2", "x^2+2x+1", True),
        ("math", r"The roots are \boxed{\{2, 1\}}", r"\{1, 2\}", True),
        ("math", r"$2\sqrt{2}$", r"\sqrt{8}", True),
        ("math", "3", "4", False),
        ("math", "", "4", False),
        ("math", "__import__('os').system('true')", "0", False),
    ],
)
def test_rules(rule: str, answer: str, reference: str, right: bool) -> None:
    verdict = judge_texts([answer], [reference], TextRewardConfig(rule=rule, success_reward=2.0, fail_reward=-1.0))
    assert verdict.success is not None and verdict.success.tolist() == [right] and verdict.probability is None
    assert verdict.score.tolist() == [2.0 if right else -1.0]


@pytest.mark.parametrize("here", [True, False])
@pytest.mark.alone
def test_a_pattern_has_a_time_limit_in_any_thread(
    here: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("referee.rewards.text._matcher", Matcher(0.3))
    found: list[list[bool]] = []

    def judge() -> None:
        verdict = judge_texts(["a" * 40 + "!", "aaa"], ["(a+)+", "(a+)+"], TextRewardConfig(rule="regex"))
        assert verdict.success is not None
        found.append(verdict.success.tolist())

    thread = threading.Thread(target=judge)
    start = time.monotonic()
    if here:
        judge()
    else:
        thread.start()
        thread.join(30)
    assert found == [[False, True]] and time.monotonic() - start < 20
    assert "had no result in 0.3 s" in caplog.text


def test_parts_of_a_text() -> None:
    assert final_answer(r"\boxed{1} no, \boxed{\frac{1}{2}} it is") == r"\frac{1}{2}"
    assert final_answer(r"\boxed{never closed") == r"\boxed{never closed"
    assert last_number("nothing") is None and last_number("1/0") is None
    assert last_number("at -.5") == -0.5


def test_what_cannot_be_compared() -> None:
    with pytest.raises(RefereeError, match="did you mean numeric"):
        TextRewardConfig(rule="numerc")
    with pytest.raises(RefereeError, match="2 answers cannot be compared with 1"):
        judge_texts(["a", "b"], ["a"], TextRewardConfig())
    for rule, reference in (("numeric", "none"), ("regex", "("), ("math", "")):
        with pytest.raises(RefereeError, match="reference"):
            judge_texts(["a"], [reference], TextRewardConfig(rule=rule))


def test_the_worker_of_the_documents() -> None:
    config = load("panda_ppo_mlp", ["runner.task_type=text", "reward.text.rule=numeric"]).config
    worker: Any = compat.RewardWorker(config)
    assert isinstance(worker, TextRewardWorker)
    worker.init_worker()
    paid = worker.compute_batch_rewards({"answers": ["4", "5"], "references": ["4.0", "4"]})
    np.testing.assert_array_equal(paid, np.array([1, 0], np.float32))
    with pytest.raises(RefereeError, match="model_path is not given"):  # images need a model
        compat.RewardWorker(load("panda_ppo_mlp", []).config).init_worker()


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "answers.jsonl", tmp_path / "scored.jsonl"
    rows = [{"answer": "so 4", "reference": "4", "id": 7}, {"answer": "5", "reference": "4"}]
    file.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    assert main(["score-text", str(file), "--rule", "numeric", "--out", str(out)]) == 0
    assert "50.0 %" in capsys.readouterr().out
    assert [json.loads(line) for line in out.read_text().splitlines()] == [
        {**rows[0], "success": True, "reward": 1.0}, {**rows[1], "success": False, "reward": 0.0},
    ]  # fmt: skip
    file.write_text('{"answer": "4"}\n')
    assert main(["score-text", str(file)]) == 2
    assert f"{file}:1 has no text under 'reference'" in capsys.readouterr().err
    file.write_text("")
    assert main(["score-text", str(file)]) == 2
