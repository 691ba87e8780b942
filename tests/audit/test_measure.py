"""The numbers of an audit by hand, their intervals, and who may be audited on what."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from audit.fakes import FakeArtifact, at, bright_episode, random_episodes, said
from referee.audit.compare import compare, compare_judged
from referee.audit.judged import Judged
from referee.audit.measure import audit, measure, trained_on
from referee.audit.statistics import Statistics, outcome
from referee.episodes import EpisodeStore
from referee.errors import RefereeError
from referee.labels.log import LabelLog
from referee.metrics import auroc, average_precision, ece, voc, wilson
from referee.metrics.intervals import episode_draws

BY_HAND = [
    said("refused", "0000", 0.1, 0.2, 0.6, 0.1),  # one frame above: 2 of 3 refuses it
    said("paid", "0000", 0.1, 0.7, 0.8, 0.1),
    said("detected", "0011", 0.1, 0.2, 0.9, 0.9),
    said("slow", "0111", 0.1, 0.2, 0.7, 0.9),
    said("early", "0001", 0.8, 0.9, 0.1, 0.9),
    said("missed", "0011", 0.1, 0.2, 0.3, 0.9),
    said("nobody", "????", 0.9, 0.9, 0.9, 0.9),
]
GATE = at(0.5, 2, 3)


def test_outcomes_by_hand() -> None:
    found = [outcome(each, GATE) for each in BY_HAND]
    assert [(each.kind, each.fire, each.steps) for each in found] == [
        ("refused", -1, -1),
        ("paid", 2, -1),
        ("detected", 3, 1),
        ("detected", 3, 2),
        ("early", 1, -1),
        ("missed", -1, -1),
        ("unlabelled", -1, -1),
    ]


def test_what_happens_in_unlabelled_states_is_not_counted() -> None:
    assert outcome(said("a", "0??0", 0.1, 0.9, 0.9, 0.1), at()).kind == "refused"
    assert outcome(said("a", "0?01", 0.1, 0.9, 0.1, 0.9), at()).steps == 0
    # The gate has seen the unlabelled states, though.
    assert outcome(said("a", "0?11", 0.1, 0.9, 0.9, 0.9), at(0.5, 2, 2)).steps == 0


def test_numbers_by_hand() -> None:
    found = measure(BY_HAND, GATE, draws=50)
    counts = found.counts
    assert (counts["episodes"], counts["failing_episodes"], counts["success_episodes"]) == (7, 2, 4)
    assert (counts["states"], counts["unlabelled_states"], counts["success_states"]) == (28, 4, 8)
    assert found["episode_false_positive_rate"].value == 1 / 2
    assert (found["episode_false_positive_rate"].low, found["episode_false_positive_rate"].high) == wilson(1, 2)
    assert found["episode_recall"].value == 2 / 4 and found["episode_recall"].low == wilson(2, 4)[0]
    assert found["early_rate"].value == 1 / 4
    assert found["fire_precision"].value == 2 / 4
    assert found["steps_to_detect"].value == 1 and found["steps_to_detect_90"].value == 2
    # Above 0.5: of success 2+2+1+1 of 8 frames; of failure 1+2+0+0+2+0 of 16.
    assert found["recall"].value == 6 / 8 and found["false_positive_rate"].value == 5 / 16
    assert found["precision"].value == 6 / 11
    labels = np.concatenate([each.labels for each in BY_HAND[:-1]])
    said_all = 1 / (1 + np.exp(-np.concatenate([each.logits for each in BY_HAND[:-1]]).astype(float)))
    assert found["auroc"].value == pytest.approx(auroc(labels, said_all.round(6)))
    assert found["average_precision"].value == pytest.approx(average_precision(labels, said_all.round(6)))
    assert found["brier"].value == pytest.approx(np.mean((said_all - labels) ** 2), abs=1e-6)
    assert found["ece"].value == pytest.approx(ece(labels, said_all), abs=1e-6)
    # Up to the last success; of failures all states.
    expected = [voc(each.logits) for each in BY_HAND]
    assert found["voc_success"].value == pytest.approx(np.mean(expected[2:6]))
    assert found["voc_failure"].value == pytest.approx(np.mean(expected[:2]))
    assert found.notes == ["4 of 28 states are unlabelled and left out"]


def test_a_draw_is_the_number_of_the_drawn_episodes() -> None:
    judged = random_episodes(12, skill=0.6)
    operating = at(0.6, 2, 3, temperature=1.7)
    draws = episode_draws(12, draws=8, seed=1)
    drawn = Statistics(judged, operating).evaluate(draws)
    for place, draw in enumerate(draws):
        again = Statistics([judged[e] for e in range(12) for _ in range(draw[e])], operating)
        slow = again.evaluate(np.ones((1, 12)))
        for name, values in drawn.items():
            if name != "ece_equal_mass":  # its bins are those of all episodes
                assert values[place] == pytest.approx(slow[name][0], nan_ok=True), name


def test_intervals_hold_their_numbers_and_shrink_with_more_episodes() -> None:
    few, many = (measure(random_episodes(count, skill=1.0), at(), draws=200) for count in (20, 320))
    for name, found in many.estimates.items():
        assert found.low - 1e-9 <= found.value <= found.high + 1e-9, name
    for name in ("auroc", "recall", "brier", "episode_recall", "voc_success"):
        assert many[name].high - many[name].low < 0.6 * (few[name].high - few[name].low), name
    again = measure(random_episodes(20, skill=1.0), at(), draws=200)
    assert again.estimates == few.estimates


def test_no_mistake_yet_is_not_no_mistake_ever() -> None:
    found = measure([said(f"e{i}", "01", 0.1, 0.9) for i in range(10)] + [said("f", "00", 0.1, 0.1)], at(), draws=50)
    assert (found["recall"].value, found["recall"].low) == (1.0, wilson(10, 10)[0])
    assert found["false_positive_rate"].high == wilson(0, 11)[1]
    assert found["episode_false_positive_rate"].high == wilson(0, 1)[1] > 0.75


def test_metrics_are_plain_json(tmp_path: Path) -> None:
    found = measure([said("s", "01", 0.1, 0.9)], at(), draws=20)
    assert math.isnan(found["episode_false_positive_rate"].value)
    assert any("no audited episode fails" in note for note in found.notes)
    found.save(tmp_path / "metrics.json")
    text = (tmp_path / "metrics.json").read_text()
    assert "NaN" not in text
    values = json.loads(text)
    assert values["estimates"]["episode_false_positive_rate"] == {"value": None, "low": 0.0, "high": 1.0}
    assert values["estimates"]["episode_recall"]["value"] == 1.0
    assert values["operating"] == {
        "temperature": 1.0, "threshold": 0.5, "gate_k": 1, "gate_n": 1, "target_episode_fpr": 0.01,
    }  # fmt: skip
    roc = values["curves"]["roc"]
    assert (roc["x"][0], roc["y"][0], roc["x"][-1], roc["y"][-1]) == (0, 0, 1, 1)


def test_a_curve_keeps_its_shape_in_few_points() -> None:
    judged = random_episodes(200, skill=0.7)
    roc = measure(judged, at(), draws=2).curves["roc"]
    assert len(roc["x"]) <= 202
    labels, logits = (np.concatenate([getattr(each, name) for each in judged]) for name in ("labels", "logits"))
    assert np.trapezoid(roc["y"], roc["x"]) == pytest.approx(auroc(labels, logits), abs=2e-3)


@pytest.mark.parametrize(
    ("judged", "words"),
    [
        ([], "no episode to audit"),
        ([said("f", "00", 0.1, 0.2)], "no success frame: record or label some"),
        ([said("s", "11", 0.1, 0.2)], "no failure frame"),
        ([said("u", "??", 0.1, 0.2)], "no success frame"),
    ],
)
def test_what_cannot_be_measured_is_one_line(judged: list[Judged], words: str) -> None:
    with pytest.raises(RefereeError, match=words):
        measure(judged, at())


EPISODES = [
    bright_episode("a", [10, 20, 200], [0, 0, 1]),
    bright_episode("b", [30, 40, 20], [0, 0, 0]),
    bright_episode("c", [10, 220, 230], [0, 1, 1]),
    bright_episode("d", [30, 150, 20], [0, 0, 0]),
]


def test_an_audit_at_the_artifacts_own_calibration(tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path)
    for episode in EPISODES:
        store.append(episode)
    metrics, judged = audit(FakeArtifact(), store, draws=20)
    assert [each.id for each in judged] == ["a", "b", "c", "d"]
    assert (metrics.counts["paid"], metrics.counts["detected"]) == (1, 2)
    LabelLog.of(store).append("d", True, frames=1, source="web")  # it was a success after all
    metrics, _ = audit(FakeArtifact(), store, draws=20)
    assert (metrics.counts["paid"], metrics.counts["detected"]) == (0, 3)
    high = FakeArtifact(calibration=at(0.999))
    assert audit(high, EPISODES, draws=20)[0].counts["detected"] == 0


def test_without_a_camera() -> None:
    metrics, _ = audit(FakeArtifact(("front", "side")), EPISODES, draws=100)
    assert list(metrics.cameras) == ["front", "side"]
    assert metrics.cameras["front"]["auroc"].value == 0.5  # nothing is left to see
    whole = metrics["auroc"].value
    assert metrics.cameras["front"]["auroc_loss"].value == pytest.approx(whole - 0.5)
    assert metrics.cameras["side"]["auroc_loss"].value == 0 == metrics.cameras["side"]["auroc_loss"].high
    assert audit(FakeArtifact(("front", "side")), EPISODES, draws=10, ablate=False)[0].cameras == {}


def test_episodes_of_the_training_are_refused() -> None:
    artifact = FakeArtifact(provenance={"episodes": {"train": ["a", "b", "z"], "val": ["c"]}})
    with pytest.raises(
        RefereeError, match=r"^the model was trained on 2 of these 4 episodes \(as a\): audit it on others"
    ):
        audit(artifact, EPISODES)
    metrics, judged = audit(artifact, EPISODES, training_episodes="skip", draws=10)
    assert [each.id for each in judged] == ["c", "d"] and not metrics.tainted
    assert metrics.notes[:2] == [
        "2 episodes that the model was trained on are left out",
        "1 of the episodes chose the model, its temperature and its threshold: expect a little less elsewhere",
    ]
    metrics, judged = audit(artifact, EPISODES, training_episodes="allow", draws=10)
    assert len(judged) == 4 and metrics.tainted and "prove nothing" in metrics.notes[0]
    assert metrics.to_json()["tainted_by_training_episodes"] is True
    with pytest.raises(RefereeError, match="trained on all 2 episodes"):
        audit(artifact, EPISODES[:2], training_episodes="skip")
    with pytest.raises(RefereeError, match="no episode to audit"):
        audit(artifact, [])
    with pytest.raises(TypeError, match="several times"):
        audit(artifact, iter(EPISODES))


def test_numbers_that_anybody_gives_are_no_ids() -> None:
    provenance = {"episodes": {"train": ["000000", "20261116-011746-199353-90c71d"], "val": None}}
    assert trained_on(provenance) == {"20261116-011746-199353-90c71d"}
    assert trained_on(provenance, "val") == trained_on({}) == trained_on({"episodes": 3}) == frozenset()
    unnamed = [bright_episode("", [10, 200], [0, 1]), bright_episode("", [10, 20], [0, 0])]
    metrics, _ = audit(FakeArtifact(provenance=provenance), unnamed, draws=10)
    assert any("cannot be told" in note for note in metrics.notes)


def test_two_models_are_compared_in_pairs() -> None:
    a, b = random_episodes(80, skill=0.6), random_episodes(80, skill=1.2)
    found = compare_judged(a, b, at(), at(), names=("old", "new"), draws=300)
    assert found["auroc"].better == "B" and found["auroc"].difference.low > 0
    assert found["brier"].better == "B" and found["brier"].difference.value < 0
    assert compare_judged(b, a, at(), at(), draws=100)["auroc"].better == "A"
    assert found["voc_failure"].better == ""  # neither way is better
    same = compare_judged(a, a, at(), at(), draws=50)
    assert all(row.difference.value == 0 and not row.better for row in same.rows)
    # Paired: both see the same noise, so the difference is known better than either number.
    alone = measure(b, at(), draws=300)["auroc"]
    noisy = [Judged(e.id, e.labels, e.logits + np.float32(0.05) * e.labels) for e in b]
    pair = compare_judged(b, noisy, at(), at(), draws=300)["auroc"].difference
    assert pair.high - pair.low < 0.2 * (alone.high - alone.low)
    text = str(found)
    assert "A = old, B = new, 80 episodes" in text and "episode false-positive rate" in text and "B is better" in text
    assert json.dumps(found.to_json(), allow_nan=False)


def test_a_comparison_leaves_out_what_either_was_trained_on() -> None:
    a = FakeArtifact(provenance={"episodes": {"train": ["a"]}})
    b = FakeArtifact(provenance={"episodes": {"train": ["b"]}}, calibration=at(0.6))
    assert compare(a, b, EPISODES, draws=20).episodes == 2
    b.provenance["episodes"]["train"] += ["c", "d"]
    with pytest.raises(RefereeError, match="neither model was trained on"):
        compare(a, b, EPISODES)
    with pytest.raises(RefereeError, match="different episodes or labels"):
        compare_judged(BY_HAND, BY_HAND[1:], at(), at())
