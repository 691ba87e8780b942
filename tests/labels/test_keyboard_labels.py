"""Labels by key: what is counted while a person labels is what the log says afterwards."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from episodes.examples import make_episode
from referee.episodes import Episode, EpisodeStore, Meta
from referee.labels.keyboard import KeyboardLabels, progress_line
from referee.labels.log import LabelLog
from referee.labels.session import LabelSession


def unlabelled(steps: int, id: str) -> Episode:
    made = make_episode(steps)
    return Episode(made.observations, made.actions, made.rewards, made.terminated, made.truncated, None,
                   meta=Meta(id=id, fps=10.0, cameras=("front", "side")))  # fmt: skip


def labelled(keys: list[str], **options: object) -> KeyboardLabels:
    """One frame per entry, at which these keys are pressed."""
    labels = KeyboardLabels(**options)  # type: ignore[arg-type]
    labels.begin("e")
    for pressed in keys:
        labels.see()
        for key in pressed:
            labels.press(key)
    return labels


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        (["c", "", "a", ""], [1, -1, 0, -1]),
        (["ccc", "", "", "c"], [1, -1, -1, 1]),  # held down, or pressed again
        (["", "C", "", "x", ""], [-1, 1, 1, -1, -1]),
        (["C", "", "A", "", "x"], [1, 1, 0, 0, -1]),
        (["C", "a", "", "x"], [1, 0, 1, -1]),  # one frame within a stretch
        (["C", "", "u", ""], [-1, -1, -1, -1]),  # the stretch was a mistake
        (["C", "", "x", "u", ""], [1, 1, 1, 1, 1]),  # its end was
        (["c", "a", "u", ""], [1, -1, -1, -1]),
        (["c", "uu", "k?", ""], [-1, -1, -1, -1]),  # nothing left to take back, and keys without a meaning
        (["ca", "", "", ""], [0, -1, -1, -1]),  # the last word holds
    ],
)  # fmt: skip
def test_what_keys_say(keys: list[str], wanted: list[int]) -> None:
    labels = labelled(keys)
    np.testing.assert_array_equal(labels.labels("e"), wanted)
    assert labels.counts == (wanted.count(1), wanted.count(0))


def test_keys_that_end_and_stop() -> None:
    labels = labelled([""], ends_on=["success"])
    said = {key: labels.press(key) for key in "carqk"}
    assert said["c"].ends and not said["a"].ends and said["r"].ends and not said["r"].stops  # type: ignore[union-attr]
    assert said["q"].stops and said["k"] is None  # type: ignore[union-attr]
    assert not labelled([""]).press("c").ends  # type: ignore[union-attr]


PRESSES = st.lists(st.text("caCAx u", max_size=3), min_size=2, max_size=25)


@settings(max_examples=25, deadline=None)
@given(PRESSES, st.lists(st.integers(0, 24), max_size=5), PRESSES)
def test_the_count_is_what_the_log_says(
    tmp_path_factory: pytest.TempPathFactory, first: list[str], writes: list[int], second: list[str]
) -> None:
    """Whenever it is written in between, and when a run goes on after another."""
    store = EpisodeStore(tmp_path_factory.mktemp("store"))
    for name, keys in (("a", first), ("b", second)):
        session = LabelSession(store, who="me")
        for frame, pressed in enumerate(keys):
            if frame in writes:
                write = session.prepare()  # and keys are pressed before it is on disk
            if frame == 0:
                session.begin(name)
            session.hear(list(pressed), further=frame > 0)
            if frame in writes:
                write()
        session.prepare()()
        session.prepare()()  # what was undone while it was written
        store.append(unlabelled(len(keys) - 1, name))
        log = LabelLog.of(store)
        found = [log.resolve(episode) for episode in store]
        counted = tuple(sum(int((each == value).sum()) for each in found) for value in (1, 0))
        assert session.counts == counted
    assert LabelSession(store, who="me").counts == counted
    other = LabelSession(store, who="you")
    other.begin("c")
    other.hear(["u"])  # nobody takes back another's words
    assert other.counts == counted


def test_words_are_late_by_the_reaction_time(tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path)
    session = LabelSession(store, who="me")
    session.begin("e")
    for frame in range(1, 12):
        session.hear(["C"] if frame == 5 else ["x"] if frame == 8 else ["a"] if frame == 10 else [])
    session.prepare()()
    store.append(unlabelled(11, "e"))
    found = LabelLog.of(store, offset_seconds=0.3).resolve(store.read("e"))
    np.testing.assert_array_equal(found, [-1, -1, 1, 1, 1, -1, -1, 0, -1, -1, -1, -1])


def test_the_two_bars() -> None:
    line = progress_line(12, 50, 28, 150)
    assert re.fullmatch(r"success: 12/50 \[#{6}-{22}\] fail: 28/150 \[#{5}-{27}\]", line)
    assert progress_line(50, 50, 151, 150).count("-") == 0
    for columns in (60, 80, 100, 200):
        assert len(progress_line(12, 50, 28, 150, columns=columns)) < columns
