"""Labels by key: what each press says about which frames. No device, no file: presses in, words out.

    c   this frame is a success     C   success from this frame on        u   take the last word back
    a   this frame is a failure     A   failure from this frame on        r   end this episode, start the next
                                    x   nothing is said from here on      q   stop, and make the dataset

Held down, `c` and `a` label frame after frame. The last word about a frame holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from referee.labels.log import UNKNOWN, Word

SOURCE = "keyboard"
BAR = (28, 32)
"""Places of the two bars where there is room."""
FRAME = {"c": True, "a": False}
STATE: dict[str, bool | None] = {"C": True, "A": False, "x": None, " ": None}
UNDO = ("u", "\x7f", "\b")
END = ("r",)
STOP = ("q",)
WORDS = {True: "success", False: "fail", None: "nothing"}


@dataclass
class _Entry:
    """A word, and its number in the log once it is written."""

    word: Word
    number: int | None = None


@dataclass(frozen=True)
class Said:
    """What became of a press."""

    text: str
    """For the log of the run."""
    ends: bool = False
    """The episode ends here."""
    stops: bool = False
    """The whole run ends here."""
    value: bool | None = None
    """What was said about the frame, if anything."""


class KeyboardLabels:
    """The words of one person. `begin` an episode, `see` each frame, `press` keys; `take` what is to be written.

    A word is kept in memory and in `take` until it has its number in the log, so that it can be undone either way.
    """

    def __init__(self, *, who: str = "", ends_on: Iterable[str] = ()) -> None:
        """ends_on: of `success` and `fail`, those labels of a single frame that end the episode as well."""
        self._who, self._ends_on = who, frozenset(ends_on)
        self._entries: list[_Entry] = []
        self._unwritten: list[_Entry] = []
        self._undone: list[Word] = []
        self._labels: dict[str, list[int]] = {}
        self._episode = ""
        self.state: bool | None = None
        """What is said of frames as they come: success, failure, or nothing."""

    def remember(self, lengths: dict[str, int], words: Iterable[Word]) -> None:
        """Go on after what was said before, by anybody, about episodes with so many frames."""
        self._labels = {episode: [UNKNOWN] * count for episode, count in lengths.items()}
        self._entries = [_Entry(word, word.number) for word in words if word.episode in lengths]
        for episode in lengths:
            self._resolve(episode)

    def begin(self, episode: str) -> None:
        """Another episode; nothing is said of it yet."""
        self._episode, self.state = episode, None
        self._labels[episode] = []

    def see(self) -> None:
        """A further frame, of which is said what is said from before on."""
        self._labels[self._episode].append(_number(self.state))

    @property
    def counts(self) -> tuple[int, int]:
        """Frames that are labelled success, and failure, in all episodes."""
        return tuple(sum(each.count(value) for each in self._labels.values()) for value in (1, 0))  # type: ignore[return-value]

    def labels(self, episode: str) -> np.ndarray:
        """int8[n]: what is said of the frames of an episode."""
        return np.array(self._labels[episode], np.int8)

    def press(self, key: str) -> Said | None:
        """What a key says about the newest frame; None for a key without meaning."""
        frame = len(self._labels[self._episode]) - 1
        if key in FRAME:
            return self._frame(frame, FRAME[key])
        if key in STATE:
            return self._from_here(frame, STATE[key])
        if key in UNDO:
            return self._undo()
        if key in END:
            return Said("end of the episode", ends=True)
        return Said("stop", stops=True) if key in STOP else None

    def take(self) -> tuple[list[Word], list[Word]]:
        """Words to write, and words that take others back; then call `wrote`."""
        return [entry.word for entry in self._unwritten], list(self._undone)

    def wrote(self, words: list[Word], numbers: list[int], undone: list[Word]) -> None:
        """These words are on disk, under these numbers, and those that took others back."""
        number_of = {id(word): number for word, number in zip(words, numbers, strict=True)}
        waiting = {id(entry.word) for entry in self._unwritten}
        self._undone = [word for word in self._undone if all(word is not each for each in undone)]
        # What was undone while it was being written is in the log now, and has to be taken back there.
        self._undone += [self._taking_back(word, number_of[id(word)]) for word in words if id(word) not in waiting]
        for entry in self._unwritten:
            entry.number = number_of.get(id(entry.word))
        self._unwritten = [entry for entry in self._unwritten if entry.number is None]

    def _frame(self, frame: int, value: bool) -> Said:
        ends = WORDS[value] in self._ends_on
        if self._labels[self._episode][frame] == int(value):
            return Said(f"frame {frame} is {WORDS[value]} already", ends=ends)
        self._add(frame, value)
        return Said(f"frame {frame}: {WORDS[value]}", ends=ends, value=value)

    def _from_here(self, frame: int, value: bool | None) -> Said:
        if self.state is value:
            return Said(f"{WORDS[value]} is said already")
        self._add((frame, None), value)
        return Said(f"frame {frame} and on: {WORDS[value]}", value=value)

    def _add(self, frames: int | tuple[int, None], value: bool | None) -> None:
        entry = _Entry(Word(self._episode, value, frames, SOURCE, self._who))
        self._entries.append(entry)
        self._unwritten.append(entry)
        self._labels[self._episode][-1] = _number(value)
        if isinstance(frames, tuple):
            self.state = value

    def _undo(self) -> Said:
        mine = [entry for entry in self._entries if (entry.word.source, entry.word.who) == (SOURCE, self._who)]
        if not mine:
            return Said("nothing to take back")
        entry = mine[-1]
        self._entries = [each for each in self._entries if each is not entry]
        if entry.number is not None:
            self._undone.append(self._taking_back(entry.word, entry.number))
        self._unwritten = [each for each in self._unwritten if each is not entry]
        self._resolve(entry.word.episode)
        words = [each.word for each in self._entries if each.word.episode == self._episode]
        self.state = next((word.value for word in reversed(words) if isinstance(word.frames, tuple)), None)
        return Said(f"taken back: frames {entry.word.frames}: {WORDS[entry.word.value]}")

    def _taking_back(self, word: Word, number: int) -> Word:
        return replace(Word(word.episode, source=SOURCE, who=self._who), undo=number)

    def _resolve(self, episode: str) -> None:
        labels = self._labels[episode]
        labels[:] = [UNKNOWN] * len(labels)
        for entry in self._entries:
            word = entry.word
            if word.episode == episode:
                start, stop = _span(word, len(labels))
                labels[start:stop] = [_number(word.value)] * len(labels[start:stop])


def progress_line(success: int, wanted_success: int, fail: int, wanted_fail: int, *, columns: int = 120) -> str:
    """The two bars, as `success: 12/50 [###---] fail: 28/150 [###---]`, in at most so many columns."""
    words = (f"success: {success}/{wanted_success} ", f"fail: {fail}/{wanted_fail} ")
    room = columns - sum(map(len, words)) - len("[] []") - 1
    first = min(BAR[0], max(4, room * BAR[0] // sum(BAR)))
    second = min(BAR[1], max(4, room - first))
    return f"{words[0]}[{_bar(success, wanted_success, first)}] {words[1]}[{_bar(fail, wanted_fail, second)}]"


def _bar(count: int, wanted: int, places: int) -> str:
    full = places if count >= wanted else count * places // wanted
    return "#" * full + "-" * (places - full)


def _number(value: bool | None) -> int:
    return UNKNOWN if value is None else int(value)


def _span(word: Word, length: int) -> tuple[int, int]:
    frames = word.frames
    if frames is None:
        return 0, length
    if isinstance(frames, int):
        return frames, frames + 1
    return frames[0], length if frames[1] is None else frames[1]
