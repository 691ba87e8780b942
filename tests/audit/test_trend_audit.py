"""The audit of trends: numbers by hand, windows of episodes, and a model that follows the truth."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from episodes.examples import make_episode
from referee.audit import trend
from referee.datasets.windows import LABELS, WindowOptions
from referee.errors import RefereeError
from referee.metrics.rates import Rate
from referee.models.vlm import Answers, make_reward_parser
from referee.models.window import Window


def test_numbers_by_hand() -> None:
    rows = [("positive", "a", 0, 0.1), ("negative", "a", 1, -0.1), ("unclear", "a", 2, 0.0), ("positive", "a", 3, 0.2)]
    chances = np.array([[0.8, 0.1, 0.1], [0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [0.2, 0.1, 0.7]], np.float32)
    found = trend.measure(rows, chances)
    scores = found.scores
    assert scores.confusion.accuracy == Rate(2, 4)
    assert scores.up == Rate(2, 2) and scores.down == Rate(0, 1) and scores.trend == 0.5
    assert scores.loss == pytest.approx(-np.log([0.8, 0.3, 0.8, 0.2]).mean(), abs=1e-6)
    # Confidences .8 (right), .5 (wrong), .8 (right), .7 (wrong): bins of a fifteenth
    assert found.ece == pytest.approx((2 * 0.2 + 0.5 + 0.7) / 4, abs=1e-6)
    assert np.isnan(found.voc)  # four windows are too few for an order


def test_a_sum_that_follows_the_truth_has_the_highest_order() -> None:
    rows = [("positive", "a", start, 0.1) for start in (3, 0, 2, 1, 4, 5)]
    chances = np.tile(np.array([[0.7, 0.1, 0.2]], np.float32), (6, 1))
    found = trend.measure(rows, chances)
    assert found.voc == found.following == pytest.approx(1.0)
    against = trend.measure(rows, chances[:, [1, 0, 2]])
    assert against.voc == pytest.approx(-1.0)


class _Oracle:
    """Knows the label from the brightness of the last frame."""

    def judge(self, windows: Sequence[Window]) -> Answers:
        best = [int(each.frames["main_images"][-1, 0, 0, 0]) % 3 for each in windows]
        return Answers.read([LABELS[each] for each in best], make_reward_parser(), np.eye(3, dtype=np.float32)[best])


def test_windows_of_episodes_are_judged_with_their_labels() -> None:
    episode = make_episode(12, seed=1)
    progress = np.linspace(0, 1, episode.states_count).astype(np.float32)
    episode = replace(episode, signals={**episode.signals, "progress": progress})
    labelled = list(trend.of_episodes([episode], WindowOptions(window_size=5)))
    assert len(labelled) == episode.states_count - 4 and {each.label for each in labelled} == {"positive"}
    assert np.array_equal(labelled[1].window.frames["main_images"], episode.observations["main_images"][1:6])
    found = trend.audit(_Oracle(), labelled, writer=_Oracle())
    assert found.counts["windows"] == len(labelled) and sum(found.said.values()) == len(labelled)
    assert found.to_json()["written"] == found.said


def test_episodes_shorter_than_a_window_leave_nothing_to_judge() -> None:
    short = make_episode(3, seed=1)
    with pytest.raises(RefereeError, match="as long as a window"):
        trend.audit(_Oracle(), trend.of_episodes([short], WindowOptions(window_size=5)))
