"""Keys that lead an arm, beside keys that mean something else."""

import numpy as np
import pytest

from referee.labels.keyboard import KeyboardLabels
from referee.robots.clock import SimulatedClock
from referee.robots.keys import ScriptedKeys
from referee.robots.spacemouse import InputError
from referee.robots.steering import CLOSES, MOVES, OPENS, KeySteering, open_steering


def hand(*presses: str) -> KeySteering:
    return KeySteering(ScriptedKeys(presses), SimulatedClock())


@pytest.mark.parametrize(
    ("pressed", "moved"),
    [
        ("i", [1, 0, 0]), ("k", [-1, 0, 0]), ("j", [0, 1, 0]), ("l", [0, -1, 0]), ("o", [0, 0, 1]), ("m", [0, 0, -1]),
        ("iii", [1, 0, 0]), ("io", [1, 0, 1]), ("ik", [0, 0, 0]), ("I", [0.2, 0, 0]), ("MMM", [0, 0, -0.2]),
        ("", [0, 0, 0]),
    ],
)  # fmt: skip
def test_keys_move_the_hand(pressed: str, moved: list[float]) -> None:
    steering = hand(pressed)
    np.testing.assert_allclose(steering.read().translation, moved)
    assert not steering.read().active  # a key moves it once: nobody hears that it is let go of


def test_keys_for_the_gripper() -> None:
    steering = hand("g", "h")
    assert steering.read().left and steering.read().right


def test_other_keys_are_left_to_others_in_their_order() -> None:
    steering = hand("ci", "aq", "")
    with steering.others as others:
        assert steering.read().translation[0] == 1
        assert others.read() == ["c", "a", "q"]
        assert others.read() == [] and not steering.read().active


def test_no_key_of_a_person_who_labels_steers() -> None:
    labels = KeyboardLabels(who="me")
    labels.begin("one")
    labels.see()
    for key in (*MOVES, *map(str.upper, MOVES), CLOSES, OPENS):
        assert labels.press(key) is None
    assert not {"r", "q"} & {*MOVES, CLOSES, OPENS}


def test_without_a_terminal_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr("sys.stdin", (tmp_path / "no_terminal").open("w+"))
    with pytest.raises(InputError, match=r"start this in a terminal.*runner.background.enabled=false"):
        open_steering(SimulatedClock())
