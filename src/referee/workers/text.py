"""The reward worker of text tasks: pays for answers by rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from referee.config.history import TextRewardConfig
from referee.models.contract import Verdict
from referee.rewards.text import judge_texts


class TextRewardWorker:
    """Takes the place of `RewardWorker` where `runner.task_type` is `text`; the same names, no model."""

    def __init__(self, config: TextRewardConfig | None = None) -> None:
        self.config = config or TextRewardConfig()

    def judge(self, batch: Mapping[str, Sequence[str]]) -> Verdict:
        """The verdict on `answers`, each beside one of `references`."""
        return judge_texts(batch["answers"], batch["references"], self.config)

    # --- the documented names ---

    def init_worker(self) -> None:
        """Nothing is left to do: a worker is ready once it is made."""

    def compute_rewards(self, batch: Mapping[str, Sequence[str]]) -> np.ndarray:
        """f32[n]: what the answers are paid."""
        return self.judge(batch).score

    compute_batch_rewards = compute_rewards
