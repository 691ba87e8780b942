"""The command line: what it writes, and one clear line with exit code 2 for everything that is wrong."""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from referee.cli import main
from referee.config import load, to_yaml
from referee.errors import RefereeError, one_line
from referee.runs import folder as rundir


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refuse(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must be refused; returns its one line."""
    assert main(arguments) == 2
    printed = capsys.readouterr()
    lines = printed.err.strip().splitlines()
    assert len(lines) == 1, printed.err
    assert lines[0].startswith("referee: ")
    assert list(Path().iterdir()) == [], "something was half written"
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "panda_exprt"], "panda_expert"),
        (["config", "show", "panda_exprt"], "panda_expert"),
        (["run", "panda_expert", "env.eval.num_env=3"], "did you mean env.eval.num_envs"),
        (["run", "panda_expert", "env.eval.num_envs=many"], "env.eval.num_envs"),
        (["run", "panda_expert", "env.eval.num_envs=0"], "env.eval.num_envs"),
        (["run", "panda_expert", "env.eval.task=Fold"], "Reach, PushCube, PickCube, PegInsertion"),
        (["run", "panda_expert", "runner.expert_noise=nan"], "runner.expert_noise"),
        (["run", "no/such/file.yaml"], "no directory no/such to look for file.yaml"),
        (["play", "--task", "Fold"], "unknown task 'Fold': choose one of Reach"),
        (["play", "--policy", "genius"], "unknown policy 'genius': choose expert, random, or module:function"),
        (["play", "--out", "film.mp4"], "film.mp4 is not a GIF"),
        (["play", "--episodes", "0"], "--episodes is 0"),
        (["play", "--size", "8"], "--size is 8"),
        (["play", "--seed", "-1"], "--seed is -1"),
        (["envs", "--seed", "-1"], "seed is -1"),
    ],
)
def test_bad_input(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    assert said in refuse(capsys, *arguments)


def test_a_log_path_that_cannot_be_written(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    blocker = here.parent / "a_file"
    blocker.write_text("")
    line = refuse(capsys, "run", "panda_expert", f"runner.logger.log_path={blocker}/run")
    assert "set runner.logger.log_path to a folder" in line


@pytest.mark.parametrize(("verb", "out"), [("play", "film.gif"), ("envs", "tasks.png")])
def test_a_folder_that_cannot_be_written(capsys: pytest.CaptureFixture[str], here: Path, verb: str, out: str) -> None:
    blocker = here.parent / "b_file"
    blocker.write_text("")
    assert f"cannot write {blocker / out}" in refuse(capsys, verb, "--out", str(blocker / out))


def test_play_writes_a_film(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", "--task", "Reach", "--episodes", "1", "--out", "sub/film.gif"]) == 0
    assert "success 1 of 1" in capsys.readouterr().out
    with Image.open("sub/film.gif") as film:
        assert film.n_frames >= 45


def test_envs_writes_a_sheet() -> None:
    assert main(["envs", "--out", "sheet.png"]) == 0
    with Image.open("sheet.png") as sheet:
        assert sheet.width > 1000 and sheet.height > 1500


def test_run_leaves_a_directory_that_runs_again(capsys: pytest.CaptureFixture[str]) -> None:
    tiny = ["env.eval.task=Reach", "env.eval.num_envs=2", "runner.num_episodes=2", "runner.film=false"]
    assert main(["run", "panda_expert", *tiny, "runner.logger.log_path=first"]) == 0
    assert "Reach, expert: success at the end 100.0 % [34.2, 100.0] of 2" in capsys.readouterr().out
    result = json.loads(Path("first/result.json").read_text())
    assert result["episodes"] == 2 and result["success_at_end"] == 1.0
    assert main(["run", "first/config.yaml", "runner.logger.log_path=second"]) == 0
    assert json.loads(Path("second/result.json").read_text()) == result


def test_a_run_without_a_log_path_is_named_after_time_and_preset() -> None:
    assert main(["run", "panda_random", "env.eval.num_envs=1", "runner.num_episodes=1", "runner.film=false"]) == 0
    (folder,) = Path("logs").iterdir()
    assert folder.name.endswith("-panda_random")


def test_a_key_without_effect_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    tiny = ["env.eval.num_envs=1", "runner.num_episodes=1", "runner.film=false", "runner.logger.log_path=x"]
    assert main(["run", "panda_random", *tiny, "runner.expert_noise=0.5"]) == 0
    assert "runner.expert_noise" in capsys.readouterr().err


def test_config_show_and_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "panda_expert", "env.eval.task=Reach"]) == 0
    assert "task: Reach" in capsys.readouterr().out
    assert main(["config", "list"]) == 0
    assert "panda_expert" in capsys.readouterr().out


@pytest.mark.slow
def test_the_demo(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole story, small: a few episodes, a policy that has just begun, a few steps."""
    from referee.config import Config

    demo = importlib.import_module("referee.demo.recipe")  # the package holds a function of that name
    from referee.learn.trainer import Trainer

    def begun(config: Config, folder: Path) -> Trainer:
        run = Trainer(config, folder)
        run.warm_start(demo.QUIET)
        run.iterate()
        run.evaluate()
        run.save()
        return run

    monkeypatch.setattr(demo, "weak_policy", begun)
    monkeypatch.setattr(demo, "EPISODES", 32)
    monkeypatch.setattr(demo, "REFINE", [*demo.REFINE, "reward.refine.interval=2", "reward.refine.steps=8"])
    arguments = ["demo", "runner.num_episodes=20", "runner.max_steps=12800", "--task", "peg", "--out", "d"]
    assert main(arguments) == 0
    names = {path.name for path in Path("d").iterdir()}
    pictures = {"tasks.png", "episodes.png", "report.html", "config.yaml", "result.json"}
    assert names == pictures | {
        "episodes",
        "reward",
        "fresh",
        "audit",
        "start",
        "frozen_reward_model",
        "with_refinement",
    }
    said = capsys.readouterr().out
    assert "PPO, frozen reward model" in said and "gap, points" in said and "minutes in all" in said
    page = Path("d/report.html").read_text()
    assert "PegInsertion" in page and "What is a reward model?" in page and "data:image/gif" in page
    result = json.loads(Path("d/result.json").read_text())
    assert result["with refinement"]["account"]["labels"] == 48 and "account" in result["frozen reward model"]
    assert main(["refine", "log", "d/with_refinement"]) == 0 and "48 frames asked about" in capsys.readouterr().out
    assert names == demo.LEFT - {".lock"}  # which goes when the demo ends
    demo.clear(Path("d"))
    assert not Path("d").exists()


def _made_by(preset: str, folder: Path, *files: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(to_yaml(load(preset)))
    for name in files:
        (folder / name).write_text("ten years of work")
    return folder


@pytest.mark.parametrize("preset", ["panda_ppo_mlp", "demo"])
def test_a_demo_replaces_nothing_that_is_not_its_own(
    here: Path, capsys: pytest.CaptureFixture[str], preset: str
) -> None:
    """A run has a config.yaml, too; and beside that of a demo may lie what somebody else put there."""
    kept = _made_by(preset, here / "mine", "labels.jsonl")
    assert main(["demo", "--out", str(kept)]) == 2 and "no earlier demo" in capsys.readouterr().err
    assert {path.name for path in kept.iterdir()} == {"config.yaml", "labels.jsonl"}
    (here / "link").symlink_to(_made_by("demo", here / "other"))
    assert main(["demo", "--out", "link"]) == 2 and "no earlier demo" in capsys.readouterr().err


def test_a_demo_removes_no_run_that_names_its_files_alike(here: Path) -> None:
    demo = importlib.import_module("referee.demo.recipe")
    run = _made_by("panda_ppo_mlp", here / "run", "result.json")
    with pytest.raises(RefereeError, match="no earlier demo"):
        demo.clear(run)
    assert (run / "result.json").exists()


def test_an_earlier_demo_is_replaced_but_not_for_a_mistyped_one(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo = importlib.import_module("referee.demo.recipe")
    earlier = _made_by("demo", here / "demo", "result.json")
    assert main(["demo", "runner.max_stepz=3"]) == 2 and "max_stepz" in capsys.readouterr().err
    assert (earlier / "result.json").exists()
    demo.clear(earlier)
    assert not earlier.exists()


def test_a_demo_never_clears_where_you_are(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    demo = importlib.import_module("referee.demo.recipe")
    _made_by("demo", here / "a" / "b")
    monkeypatch.chdir(here / "a" / "b")
    for place in (".", "..", "../..", "../b", str(here)):
        with pytest.raises(RefereeError, match="choose a folder of its own"):
            demo.clear(Path(place))
    assert (here / "a" / "b" / "config.yaml").exists()


@pytest.mark.slow
def test_missing_gl_libraries_are_one_line(here: Path) -> None:
    """With a back end that cannot load, a command that draws says what to install, and exits with 2."""
    run = subprocess.run(
        [sys.executable, "-m", "referee.cli", "play", "--task", "Reach", "--episodes", "1"],
        env={**os.environ, "MUJOCO_GL": "glfw", "PYOPENGL_PLATFORM": "egl", "DISPLAY": ""},  # egl: left by a parent
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert run.returncode == 2, run.stderr
    assert "apt-get install" in run.stderr.splitlines()[-1]
    assert "Traceback" not in run.stderr
    assert list(here.iterdir()) == []


@pytest.mark.slow
def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    for what in (
        "Python",
        "PyTorch",
        "CPU",
        "OpenGL egl",
        "drawing with",
        "ms per 64 px frame",
        "GB free",
        "extra ray",
    ):
        assert what in said


def test_ctrl_c_is_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(loaded: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("referee.recipes.run", interrupted)
    assert main(["run", "panda_expert"]) == 130
    assert capsys.readouterr().err.strip() == "referee: stopped"


def test_overrides_may_follow_a_name_given_as_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    """As scripts in examples/ call it: there is no preset among the words then, so the first is an override, too."""
    assert main(["config", "show", "--config-name", "panda_expert", "runner.seed=3", "runner.num_episodes=5"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"seed: 3 +# command line", said) and re.search(r"num_episodes: 5 +# command line", said)
    assert main(["config", "show", "panda_ppo_mlp", "--config-name", "panda_expert"]) == 2
    assert "give only one of them" in capsys.readouterr().err


def test_runs_of_one_second_have_directories_of_their_own(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rundir.time, "strftime", lambda form: "20261118-120000")
    for _ in range(3):
        rundir.open_run(load("panda_expert"))
    names = sorted(path.name for path in Path("logs").iterdir())
    assert names == [f"20261118-120000-panda_expert{end}" for end in ("", "-2", "-3")]


def test_a_reader_who_has_left_hears_no_complaint(here: Path) -> None:
    command = [sys.executable, "-m", "referee.cli", "config", "show", "panda_ppo_mlp"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None and run.stderr is not None
        run.stdout.close()  # long before anything is printed
        assert run.wait() == 141 and not run.stderr.read()


def test_a_pipe_to_somebody_else_that_breaks_is_not_kept_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(arguments: object) -> None:
        raise BrokenPipeError("a worker is gone")

    monkeypatch.setattr("referee.commands.config_list", work)
    with pytest.raises(BrokenPipeError, match="a worker is gone"):
        main(["config", "list"])


def test_without_a_verb_the_verbs_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    said = capsys.readouterr().err
    for verb, what in (("run", "start a preset"), ("train", ""), ("audit", ""), ("doctor", "check this machine")):
        assert re.search(rf"^    {verb} +.*{what}", said, re.MULTILINE), said


def test_an_error_is_one_short_line_without_control_characters() -> None:
    text = one_line(RefereeError("a\nb\x1b[31m " + "x" * 100_000 + " end"))
    assert text.startswith("a b?[31m xxx") and text.endswith("xxx end") and len(text) < 1010
