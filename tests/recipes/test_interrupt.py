"""Whoever ends a run finds it saved, and the terminal as it was."""

from __future__ import annotations

import io
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from rich.console import Console

from referee.episodes import EpisodeStore
from referee.runs.interrupt import Interrupt


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_is_a_wish_and_the_second_stops_at_once(number: signal.Signals) -> None:
    before, said = signal.getsignal(number), io.StringIO()
    with Interrupt(Console(file=said), "saving") as interrupt:
        assert not interrupt.wanted
        os.kill(os.getpid(), number)
        assert interrupt.wanted and said.getvalue() == "saving; Ctrl-C again to stop at once\n"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) == before


def test_on_a_terminal_it_does_not_write_into_a_bar() -> None:
    said = io.StringIO()
    with Interrupt(Console(file=said, force_terminal=True, color_system=None), "saving"):
        os.kill(os.getpid(), signal.SIGINT)
    assert said.getvalue().startswith("\nsaving;")


def test_nohup_is_respected() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupt(Console(file=io.StringIO())) as interrupt:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not interrupt.wanted
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP, "closed"])
def test_labelling_that_is_ended_is_saved(tmp_path: Path, how: signal.Signals | str) -> None:
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    command = [sys.executable, "-m", "referee.cli", "run", "realworld_collect_dataset", "robot.driver=twin",
               f"runner.logger.log_path={tmp_path / 'run'}"]  # fmt: skip
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=lambda: _own(theirs))
    _hear(ours, b"success: 0/50")
    os.write(ours, b"A")
    _hear(ours, b"A: fail")
    if how == "closed":
        os.close(theirs)
        os.close(ours)
    else:
        assert not termios.tcgetattr(theirs)[3] & termios.ECHO
        process.send_signal(how)  # type: ignore[arg-type]
    end = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < end:
        if how != "closed" and select.select([ours], [], [], 0.1)[0]:
            os.read(ours, 4096)
        time.sleep(0.05)
    assert process.poll() is not None
    assert len(EpisodeStore(tmp_path / "run" / "recording", create=False)) == 1
    assert "stopped by hand" in (tmp_path / "run" / "run_collect_process.log").read_text()
    if how != "closed":
        assert termios.tcgetattr(theirs) == before
        os.close(theirs)
        os.close(ours)


def _own(terminal: int) -> None:
    """A session with this terminal, as a shell has."""
    import fcntl

    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


def _hear(terminal: int, wanted: bytes) -> None:
    heard, end = b"", time.monotonic() + 60
    while wanted not in heard:
        assert time.monotonic() < end, heard
        if select.select([terminal], [], [], 0.5)[0]:
            heard += os.read(terminal, 4096)
