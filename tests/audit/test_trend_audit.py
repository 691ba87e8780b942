"""The audit of trends: numbers by hand, windows of episodes, and a model that follows the truth."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from episodes.examples import make_episode
from referee.audit import trend
from referee.audit.trend_page import headline, verdict, write_trend_page
from referee.config.datasets import WindowConfig
from referee.datasets.windows import LABELS
from referee.errors import RefereeError
from referee.metrics.rates import Rate
from referee.models.vlm import Answers, Prompt, make_input_builder, make_reward_parser
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
    labelled = list(trend.of_episodes([episode], WindowConfig(window_size=5)))
    assert len(labelled) == episode.states_count - 4 and {each.label for each in labelled} == {"positive"}
    assert np.array_equal(labelled[1].window.frames["main_images"], episode.observations["main_images"][1:6])
    found = trend.audit(_Oracle(), labelled, writer=_Oracle())
    assert found.counts["windows"] == len(labelled) and sum(found.said.values()) == len(labelled)
    assert found.to_json()["written"] == found.said


def test_episodes_shorter_than_a_window_leave_nothing_to_judge() -> None:
    short = make_episode(3, seed=1)
    with pytest.raises(RefereeError, match="as long as a window"):
        trend.audit(_Oracle(), trend.of_episodes([short], WindowConfig(window_size=5)))


class _Says:
    """Gives windows the probabilities that are written in their first pixels, in percent."""

    def judge(self, windows: Sequence[Window]) -> Answers:
        chances = np.stack([each.frames["main_images"][0, 0, :3, 0] for each in windows]).astype(np.float32) / 100
        return Answers.read([LABELS[row.argmax()] for row in chances], make_reward_parser(), chances)


def _labelled(label: str, percents: tuple[int, int, int], episode: str, start: int) -> trend.Labelled:
    images = np.zeros((5, 8, 8, 3), np.uint8)
    images[0, 0, :3, 0] = percents
    frames = {"main_images": images, "extra_view_images": np.full((5, 1, 8, 8, 3), 200, np.uint8)}
    return trend.Labelled(Window(frames, "Push <it>."), label, episode, start, 0.1)


def test_the_worst_windows_are_the_surest_opposites_and_not_all_of_one_episode() -> None:
    cases = [
        _labelled("positive", (90, 5, 5), "right", 0),
        _labelled("unclear", (97, 1, 2), "a", 0),
        _labelled("negative", (80, 10, 10), "a", 10),
        _labelled("negative", (85, 10, 5), "a", 11),  # the neighbour is surer
        _labelled("positive", (30, 45, 25), "a", 20),
        _labelled("positive", (5, 90, 5), "b", 0),
    ]
    found = trend.audit(_Says(), cases)
    shown = [(each.case.episode, each.case.start, each.said) for each in found.wrong]
    assert shown == [("b", 0, "negative"), ("a", 11, "positive"), ("a", 20, "negative")]
    assert found.wrong[0].probability == pytest.approx(0.9) and found.wrong[0].of_truth == pytest.approx(0.05)
    assert sum(found.to_json()["reliability"]["count"]) == len(cases)


def test_a_page_shows_numbers_windows_and_the_prompt(tmp_path: Path) -> None:
    cases = [_labelled("positive", (90, 5, 5), f"up{n}", 0) for n in range(40)]
    cases += [
        _labelled("negative", (85, 10, 5), "<b>", 7),
        *(_labelled("negative", (2, 90, 8), "d", n) for n in range(9)),
    ]
    found = trend.audit(_Says(), cases, writer=_Says())
    assert found.example is not None
    path = tmp_path / "report.html"
    write_trend_page(path, found, make_input_builder()(found.example), title="a & b", facts={"audited on": "<here>"})
    page = path.read_text()
    assert headline(found) == "Names the trend of 98.0 % of 50 windows, and tells up from down in 95.0 %."
    assert headline(found).replace(" %", "&nbsp;%") in page and "a &amp; b" in page and "&lt;here&gt;" in page
    assert "said positive, 0.85" in page and "&lt;b&gt;, frames 7 to 11" in page
    assert "Does the robot come closer" in page and "Push &lt;it&gt;." in page
    assert page.count("<img") == 1 + 10  # a wrong window; and the prompt's frames
    assert "$" not in page and "http" not in page.replace("http-equiv", "")
    assert "Of 50 windows it was also asked to write its answer: 41 positive, 9 negative." in page


def test_the_verdict_compares_with_a_constant_answer() -> None:
    always = trend.measure([("positive", str(n), 0, 0.1) for n in range(60)], np.tile([[0.1, 0.8, 0.1]], (60, 1)))
    assert verdict(always)[0] == "bad"
    mixed = [("positive", str(n), 0, 0.1) for n in range(50)] + [("negative", str(n), 0, -0.1) for n in range(50)]
    right = np.array([[0.8, 0.1, 0.1] if row[0] == "positive" else [0.1, 0.8, 0.1] for row in mixed])
    assert verdict(trend.measure(mixed, right))[0] == "good"
    assert verdict(trend.measure(mixed, np.tile([[0.8, 0.1, 0.1]], (100, 1))))[0] == "open"
    assert verdict(replace(trend.measure(mixed, right), notes=["seen"]))[1] == "proves nothing"


def test_a_page_of_a_model_without_mistakes(tmp_path: Path) -> None:
    found = trend.audit(_Says(), [_labelled("unclear", (1, 2, 97), "a", 0)])
    write_trend_page(tmp_path / "r.html", found, Prompt(("one", np.zeros((2, 8, 8, 3), np.uint8)), "before"), title="x")
    page = (tmp_path / "r.html").read_text()
    assert "Every window is called by its own name" in page and "none there" in page
    assert page.count('<span class="clip">') == 1 and "before" in page
    assert headline(found) == "Names the trend of 100 % of 1 windows."
