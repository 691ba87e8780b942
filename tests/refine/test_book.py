"""Questions and answers survive, can be read by anybody, and the last word holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from referee.datasets.source import resolve
from referee.episodes import EpisodeStore
from referee.errors import RefereeError
from referee.labels.log import LabelLog
from referee.refine.book import MINED, Book, Sheet
from referee.refine.labellers import Log, Terminal, Truth, parse, save_sheet


def sheet(count: int = 4, *, step: int = 100, views: int = 2) -> Sheet:
    random = np.random.default_rng(step)
    images = random.integers(0, 255, (count, views, 8, 8, 3)).astype(np.uint8)
    reasons = tuple(["random", "firing", "unsure", "strange"][i % 4] for i in range(count))
    return Sheet(images, random.random(count, dtype=np.float32), reasons, step, 3)


def test_a_book_is_an_episode_store_and_a_label_log(tmp_path: Path) -> None:
    book = Book(tmp_path, ("front", "side"), task="PickCube")
    kept = book.add(sheet())
    book.answer(kept, [True, None, False, True], source="keyboard", who="ann")
    store = EpisodeStore(tmp_path, create=False)
    episode = next(iter(store))
    assert episode.meta.source == "asked" and episode.meta.cameras == ("front", "side") and episode.success is None
    assert resolve(episode, LabelLog.of(store)).tolist() == [1, -1, 0, 1]


@pytest.mark.parametrize("views", [1, 2, 3])
def test_another_process_finds_all_of_it(tmp_path: Path, views: int) -> None:
    cameras = ("a", "b", "c")[:views]
    book, asked = Book(tmp_path, cameras), sheet(views=views)
    kept = book.add(asked)
    book.answer(kept, [True, False, None, None], source="web", who="ann")
    found = Book(tmp_path, cameras).sheets()[0]
    assert (found.images == asked.images).all() and (found.probability == asked.probability).all()
    assert (found.reasons, found.step, found.version) == (asked.reasons, 100, 3)
    assert found.answers.tolist() == [1, 0, -1, -1]


def test_answers_of_other_tools_are_heard_and_the_last_word_holds(tmp_path: Path) -> None:
    book = Book(tmp_path, ("front", "side"))
    kept = book.add(sheet())
    elsewhere = LabelLog.of(EpisodeStore(tmp_path))
    elsewhere.append(kept.id, True, source="web", frames=(1, 3))
    elsewhere.append(kept.id, False, source="web", frames=2)
    assert book.sheets()[0].answers.tolist() == [-1, 1, 0, -1]
    elsewhere.undo(source="web")
    assert book.sheets()[0].answers.tolist() == [-1, 1, 1, -1]
    elsewhere.append(kept.id, False, source="web")
    assert book.sheets()[0].answers.tolist() == [0, 0, 0, 0]


def test_what_a_resumed_run_asks_again_is_left_out(tmp_path: Path) -> None:
    book = Book(tmp_path, ("front", "side"))
    for step in (100, 200, 300):
        book.add(sheet(step=step))
    again = Book(tmp_path, ("front", "side"))
    again.rewind(200)
    assert [each.step for each in again.sheets()] == [100, 200] and len(again.store) == 3
    known = Book(tmp_path, ("front", "side"))
    known.rewind(300, known.ids[::2])
    assert [each.step for each in known.sheets()] == [100, 300]


def test_mined_frames_cost_nothing(tmp_path: Path) -> None:
    book = Book(tmp_path, ("front", "side"))
    book.add(sheet(6))
    book.add(Sheet(sheet().images, np.zeros(4, np.float32), (MINED,) * 4, 0, 0))
    assert book.asked == 6


def test_wrong_numbers_of_frames_are_refused(tmp_path: Path) -> None:
    book = Book(tmp_path, ("front", "side"))
    with pytest.raises(RefereeError, match="2 or more"):
        book.add(sheet(1))
    kept = book.add(sheet())
    with pytest.raises(RefereeError, match="3 answers to 4 questions"):
        book.answer(kept, [True, False, None], source="web", who="ann")


def test_the_simulation_answers(tmp_path: Path) -> None:
    book = Book(tmp_path, ("front", "side"))
    kept = book.add(sheet())
    Truth().ask(book, kept, np.array([True, False, False, True]))
    assert book.sheets()[0].answers.tolist() == [1, 0, 0, 1]
    with pytest.raises(RefereeError, match="terminal or log"):
        Truth().ask(book, kept, None)


def test_a_person_answers_in_the_terminal_and_may_mistype(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book = Book(tmp_path, ("front", "side"))
    kept = book.add(sheet())
    typed = iter(["1 9", "one", "1, 3-4 ?3"])
    Terminal(read=lambda _: next(typed)).ask(book, kept, None)
    assert book.sheets()[0].answers.tolist() == [1, 0, -1, 1]
    said = capsys.readouterr().out
    assert "9 is not among 1..4" in said and "'one' is no number" in said
    assert (tmp_path / "sheets" / f"{kept.id}.png").exists()


def test_the_answer_before_may_be_taken_back(tmp_path: Path) -> None:
    book = Book(tmp_path, ("front", "side"))
    first, second = book.add(sheet()), book.add(sheet(step=200))
    typed = iter(["1 2", "u", "?1 3", "u", "?1 4", "2"])
    person = Terminal(read=lambda _: next(typed))
    person.ask(book, first, None)
    assert book.sheets()[0].answers.tolist() == [1, 1, 0, 0]
    person.ask(book, second, None)
    assert [each.answers.tolist() for each in book.sheets()] == [[-1, 0, 0, 1], [0, 1, 0, 0]]


def test_the_end_of_input_is_no_answer(tmp_path: Path) -> None:
    def over(question: str) -> str:
        raise EOFError

    book = Book(tmp_path, ("front", "side"))
    kept = book.add(sheet())
    Terminal(read=over).ask(book, kept, None)
    assert (book.sheets()[0].answers == -1).all()


def test_without_a_terminal_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    with pytest.raises(RefereeError, match="use log"):
        Terminal()


def test_the_log_only_draws(tmp_path: Path) -> None:
    book = Book(tmp_path, ("front", "side"))
    kept = book.add(sheet())
    Log().ask(book, kept, np.ones(4, bool))
    assert (book.sheets()[0].answers == -1).all() and (tmp_path / "sheets" / f"{kept.id}.png").exists()


@pytest.mark.parametrize(
    ("text", "values"),
    [("", [False] * 5), ("2", [False, True, False, False, False]), ("1-5", [True] * 5),
     ("?1-2,4", [None, None, False, True, False])],
)  # fmt: skip
def test_typed_answers(text: str, values: list[bool | None]) -> None:
    assert parse(text, 5) == values


@pytest.mark.parametrize("text", ["0", "6", "3-2", "x", "-1", "1--2"])
def test_typed_nonsense(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(text, 5)


def test_the_picture_shows_every_frame(tmp_path: Path) -> None:
    save_sheet(tmp_path / "a.png", sheet(8))
    width, height = Image.open(tmp_path / "a.png").size
    assert (width, height) == (6 * 2 * 160, 2 * 160)  # six columns of two views, two rows
