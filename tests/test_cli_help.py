"""Help that can be typed, verbs in the order of the work, and the line that says what to do next."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.synthetic import square_films

from referee import cli_help, commands
from referee.cli import _parser, main
from referee.config import load
from referee.episodes import EpisodeStore
from referee.episodes.arrays import episodes_of
from referee.runs import next_step

ORDER = ["run", "episodes", "dataset", "train", "audit", "compare", "score", "serve", "refine", "eval", "play"]
"""The work comes first, what helps with it behind."""


def parsers(parser: argparse.ArgumentParser, name: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """All verbs and sub-verbs, and the command itself."""
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb, inner in action.choices.items():
                yield from parsers(inner, f"{name} {verb}".strip())


def verb_of(line: str) -> object:
    """What a command line would call; SystemExit where it cannot be parsed."""
    words = shlex.split(line)
    assert words[0] == "referee"
    arguments, rest = _parser().parse_known_args(words[1:])
    assert not [word for word in rest if "=" not in word]
    return arguments.verb


def test_every_verb_has_examples_and_no_more() -> None:
    names = [name for name, _ in parsers(_parser())]
    assert set(names) == set(cli_help.EXAMPLES) and len(names) > 25


@pytest.mark.parametrize(("name", "line"), [(name, line) for name, all in cli_help.EXAMPLES.items() for line in all])
def test_examples_can_be_typed(name: str, line: str) -> None:
    assert line.startswith(f"referee {name}")
    assert callable(verb_of(line))
    words = shlex.split(line)
    if words[1] in ("run", "cluster", "robot") or words[1:3] in (["config", "show"], ["config", "explain"]):
        preset = next(word for word in words[2:] if word not in ("show", "explain", "check"))
        load(preset, words[words.index(preset) + 1 :])
    if words[1] == "train":
        overrides = [word for word in words[3:] if "=" in word]
        load("reward_training", ["data.data_path=x", *overrides])


@pytest.mark.parametrize("name", sorted(cli_help.EXAMPLES))
def test_help_shows_them(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([*name.split(), "--help"])
    text = capsys.readouterr().out
    assert end.value.code == 0 and all(f"  {line}\n" in text for line in cli_help.EXAMPLES[name])


def test_verbs_are_listed_in_the_order_of_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    listed = [line.split()[0] for line in capsys.readouterr().err.splitlines() if line.startswith("    ")]
    places = [listed.index(verb) for verb in ORDER]
    assert places == sorted(places) and listed.index("doctor") > places[-1]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["trian"], "there is no verb 'trian': did you mean train?"),
        (["episodes", "veiw"], "there is no verb 'veiw': did you mean view?"),
        (["refine", "rnu"], "did you mean run?"),
        (["zzzz"], "there is no verb 'zzzz': choose one of run, episodes"),
    ],
)
def test_a_mistyped_verb(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2 and says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "verb"),
    [
        (next_step.after_training(Path("my run/it's"), Path("a b")), commands.audit),
        (next_step.after_training(Path("my run/model"), None), commands.serve),
        (next_step.after_collecting(Path("$HOME/a;b")), commands.train),
        (next_step.after_policy(Path("logs/a run")), commands.evaluate),
    ],
)
def test_the_next_command_can_be_pasted(line: str, verb: object) -> None:
    assert line.startswith("next: referee ")
    assert verb_of(line.removeprefix("next: ")) is verb


@pytest.mark.slow
def test_collecting_training_and_the_audit_follow_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line as it was printed, in a folder whose name must be quoted."""
    here = tmp_path / "a folder"
    here.mkdir()
    monkeypatch.chdir(here)
    EpisodeStore("my episodes").append_many(episodes_of(*square_films(12, seed=0)))
    assert main(["train", "my episodes", "--out", "my run", "runner.max_epochs=1", "actor.model.width=8"]) == 0
    line = printed(capsys)
    assert line == "referee audit 'my run/checkpoints/best_model' 'my episodes' --skip-training-episodes"
    assert main(shlex.split(line)[1:]) == 0
    assert Path("my run/checkpoints/best_model/report/report.html").exists()


def test_what_a_run_recorded_is_what_is_trained_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["env.eval.num_envs=2", "runner.num_episodes=2", "runner.film=false", "env.eval.max_episode_steps=4"]
    record = ["env.eval.data_collection.enabled=true", "runner.logger.log_path=my run"]
    assert main(["run", "panda_random", *small, *record]) == 0
    assert printed(capsys) == "referee train 'my run/collected_data'"


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    """The next command, as it was printed."""
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("next: ")]
    return line.removeprefix("next: ")


def test_view_writes_an_mp4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    av = pytest.importorskip("av")
    EpisodeStore(tmp_path / "store").append_many(episodes_of(*square_films(3, seed=0)))
    film = tmp_path / "film.mp4"
    assert main(["episodes", "view", str(tmp_path / "store"), "--episodes", "2", "--out", str(film)]) == 0
    assert f"wrote {film}: 2 episodes" in capsys.readouterr().out
    with av.open(str(film)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(frames) == 2 * (12 + 12) and frames[0].shape == (240, 240, 3)
    green = frames[11][:, :, 1].astype(int) - frames[11][:, :, 0]
    assert green.max() > 100  # the square at the end of a success
    assert {path.name for path in tmp_path.iterdir()} == {"film.mp4", "store"}


def test_an_mp4_needs_a_library(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    EpisodeStore(tmp_path / "store").append_many(episodes_of(*square_films(1, seed=0)))
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    assert main(["episodes", "view", str(tmp_path / "store"), "--out", str(tmp_path / "film.mp4")]) == 2
    text = capsys.readouterr().err
    assert "pip install 'referee-rl[lerobot]'" in text and len(text.splitlines()) == 1
    assert not (tmp_path / "film.mp4").exists()


def test_films_of_different_size_share_a_page(tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    from referee.episodes.formats.frames import save_mp4

    frames = [np.full((16, 16, 3), 10, np.uint8), np.full((32, 24, 3), 10, np.uint8)]
    save_mp4(tmp_path / "film.mp4", frames, fps=10)
    with av.open(str(tmp_path / "film.mp4")) as container:
        first, second = (frame.to_ndarray(format="rgb24") for frame in container.decode(video=0))
    assert first.shape == second.shape == (32, 24, 3) and first[-1].min() > 240 and second.max() < 30
