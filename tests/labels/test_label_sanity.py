"""Labels that are wrong are noticed, right ones are not, and each warning names the episodes."""

import re
from dataclasses import replace

import numpy as np
import pytest

from episodes.examples import make_episode
from referee.episodes import Episode
from referee.labels.sanity import check


def labelled(labels: list[int], *, seed: int = 0, id: str = "e", pixels: int = 0) -> tuple[Episode, np.ndarray]:
    episode = make_episode(len(labels) - 1, pixels=pixels, seed=seed, id=id)
    return episode, np.array(labels, np.int8)


def still(pair: tuple[Episode, np.ndarray], until: int) -> tuple[Episode, np.ndarray]:
    """The same with nothing moving before frame `until`."""
    episode, labels = pair
    arrays = {name: array.copy() for name, array in episode.observations.items()}
    for array in arrays.values():
        array[:until] = array[0]
    return replace(episode, observations=arrays), labels


def test_good_labels_are_not_warned_about() -> None:
    assert check([labelled([0] * 6 + [1] * 4, seed=i, id=f"e{i}") for i in range(5)] + [labelled([0] * 10)]) == []


@pytest.mark.parametrize(
    ("labels", "line"),
    [
        ([[-1] * 5], r"^no frame has a label \(5 frames\): label them"),
        (
            [[0] * 10, [0] * 10],
            r"^0 of 20 labelled frames \(0.0 %\) are a success: .* success looks like; record or label some$",
        ),
        ([[1] * 4], r"^4 of 4 labelled frames \(100.0 %\) are a success: .* failure looks like; record or label some$"),
        ([[0] * 150, [0] * 149 + [1]], r"^only 1 of 300 labelled frames \(0.3 %\)"),
        ([[0] + [1] * 19], r"^as many as 19 of 20 labelled frames \(95.0 %\)"),
    ],
)
def test_base_rates_that_cannot_be(labels: list[list[int]], line: str) -> None:
    assert any(re.search(line, each) for each in check([labelled(each) for each in labels]))


def test_a_base_rate_at_the_limits_is_fine() -> None:
    assert check([labelled([0] * 99 + [1])]) == []  # 1 %
    assert check([labelled([0] * 5 + [1] * 45)]) == []  # 90 %


def test_labels_that_flip_too_fast() -> None:
    slow = [0, 0, 1, 1, 1, 0, 0, 0, 1, 1]  # flips at 2, 5, 8: seven frames from first to last
    fast = [0, 0, 0, 0, 0, 1, 0, 1, 1, 1]  # at 5, 6, 7
    edge = [0, 0, 0, 1, 1, 0, 0, 1, 1, 1]  # at 3, 5, 7: five frames
    lines = check([labelled(slow, id="slow"), labelled(fast, id="fast"), labelled(edge, id="edge")])
    assert len(lines) == 1 and "in 2 of 3 episodes (fast, edge)" in lines[0] and "flip 3 times" in lines[0]
    unknown = [0, 0, 0, -1, 1, -1, 0, -1, 1, 1]  # flips are noticed at 4, 6 and 8
    assert "flip" in check([labelled(unknown)])[0]


@pytest.mark.parametrize("kind", ["states", "images", "nothing"])
def test_success_before_the_first_motion(kind: str) -> None:
    def seen(pair: tuple[Episode, np.ndarray]) -> tuple[Episode, np.ndarray]:
        names = {"states": ["states"], "images": ["main_images"], "nothing": []}[kind]
        return replace(pair[0], observations={name: pair[0].observations[name] for name in names}), pair[1]

    late = [0, 0, 0, 1, 1, 1]
    good = seen(still(labelled(late, id="good", pixels=8), until=3))
    early = seen(still(labelled(late, id="early", pixels=8), until=4))
    reset = seen(labelled([1, 0, 0, 0, 1, 1], id="reset", pixels=8))
    lines = check([good] * 3 + [early, reset])
    wanted = "(reset)" if kind == "nothing" else "(early, reset)"
    assert len(lines) == 1 and "before anything has moved" in lines[0] and wanted in lines[0]


def test_inverted_labels() -> None:
    right, wrong = [0, 0, 0, 1, 1, 1], [0, 1, 1, 0, 0, 0]
    two = [labelled(wrong, id=f"w{i}") for i in range(2)]
    assert check([*two, *(labelled(right, id=f"r{i}") for i in range(2))]) == []  # as many are right
    (line,) = check([*two, labelled(right), labelled([0] * 6)])
    assert "inverted in 2 of 3 episodes (w0, w1)" in line
    # Progress, where it was recorded, counts more than time.
    episode, labels = labelled(wrong)
    falling = replace(episode, signals={"progress": np.linspace(1, 0, 6, dtype=np.float32)})
    assert check([(falling, labels)]) == []
    assert "inverted" in check([(falling, np.array(right, np.int8))])[0]
    assert "inverted" in check([(replace(episode, signals={}), labels)])[0]


def test_many_episodes_are_counted_and_three_are_named() -> None:
    (line,) = check([labelled([0, 0, 0, 1, 0, 1, 1, 1], id=f"e{i}") for i in range(7)])
    assert "in 7 of 7 episodes (e0, e1, e2 and 4 more)" in line
