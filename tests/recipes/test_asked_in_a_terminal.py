"""A person is asked in a real terminal: nothing is drawn over the question, and Ctrl-C and Ctrl-D leave it."""

from __future__ import annotations

import os
import pty
import re
import select
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.recipes.test_refinement import SMALL

from referee.cli import main
from referee.labels.log import LabelLog
from referee.recipes.refine import refine as refine_recipe
from referee.refine.book import Book

QUESTION = b"successes: "
RESUME = b"go on with runner.resume_dir="
COLOURS = re.compile(rb"\x1b\[[\d;]*m")


class Typist:
    """A program in a terminal of its own, and somebody who types into it."""

    def __init__(self, *arguments: str) -> None:
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.execv(sys.executable, [sys.executable, "-m", "referee.cli", *arguments])
        self.seen = b""
        self._read = 0

    def wait_for(self, text: bytes, seconds: float = 120) -> bytes:
        """All that was printed since the last time, up to a text."""
        end = time.monotonic() + seconds
        while (place := self.seen.find(text, self._read)) < 0:
            assert time.monotonic() < end, self.seen.decode()
            if not self._more():
                raise AssertionError(f"it ended before {text!r}: {self.seen.decode()}")
        found, self._read = self.seen[self._read : place + len(text)], place + len(text)
        return found

    def press(self, keys: bytes) -> None:
        os.write(self._terminal, keys)

    def end(self) -> int:
        """Its exit code, once it has printed everything."""
        while self._more():
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def hang_up(self) -> None:
        os.close(self._terminal)

    def _more(self) -> bool:
        if not select.select([self._terminal], [], [], 0.5)[0]:
            return True
        try:
            found = os.read(self._terminal, 65536)
        except OSError:  # the other end is closed
            return False
        self.seen = COLOURS.sub(b"", self.seen + found)
        return bool(found)


@pytest.fixture
def run(refinable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Typist]:
    """A training that asks after every iteration."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    settings = [
        "reward.use_reward_model=true", f"reward.model.model_path={refinable}", "reward.refine.labeller=terminal",
        f"runner.logger.log_path={tmp_path / 'run'}", "runner.logger.logger_backends=[]", "runner.max_steps=144",
    ]  # fmt: skip
    typist = Typist("run", "panda_ppo_mlp", *SMALL, *settings)
    yield typist
    typist.hang_up()


def answers(run: Path) -> list[list[int]]:
    return [sheet.answers.tolist() for sheet in Book(run / "refine" / "asked", ("front", "side")).sheets()]


@pytest.mark.slow
def test_a_question_stands_alone_and_may_be_left_by_ctrl_d_and_ctrl_c(run: Typist, tmp_path: Path) -> None:
    asked = run.wait_for(QUESTION)
    assert "12 frames are in" in asked.decode() and asked.endswith(b"\n" + QUESTION), "the question has its own line"
    time.sleep(1.2)  # the bar is drawn twice a second
    run.press(b"1 3\n")
    waited = run.wait_for(QUESTION)
    before_newline = waited.split(b"\n")[0]
    assert b"steps" not in before_newline and b"\x1b[2K" not in before_newline, "nothing was drawn while one typed"
    run.press(b"\x04")  # Ctrl-D
    run.wait_for(b"no answer")
    run.wait_for(QUESTION)
    run.press(b"\x03")  # Ctrl-C
    left = run.wait_for(RESUME)
    assert b"finishing this iteration and saving" in left and b"\nno answer" in left and b"stopped at step 144" in left
    assert run.end() == 130 and b"Traceback" not in run.seen
    found = answers(tmp_path / "run")
    assert found[0] == [1, 0, 1] + [0] * 9 and all(set(each) == {-1} for each in found[1:])


@pytest.mark.slow
def test_refine_run_is_left_by_ctrl_c_and_gone_on_with(refinable: Path, tmp_path: Path, recorded: Path) -> None:
    out = tmp_path / "better"
    command = ["refine", "run", str(refinable), str(recorded), "--budget", "24", "--ask", "12", "--steps", "2",
               "--out", str(out)]  # fmt: skip
    first = Typist(*command)
    first.wait_for(QUESTION)
    first.press(b"1-3\n")
    first.wait_for(QUESTION)
    first.press(b"\x03")
    assert first.end() == 130 and b"Traceback" not in first.seen and b"the same command goes on" in first.seen
    assert [set(sheet.answers) for sheet in Book(out / "asked", ("front", "side")).sheets()] == [{0, 1}, {-1}]
    second = Typist(*command)
    assert b"24 frames were asked about" in second.wait_for(QUESTION)
    second.press(b"u\n")  # nothing was typed here before
    second.wait_for(b"no answer to take back")
    second.wait_for(QUESTION)
    second.press(b"5\n")
    assert second.end() == 0 and b"Traceback" not in second.seen
    assert [set(sheet.answers) for sheet in Book(out / "asked", ("front", "side")).sheets()] == [{0, 1}, {0, 1}]


def test_answers_that_came_meanwhile_are_learned_first(
    refinable: Path, tmp_path: Path, recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "better"
    command = ["refine", "run", str(refinable), str(recorded), "--ask", "12", "--steps", "2", "--labeller", "log",
               "--out", str(out)]  # fmt: skip
    assert main([*command, "--budget", "24"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "no model was trained: 0 of 24 frames are answered" in said and "was better" not in said
    book = Book(out / "asked", ("front", "side"))
    log = LabelLog.of(book.store)
    for sheet in book.sheets():
        for frame in range(len(sheet)):
            log.append(sheet.id, bool(frame % 2), source="web", frames=frame)
    assert main([*command, "--budget", "36"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "24 frames were asked about" in said and "held out: loss 0." in said
    assert "no model was trained" not in said
    again = Book(out / "asked", ("front", "side"))
    assert again.asked == 36
    images = [image.tobytes() for sheet in again.sheets() for image in sheet.images]
    assert len(set(images)) == len(images), "nothing is asked twice"
    assert main([*command, "--budget", "36"]) == 0
    assert "held out: loss 0." not in capsys.readouterr().out, "nothing new, so nothing is learned again"
    assert main(["refine", "log", str(out)]) == 0
    fooled, missed = _fooled_and_missed(capsys.readouterr().out)
    assert fooled + missed > 0, "answers that came after their round count"


def _fooled_and_missed(table: str) -> tuple[int, int]:
    rows = [line.split() for line in table.splitlines() if re.match(r"\s*\d+\s+12\s", line)]
    return sum(int(row[2]) for row in rows), sum(int(row[3]) for row in rows)


@pytest.mark.parametrize("budget", ["0", "1", "-3"])
def test_a_budget_that_asks_nobody_is_refused(
    refinable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], budget: str
) -> None:
    command = ["refine", "run", str(refinable), str(tmp_path), "--labeller", "log", "--out", str(tmp_path / "better")]
    assert main([*command, f"--budget={budget}"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1 and not (tmp_path / "better").exists()


def test_terminal_mode_asks_about_last_states(
    refinable: Path, tmp_path: Path, recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from rich.console import Console

    from referee.episodes import EpisodeStore
    from referee.refine.loop import RefineOptions

    options = RefineOptions(budget=4, ask=2, steps=2)
    refine_recipe(refinable, recorded, tmp_path / "o", Console(), labeller="log", options=options, mode="terminal")
    ends = {episode.view("front")[-1].tobytes() for episode in EpisodeStore(recorded)}
    asked = [image[0].tobytes() for sheet in Book(tmp_path / "o" / "asked", ("front", "side")).sheets()
             for image in sheet.images]  # fmt: skip
    assert len(asked) == 4 and set(asked) <= ends
