"""Keys of a terminal: read one by one, and the terminal is as it was afterwards."""

import os
import pty
import termios
from collections.abc import Iterator

import pytest

from referee.errors import RefereeError
from referee.robots.keys import ScriptedKeys, TerminalKeys, plain_keys


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    ours, theirs = pty.openpty()
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


def test_keys_come_without_enter_and_the_terminal_is_put_back(terminal: tuple[int, int]) -> None:
    ours, theirs = terminal
    before = termios.tcgetattr(theirs)
    with TerminalKeys(theirs) as keys:
        assert not termios.tcgetattr(theirs)[3] & (termios.ICANON | termios.ECHO)
        assert termios.tcgetattr(theirs)[3] & termios.ISIG  # Ctrl-C still stops the program
        assert keys.read() == []
        os.write(ours, b"ca\x1b[Aq")  # an arrow key in between
        assert keys.read() == ["c", "a", "q"]
        assert keys.read() == []
    assert termios.tcgetattr(theirs) == before


def test_an_error_inside_puts_the_terminal_back_too(terminal: tuple[int, int]) -> None:
    _, theirs = terminal
    before = termios.tcgetattr(theirs)
    with pytest.raises(ZeroDivisionError), TerminalKeys(theirs):
        _ = 1 / 0
    assert termios.tcgetattr(theirs) == before


def test_no_terminal_and_reading_outside_are_refused(tmp_path) -> None:
    with (tmp_path / "file").open("w") as file, pytest.raises(RefereeError, match="start this in a terminal"):
        TerminalKeys(file.fileno()).__enter__()
    with pytest.raises(RefereeError, match="must be entered"):
        TerminalKeys(0).read()


def test_escape_alone_is_a_key() -> None:
    assert plain_keys("\x1b") == ["\x1b"]
    assert plain_keys("a\x1bOPb\x1b[15~c") == ["a", "b", "c"]


def test_scripted_keys() -> None:
    with ScriptedKeys(["c", "", "ab"]) as keys:
        assert [keys.read() for _ in range(4)] == [["c"], [], ["a", "b"], []]
