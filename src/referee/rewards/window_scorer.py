"""Scores of windows: a model is asked about all of a rollout at once, and its answers become rewards of steps."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import numpy as np

from referee.config.datasets import WindowConfig
from referee.datasets.windows import LABELS, NEGATIVE, POSITIVE, trends
from referee.errors import RefereeError
from referee.models.vlm import INVALID, Answers, WindowModel
from referee.models.vlm.server import UNANSWERED
from referee.models.window import Window
from referee.rewards.assign import pay_windows
from referee.rewards.history import PROGRESS, Windows
from referee.rewards.rules import RewardOptions
from referee.rewards.score_rollout import Scores

_log = logging.getLogger(__name__)


class WindowScorer:
    """Asks a model about windows, counts its answers, and knows which rewards they are.

    A rollout worker that only keeps frames for others has one without a model.
    """

    def __init__(
        self, model: WindowModel | None, options: RewardOptions, *, task: str, assign: str = "end",
        interval_reward: float = 0.0,
    ) -> None:  # fmt: skip
        """task: in words, for the prompts. assign, interval_reward: see `pay_windows`."""
        if options.terminate_on == "model":
            raise RefereeError("reward.terminate_on=model needs a model that says success; this one says trends: never")
        self.options = options
        self.seconds = 0.0
        """Spent on scoring so far, in this process."""
        self.windows = 0
        """Judged so far;"""
        self.invalid = 0
        """of them, those whose answer could not be read or did not come."""
        self._model, self._task, self._assign, self._interval_reward = model, task, assign, interval_reward
        self._latest: dict[str, float] = {}
        self._warned = False

    def score(self, windows: Windows, shape: tuple[int, int]) -> Scores:
        """What the model's answers pay for the steps of a rollout. shape: T, N"""
        answers = self.judge([windows.window(number, self._task) for number in range(len(windows))])
        rewards, judged = pay_windows(
            windows, answers.reward, shape, assign=self._assign, interval_reward=self._interval_reward
        )
        self._latest |= trend_beside(windows, answers)
        return Scores(rewards, judged, None, None)

    def judge(self, windows: Sequence[Window]) -> Answers:
        """One answer per window, asked all at once; the model cuts them into batches."""
        if self._model is None:
            raise RefereeError("these windows are judged elsewhere")
        began = time.perf_counter()
        answers = self._model.judge(windows) if windows else Answers((), np.zeros(0, np.float32), None, ())
        self.seconds += time.perf_counter() - began
        if len(answers) != len(windows) or answers.reward.shape != (len(windows),):
            raise RefereeError(f"the model gave {len(answers)} answers to {len(windows)} windows")
        if not np.isfinite(answers.reward).all():
            place = int(np.flatnonzero(~np.isfinite(answers.reward))[0])
            raise RefereeError(
                f"{answers.text[place]!r} pays {answers.reward[place]}: check reward.model.reward_parser_params"
            )
        self.windows += len(windows)
        self.invalid += answers.invalid
        self._latest = _numbers(answers)
        self._complain(answers)
        return answers

    def numbers(self) -> dict[str, float]:
        """What was said last, under its log names."""
        return dict(self._latest)

    def account(self) -> dict[str, float]:
        """What was asked in the whole run."""
        return {"windows": self.windows, "invalid": self.invalid, "seconds": self.seconds}

    def _complain(self, answers: Answers) -> None:
        """One warning in a run, where many answers cannot be read."""
        unread = [text for text, label in zip(answers.text, answers.label, strict=True) if label == INVALID]
        unread = [text for text in unread if text != UNANSWERED]
        if not self._warned and len(unread) > len(answers) / 2:
            self._warned = True
            _log.warning(
                "%d of %d answers cannot be read and pay invalid_reward, as %.60r: is this model fine-tuned "
                "(reward.model.lora_path)?", len(unread), len(answers), unread[0],
            )  # fmt: skip


def trend_beside(windows: Windows, answers: Answers) -> dict[str, float]:
    """How often the model names the true trend of a window, where the world tells its progress; only logged."""
    if PROGRESS not in windows.frames or not len(windows):
        return {}
    bounds = np.stack([windows.starts, windows.starts + windows.lengths], axis=1)
    change, names = trends(windows.frames[PROGRESS], bounds, WindowConfig.delta_threshold)
    known, true, said = np.isfinite(change), np.array(names), np.array(answers.label)
    found = {}
    if known.any():
        found["reward/agreement"] = float((true == said)[known].mean())
        found["reward/truly_positive"] = float((true == POSITIVE)[known].mean())
    clear = known & np.isin(true, (POSITIVE, NEGATIVE))
    if clear.any():
        opposite = np.where(true == POSITIVE, NEGATIVE, POSITIVE)
        found["reward/opposite"] = float((said == opposite)[clear].mean())
    return found


def _numbers(answers: Answers) -> dict[str, float]:
    count = len(answers)
    found = {"reward/windows": float(count)}
    if count:
        found |= {f"reward/{label}": answers.counts[label] / count for label in (*LABELS, INVALID)}
        found["reward/unanswered"] = sum(text == UNANSWERED for text in answers.text) / count
        found["reward/score"] = float(answers.reward.mean())
    return found
