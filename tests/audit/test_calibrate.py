"""Temperature against a grid, threshold and gate against a search over everything."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.fakes import at, random_episodes, said
from referee.audit.calibrate import GATES, calibrate, choose, choose_last, fit_temperature
from referee.audit.judged import Judged
from referee.audit.statistics import outcome
from referee.errors import RefereeError
from referee.metrics.calibration import nll, probability


@given(st.integers(0, 1000), st.floats(0.1, 8.0))
@settings(max_examples=40, deadline=None)
def test_the_temperature_is_the_best_of_a_grid(seed: int, scale: float) -> None:
    random = np.random.default_rng(seed)
    truth = random.normal(size=400) * 2
    labels = (random.random(400) < 1 / (1 + np.exp(-truth))).astype(int)
    found = fit_temperature(labels, truth * scale)
    grid = np.geomspace(0.05, 20.0, 400)
    best = min(nll(labels, truth * scale, each) for each in grid)
    assert nll(labels, truth * scale, found) <= best + 1e-9


def test_a_known_temperature_is_found_again() -> None:
    random = np.random.default_rng(0)
    truth = random.normal(size=200_000) * 2
    labels = (random.random(200_000) < 1 / (1 + np.exp(-truth))).astype(int)
    assert fit_temperature(labels, truth * 3) == pytest.approx(3, rel=0.02)
    assert fit_temperature(labels, truth.astype(np.float32)) == pytest.approx(1, rel=0.02)


def test_where_the_data_say_nothing_the_temperature_stays() -> None:
    labels, logits = np.array([0, 1, 1]), np.array([-2.0, 1.0, 3.0])
    assert fit_temperature(labels, logits) == 1.0  # all on their right side
    assert fit_temperature(np.array([]), np.array([])) == 1.0
    assert fit_temperature(1 - labels, logits) == pytest.approx(20.0, rel=1e-3)  # worse than chance: as flat as allowed


def slow_choice(judged: Sequence[Judged], gates: Sequence[tuple[int, int]], allowed: int) -> tuple[int, float]:
    """Most detected, and then the shortest mean delay, over every threshold that can matter."""
    values = np.unique(np.concatenate([probability(each.logits) for each in judged]))
    best = (-1, np.inf)
    for k, n in gates:
        for value in values:
            found = [outcome(each, at(float(value), k, n)) for each in judged]
            if sum(each.kind == "paid" for each in found) > allowed:
                continue
            steps = [each.steps for each in found if each.kind == "detected"]
            option = (len(steps), float(np.mean(steps)) if steps else np.inf)
            if (option[0], -option[1]) > (best[0], -best[1]):
                best = option
    return best


@pytest.mark.parametrize("seed", range(6))
def test_no_threshold_and_gate_does_better(seed: int) -> None:
    judged = random_episodes(24, seed=seed, states=8, skill=1.0)
    gates = [(1, 1), (2, 2), (2, 3)]
    target = 0.25  # of 12 failing: floor(13/4) - 1 = 2 may be paid
    found = choose(judged, target=target, gates=gates)
    outcomes = [outcome(each, found) for each in judged]
    detected, delay = slow_choice(judged, gates, 2)
    assert sum(each.kind == "detected" for each in outcomes) == detected == found.measured["detected_episodes"]
    assert np.mean([each.steps for each in outcomes if each.kind == "detected"]) == pytest.approx(delay)
    assert found.measured["mean_steps_to_detect"] == pytest.approx(delay)
    paid = sum(each.kind == "paid" for each in outcomes)
    assert paid == found.measured["paid_failing_episodes"] <= 2
    assert found.measured["expected_episode_fpr"] == pytest.approx((paid + 1) / 13)


def test_few_failing_episodes_put_the_threshold_into_the_middle_and_say_so() -> None:
    judged = [said("f", "000", 0.1, 0.2, 0.1), said("s", "011", 0.05, 0.9, 0.95)]
    found = choose(judged)
    # (0.2, 0.95] detects; from one half on, with as good thresholds for 0.5 of log-odds on either side: 0 to 2.44.
    middle = (np.log(0.95 / 0.05) - 0.5) / 2
    assert (found.gate_k, found.gate_n) == (1, 1)
    assert np.log(found.threshold / (1 - found.threshold)) == pytest.approx(middle, abs=0.03)
    assert found.notes == [
        "only 1 failing validation episodes: none is paid, but a fresh one may be with a probability of about 50.0%; "
        "99 are needed to aim at 1.00%"
    ]
    assert found.measured["episode_fpr_upper"] > 0.5


def test_with_few_episodes_one_of_them_decides_nothing() -> None:
    winning = [said(f"s{i}", "0011", 0.01, 0.1, 0.97, 0.97) for i in range(9)]
    odd = said("odd", "0011", 0.01, 0.05, 0.06, 0.97)  # detected at once only by a threshold of 0.06
    failing = [said(f"f{i}", "0000", 0.01, 0.02, 0.05, 0.01) for i in range(10)]
    found = choose([*winning, odd, *failing])
    assert found.threshold > 0.5 and found.measured["paid_failing_episodes"] == 0
    early = said("early", "0001", 0.01, 0.01, 0.96, 0.97)  # only thresholds in a gap of (0.96, 0.97] see it in time
    found = choose([*winning, early, *failing], gates=[(1, 1)])
    assert 0.6 < found.threshold < 0.96 and found.measured["detected_episodes"] == 9


def test_a_gate_that_needs_a_low_threshold_does_not_win() -> None:
    winning = [said(f"s{i}", "0111", 0.01, 0.1, 0.9, 0.1) for i in range(9)]  # never two in a row above one half
    blind = said("blind", "0111", 0.01, 0.1, 0.1, 0.1)
    failing = [said(f"f{i}", "0000", 0.01, 0.02, 0.05, 0.01) for i in range(10)]
    found = choose([*winning, blind, *failing], gates=[(1, 1), (2, 2)])
    assert (found.gate_k, found.gate_n) == (1, 1) and found.threshold >= 0.5


def test_a_model_that_is_never_sure_still_gets_a_threshold() -> None:
    judged = [said("f", "000", 0.1, 0.2, 0.1), said("s", "011", 0.05, 0.3, 0.4)]
    found = choose(judged)
    assert 0.2 < found.threshold <= 0.4 and found.measured["detected_episodes"] == 1


def test_a_gate_is_chosen_where_single_frames_mislead() -> None:
    failing = [said(f"f{i}", "000000", 0.1, 0.1, 0.97, 0.1, 0.1, 0.1) for i in range(20)]
    winning = [said(f"s{i}", "000111", 0.1, 0.1, 0.1, 0.9, 0.92, 0.9) for i in range(20)]
    found = choose(failing + winning, target=0.05)
    assert (found.gate_k, found.gate_n) == (2, 2)  # no threshold alone separates them; the smallest gate that does
    assert [outcome(each, found).kind for each in failing + winning] == ["refused"] * 20 + ["detected"] * 20
    assert found.measured["mean_steps_to_detect"] == 1.0


def test_an_early_fire_is_no_detection() -> None:
    early = [said(f"s{i}", "000111", 0.1, 0.3, 0.7, 0.8, 0.9, 0.95) for i in range(5)]
    found = choose(early, gates=[(1, 1)])
    assert found.threshold > 0.7
    assert found.notes[0].startswith("no validation episode fails")


def test_what_cannot_be_kept_is_said() -> None:
    judged = [said("f", "00", 0.9, 1.0), said("s", "01", 0.1, 0.5)]
    found = choose(judged, gates=[(1, 1)])
    assert found.measured["paid_failing_episodes"] == 1
    assert found.notes[0].startswith("no threshold keeps to 1.00%: 1 of 1 failing episodes are paid")


def test_samples_of_episodes_allow_no_gate() -> None:
    judged = [
        Judged(
            f"e{i}", np.array([0, i % 2], np.int8), np.array([-3, 6 * (i % 2) - 3], np.float32), frames=np.array([0, 7])
        )
        for i in range(8)
    ]
    found = choose(judged)
    assert (found.gate_k, found.gate_n) == (1, 1)
    assert any("no gate over time" in note for note in found.notes)


def test_the_promise_holds_on_fresh_episodes() -> None:
    """Chosen on 199 failing episodes for 5 %: on average, fresh failing episodes are paid at most so often."""
    shares = []
    for seed in range(12):
        judged = random_episodes(398, seed=seed, states=10, skill=1.5)
        fresh = random_episodes(800, seed=1000 + seed, states=10, skill=1.5)
        found = choose(judged, target=0.05, gates=[(1, 1), (2, 3)])
        kinds = [outcome(each, found).kind for each in fresh]
        shares.append(kinds.count("paid") / (kinds.count("paid") + kinds.count("refused")))
    assert np.mean(shares) < 0.06 and max(shares) < 0.12
    assert np.mean(shares) > 0.02  # and it does not throw recall away for nothing


def test_the_choice_fits_an_artifact_and_survives_rounding() -> None:
    judged = random_episodes(60)
    found = calibrate(judged, target=0.1)
    assert set(found.fields()) == {
        "temperature", "threshold", "gate_k", "gate_n", "target_episode_fpr", "measured", "terminal_threshold",
    }  # fmt: skip
    assert 0 < found.threshold <= 1 and (found.gate_k, found.gate_n) in GATES
    again = [Judged(each.id, each.labels, each.logits * np.float32(1 + 1e-6)) for each in judged]
    assert [outcome(each, found) for each in judged] == [outcome(each, found) for each in again]


def test_last_states_have_a_threshold_of_their_own() -> None:
    """What happens before the end does not move it; a success that was lost again is a failure at the end."""
    judged = [
        said("a", "0011", 0.1, 0.2, 0.9, 0.8),
        said("b", "0110", 0.1, 0.95, 0.9, 0.6),
        said("c", "0000", 0.99, 0.2, 0.1, 0.3),
        said("d", "0001", 0.1, 0.2, 0.3, 0.7),
    ]
    found = choose_last(judged, temperature=1.0, target=0.01)
    # Between what the failures end in (at most 0.6) and what the successes end in (at least 0.7).
    assert found is not None and 0.6 < found <= 0.7
    assert choose_last([judged[1], judged[2]], temperature=1.0, target=0.01) is None
    # Of 4 failing ends, (4 + 1) · 0.4 - 1 = 1 may be paid: the threshold goes below the one at 0.75.
    many = [*judged, said("e", "00", 0.1, 0.75), said("f", "00", 0.1, 0.2)]
    assert choose_last(many, temperature=1.0, target=0.01) > 0.75  # type: ignore[operator]
    assert 0.6 < choose_last(many, temperature=1.0, target=0.4) <= 0.7  # type: ignore[operator]


@pytest.mark.parametrize(
    ("judged", "target", "words"),
    [
        ([said("f", "00", 0.1, 0.2)], 0.01, "no validation episode has a success frame"),
        ([said("s", "01", 0.1, 0.2)], 0.0, "between 0 and 1"),
    ],
)
def test_bad_input_is_one_line(judged: list[Judged], target: float, words: str) -> None:
    with pytest.raises(RefereeError, match=words):
        choose(judged, target=target)
    with pytest.raises(RefereeError, match="no validation episode to calibrate on"):
        calibrate([])


def test_the_threshold_of_fewest_mistakes_is_that_of_trying_all() -> None:
    from referee.audit.calibrate import fewest_mistakes

    random = np.random.default_rng(0)
    labels = (random.random(300) < 0.7).astype(int)
    logits = 3 * random.standard_normal(300) + np.where(labels == 1, 4.0, -1.0)
    found = fewest_mistakes(labels, logits, temperature=2.0)
    said = 1 / (1 + np.exp(-logits / 2.0))
    tried = [((said >= threshold) != labels).sum() for threshold in np.linspace(0.01, 0.99, 99)]
    assert ((said >= found) != labels).sum() <= min(tried) + 3  # its neighbours have a say, too


def test_frames_far_from_each_other_leave_the_threshold_in_the_middle() -> None:
    from referee.audit.calibrate import fewest_mistakes

    found = fewest_mistakes(np.array([0, 0, 1, 1]), np.array([-3.0, -2.0, 2.0, 5.0]), temperature=1.0)
    assert found == pytest.approx(0.5, abs=0.02)
    assert fewest_mistakes(np.array([1, 1]), np.array([1.0, 2.0]), temperature=1.0) < 0.5  # nothing fails
