"""Keys of a terminal as a hand: some of them move the arm, the others are left to whoever else listens."""

from __future__ import annotations

from types import TracebackType

import numpy as np

from referee.errors import RefereeError
from referee.robots.clock import Clock
from referee.robots.keys import KeySource, TerminalKeys
from referee.robots.spacemouse import InputError, Motion

MOVES = {"i": (1, 0, 0), "k": (-1, 0, 0), "j": (0, 1, 0), "l": (0, -1, 0), "o": (0, 0, 1), "m": (0, 0, -1)}
"""Forward and back, left and right, up and down; none of them is a key of those who label."""
CLOSES, OPENS = "g", "h"
FINE = 0.2
"""Of a whole step, with Shift."""
HELP = "i/k forward, back | j/l left, right | o/m up, down (with Shift: finely) | g closes, h opens the gripper"


class KeySteering:
    """Takes the place of a SpaceMouse. A terminal tells no release: a key moves the hand once, held down on and on.

    `others` gives the keys that do not steer, so that one terminal serves both.
    """

    def __init__(self, source: KeySource, clock: Clock, *, own: bool = False) -> None:
        """own: the source is entered here and left by `close`; else somebody else does so."""
        self._source, self._clock, self._own = source, clock, own
        self._steer: list[str] = []
        self._rest: list[str] = []
        self.others = OtherKeys(self, source)
        if own:
            source.__enter__()

    def read(self) -> Motion:
        """See InputDevice: what was pressed since the last call."""
        self._sort()
        pressed, self._steer = self._steer, []
        move = np.zeros(3)
        for key in pressed:
            move += np.array(MOVES.get(key.lower(), (0, 0, 0))) * (FINE if key.isupper() else 1.0)
        fine = bool(pressed) and all(key.isupper() for key in pressed)
        limit = FINE if fine else 1.0
        return Motion(
            np.clip(move, -limit, limit), left=CLOSES in pressed, right=OPENS in pressed, time=self._clock.now()
        )

    def close(self) -> None:
        """See InputDevice."""
        if self._own:
            self._source.__exit__(None, None, None)

    def take_others(self) -> list[str]:
        """The keys that do not steer, since the last call."""
        self._sort()
        found, self._rest = self._rest, []
        return found

    def _sort(self) -> None:
        for key in self._source.read():
            steers = key.lower() in MOVES or key in (CLOSES, OPENS)
            (self._steer if steers else self._rest).append(key)


class OtherKeys:
    """The keys of a terminal that do not steer: a `KeySource`."""

    def __init__(self, shared: KeySteering, source: KeySource) -> None:
        self._shared, self._source = shared, source

    def read(self) -> list[str]:
        """See KeySource."""
        return self._shared.take_others()

    def __enter__(self) -> OtherKeys:
        self._source.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._source.__exit__(kind, error, trace)


def open_steering(clock: Clock) -> KeySteering:
    """The keys of the terminal of this process."""
    try:
        return KeySteering(TerminalKeys(), clock, own=True)
    except (RefereeError, ValueError) as error:  # standard input may be closed
        raise InputError(
            f"teleoperator=keyboard: {error}; a training that acts in a process of its own has none: "
            "set runner.background.enabled=false"
        ) from error
