"""The log of labels: the last word holds, an undo is a word, and no kill can break it."""

import json
import multiprocessing
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from episodes.examples import make_episode
from referee.episodes import Episode, EpisodeError, EpisodeStore
from referee.labels.log import LabelLog, Word


def unlabelled(steps: int = 9, **meta: object) -> Episode:
    return replace(make_episode(steps, pixels=0, id="e", **meta), success=None)


def test_the_last_word_holds_over_the_recorded_truth(tmp_path: Path) -> None:
    log, episode = LabelLog(tmp_path / "labels.jsonl"), make_episode(5, pixels=0, id="e", success_from=3)
    assert log.resolve(episode).tolist() == [0, 0, 0, 1, 1, 1] and log.resolve(episode).dtype == np.int8
    log.append("e", False, source="web", frames=4)
    assert log.resolve(episode).tolist() == [0, 0, 0, 1, 0, 1]
    log.append("e", True, source="rule", frames=(1, 3))
    log.append("e", None, source="web", frames=(2, None))
    assert log.resolve(episode).tolist() == [0, 1, -1, -1, -1, -1]
    log.append("e", True, source="web")
    log.append("other", False, source="web")
    assert log.resolve(episode).tolist() == [1] * 6
    assert LabelLog(tmp_path / "labels.jsonl").resolve(episode).tolist() == [1] * 6


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    log = LabelLog(tmp_path / "labels.jsonl")
    log.append("e", np.bool_(True), source="rule", frames=(np.int64(1), np.int64(3)))  # type: ignore[arg-type]
    log.append("e", np.bool_(False), source="rule", frames=np.int64(0))  # type: ignore[arg-type]
    assert LabelLog(log.path).resolve(unlabelled(3)).tolist() == [0, 1, 1, -1]


def test_without_words_nothing_is_known(tmp_path: Path) -> None:
    log = LabelLog(tmp_path / "none" / "labels.jsonl")
    assert log.resolve(unlabelled(2)).tolist() == [-1, -1, -1]
    assert not log.path.exists()


def test_every_word_says_who_and_when(tmp_path: Path) -> None:
    log = LabelLog(tmp_path / "labels.jsonl")
    assert log.append("e", True, source="keyboard", frames=(3, 7), who="ada") == 0
    line = json.loads(log.path.read_text())
    when, checksum = line.pop("when"), line.pop("checksum")
    assert re.fullmatch("crc32:[0-9a-f]{8}", checksum)
    assert line == {"episode": "e", "frames": [3, 7], "value": True, "source": "keyboard", "who": "ada"}
    assert when.endswith("+00:00") and when[10] == "T"
    assert Word.from_json(log.words[0].to_json(), 0) == log.words[0]


def test_an_undo_takes_back_the_last_word_of_the_same_hand(tmp_path: Path) -> None:
    log, episode = LabelLog(tmp_path / "labels.jsonl"), unlabelled(2)
    log.append("e", True, source="keyboard", who="ada", frames=0)  # 0
    log.append("e", True, source="keyboard", who="ada", frames=1)  # 1
    log.append("e", True, source="web", who="ada", frames=2)  # 2
    log.append("e", False, source="keyboard", who="bob", frames=0)  # 3
    assert log.undo(source="keyboard", who="ada") == 4  # takes back 1
    assert log.resolve(episode).tolist() == [0, -1, 1]
    assert log.undo(source="keyboard", who="ada") == 5  # takes back 0
    assert log.resolve(episode).tolist() == [0, -1, 1]
    with pytest.raises(EpisodeError, match="ada has no label from keyboard"):
        log.undo(source="keyboard", who="ada")
    assert log.undo(3, source="web", who="eve") == 6
    assert log.resolve(episode).tolist() == [-1, -1, 1]
    with pytest.raises(EpisodeError, match="no word 3"):
        log.undo(3, source="web", who="eve")
    log.undo(5, source="web", who="eve")  # an undo is a word too
    assert log.resolve(episode).tolist() == [1, -1, 1]
    assert len(log.path.read_text().splitlines()) == 8  # nothing is ever removed
    assert LabelLog(log.path).resolve(episode).tolist() == [1, -1, 1]


def test_words_given_live_are_moved_by_the_reaction_time(tmp_path: Path) -> None:
    log = LabelLog(tmp_path / "labels.jsonl", offset_seconds=0.3)
    log.append("e", True, source="keyboard", frames=5)
    assert np.flatnonzero(log.resolve(unlabelled(fps=10.0)) == 1).tolist() == [2]  # 5 - 0.3 s × 10/s
    log.append("e", True, source="web", frames=9)  # not live: that very frame
    log.append("e", False, source="keyboard", frames=1)  # 1 - 3 is before the start
    log.append("e", True, source="keyboard", frames=(7, 9))
    assert log.resolve(unlabelled(fps=10.0)).tolist() == [0, -1, 1, -1, 1, 1, -1, -1, -1, 1]
    log.append("e", False, source="keyboard", frames=(8, None))  # held to the end, so it ends there
    assert log.resolve(unlabelled(fps=10.0)).tolist() == [0, -1, 1, -1, 1, 0, 0, 0, 0, 0]
    with pytest.raises(EpisodeError, match="no fps"):
        log.resolve(unlabelled())
    with pytest.raises(EpisodeError, match="offset_seconds"):
        LabelLog(log.path, offset_seconds=-1)


def test_labels_of_frames_that_are_not_there_are_refused(tmp_path: Path) -> None:
    log = LabelLog(tmp_path / "labels.jsonl")
    log.append("e", True, source="web", frames=9)
    assert log.resolve(unlabelled(9))[9] == 1
    with pytest.raises(EpisodeError, match=r"word 0 is about frames 9 .* which has 9.*undo\(0\)"):
        log.resolve(unlabelled(8))
    log.undo(0, source="web")
    assert log.resolve(unlabelled(8)).tolist() == [-1] * 9


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        (Word("", True), "names no episode"),
        (Word("e", True, source="guess"), "source is 'guess'"),
        (Word("e", 1), "value is 1"),  # type: ignore[arg-type]
        (Word("e", True, -1), "frames is -1"),
        (Word("e", True, True), "frames is True"),
        (Word("e", True, (3, 3)), r"frames is \(3, 3\)"),
    ],
)
def test_a_word_that_makes_no_sense_is_refused(tmp_path: Path, word: Word, reason: str) -> None:
    log = LabelLog(tmp_path / "labels.jsonl")
    with pytest.raises(EpisodeError, match=reason):
        log.extend([Word("e", True), word])
    assert not log.path.exists() or not log.path.read_text()


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_torn_last_line_is_ignored_and_healed(tmp_path: Path, cut: int, caplog: pytest.LogCaptureFixture) -> None:
    log, path = LabelLog(tmp_path / "labels.jsonl"), tmp_path / "labels.jsonl"
    log.append("e", True, source="web", frames=0)
    log.append("e", True, source="web", frames=1)
    path.write_bytes(path.read_bytes()[:-cut])
    again = LabelLog(path)
    assert len(again.words) == 1 and "cut off" in caplog.text
    # One that only lacks the end of its line is whole, and is kept.
    assert again.append("e", True, source="web", frames=2) == (2 if cut == 1 else 1)
    assert again.resolve(unlabelled(2)).tolist() == [1, 1 if cut == 1 else -1, 1]
    caplog.clear()
    assert LabelLog(path).resolve(unlabelled(2)).tolist() == [1, 1 if cut == 1 else -1, 1] and not caplog.text


def test_a_line_of_nonsense_is_skipped_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text('{"episode":"e","value":true,"frames":0,"source":"web"}\n[1\n{"episode":"e","value":"yes"}\n')
    log = LabelLog(path)
    assert len(log.words) == 1 and caplog.text.count("is not a label") == 2
    assert log.append("e", True, source="web", frames=1) == 3
    log.undo(3, source="web")
    assert LabelLog(path).resolve(unlabelled(1)).tolist() == [1, -1]
    assert "[1" in path.read_text()


def test_a_store_has_one_log(tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path)
    id = store.append(replace(make_episode(2, pixels=0), success=None))
    LabelLog.of(store).append(id, True, source="web", frames=(1, None))
    assert LabelLog(tmp_path / "labels.jsonl").resolve(store.read(id)).tolist() == [-1, 1, 1]
    assert EpisodeStore(tmp_path).check() == {}


frames = st.none() | st.integers(0, 5) | st.tuples(st.integers(0, 2), st.none() | st.integers(3, 6))
said = st.tuples(st.just("say"), st.sampled_from([True, False, None]), frames, st.sampled_from("ab"))
undone = st.tuples(st.just("undo"), st.none() | st.integers(0, 12), st.none(), st.sampled_from("ab"))


@settings(deadline=None, max_examples=60)
@given(story=st.lists(said | undone, max_size=12))
def test_resolve_equals_a_slow_reading(tmp_path_factory: pytest.TempPathFactory, story: list) -> None:  # type: ignore[type-arg]
    path = tmp_path_factory.mktemp("log") / "labels.jsonl"
    lines: list[list] = []  # type: ignore[type-arg]

    def holds(index: int) -> bool:
        return not any(line[0] == "undo" and line[1] == index and holds(n) for n, line in enumerate(lines) if n > index)

    for kind, value, where, who in story:
        log = LabelLog(path)
        if kind == "say":
            log.append("e", value, source="web", frames=where, who=who)
            lines.append(["say", value, where, who])
            continue
        mine = [n for n, line in enumerate(lines) if line[0] == "say" and line[3] == who and holds(n)]
        target = mine[-1] if value is None and mine else value
        if target is None or target >= len(lines) or not holds(target):
            with pytest.raises(EpisodeError):
                log.undo(value, source="web", who=who)
        else:
            log.undo(value, source="web", who=who)
            lines.append(["undo", target, None, who])
    expected = [-1] * 6
    for n, (kind, value, where, _) in enumerate(lines):
        if kind == "say" and holds(n):
            start, stop = (0, 6) if where is None else (where, where + 1) if isinstance(where, int) else where
            expected[start : 6 if stop is None else stop] = [-1 if value is None else int(value)] * (
                (6 if stop is None else stop) - start
            )
    assert LabelLog(path).resolve(unlabelled(5)).tolist() == expected


def _say(path: Path, who: str, count: int) -> None:
    log = LabelLog(path)
    for frame in range(count):
        log.append("e", True, source="web", frames=frame, who=who)


@pytest.mark.slow
def test_several_processes_share_a_log(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_say, args=(tmp_path / "labels.jsonl", who, 50)) for who in "abc"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    words = LabelLog(tmp_path / "labels.jsonl").words
    assert [word.number for word in words] == list(range(150))
    for who in "abc":
        assert [word.frames for word in words if word.who == who] == list(range(50))


@pytest.mark.slow
def test_a_kill_loses_no_acknowledged_word(tmp_path: Path) -> None:
    script = (
        "import sys; from referee.labels.log import LabelLog\n"
        "log = LabelLog(sys.argv[1])\n"
        "while True: print(log.append('e', True, source='web', who='x' * 500), flush=True)\n"
    )
    path, acknowledged = tmp_path / "labels.jsonl", -1
    for round in range(3):
        process = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for _ in range(20 + 30 * round):
            acknowledged = int(process.stdout.readline())
        process.kill()
        acknowledged = max([acknowledged, *(int(line) for line in process.stdout if line.endswith("\n"))])
        process.wait()
        assert len(LabelLog(path).words) in (acknowledged + 1, acknowledged + 2)
