"""The same output twice is refused or continued aloud, and what others wrote is never written over: verb by verb."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from PIL import Image

from episodes.examples import make_episode
from referee.cli import main
from referee.config import PandaEnvConfig
from referee.envs import make_vec
from referee.episodes import EpisodeError, EpisodeStore
from referee.episodes.gym_recorder import GymRecorder
from referee.episodes.recorder import Recorder

sys.path.insert(0, str(Path(__file__).parents[1] / "envs"))
import own_worlds  # noqa: F401 - registers its environments

TINY = ["runner.max_epochs=1", "actor.model.arch=resnet10", "actor.model.width=8", "actor.model.hidden_dim=8"]
EXPERT = ["run", "panda_expert", "runner.num_episodes=1", "runner.film=false", "env.eval.num_envs=1",
          "env.eval.num_threads=1", "env.eval.task=Reach", "env.eval.max_episode_steps=3", "env.eval.cameras=[front]",
          "env.eval.data_collection.enabled=true"]  # fmt: skip


def store_of(folder: Path, count: int = 6, first: int = 0) -> EpisodeStore:
    store = EpisodeStore(folder)
    for seed in range(first, first + count):
        episode = make_episode(9, pixels=16, seed=seed, success_from=5 if seed % 2 else None)
        store.append(replace(episode, signals={}))
    return store


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


@pytest.mark.parametrize("verb", ["train", "frames", "windows", "convert"])
def test_a_second_time_is_refused_and_changes_nothing(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, out = str(store_of(tmp_path / "store").root), tmp_path / "out"
    line = {
        "train": ["train", store, "--out", str(out), *TINY],
        "frames": ["dataset", "frames", "--raw-data-path", store, "--output-dir", str(out)],
        "windows": ["dataset", "windows", "--raw-data-path", store, "--output-dir", str(out)],
        "convert": ["episodes", "convert", store, str(out)],
    }[verb]
    assert main(line) == 0
    before = content(out)
    capsys.readouterr()
    assert main(line) == 2
    error = capsys.readouterr().err
    assert str(out) in error and f"rm -r {out}" in error
    assert content(out) == before


def test_a_model_is_not_trained_into_its_own_episodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = store_of(tmp_path / "store")
    before = content(store.root)
    assert main(["train", str(store.root), "--out", str(store.root), *TINY]) == 2
    assert f"{store.root} holds recorded episodes" in capsys.readouterr().err and content(store.root) == before


def test_debug_pictures_of_two_trainings_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, pictures = store_of(tmp_path / "store"), tmp_path / "pictures"
    for name, there in (("a", ""), ("b", ", beside 50 that were there")):
        line = ["train", str(store.root), "--out", str(tmp_path / name), f"data.debug_save_dir={pictures}", *TINY]
        assert main(line) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert f" training frames as pictures in {pictures / 'training'}{there} " in said


def test_a_training_that_came_to_nothing_is_begun_again(tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path / "store")
    store.append(make_episode(9, pixels=16, success_from=None))
    line = ["train", str(store.root), "--out", str(tmp_path / "out"), *TINY]
    assert main(line) == 2
    store_of(store.root)
    assert main(line) == 0


def test_merge_adds_to_a_store_and_refuses_another_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = store_of(tmp_path / "one", 2), store_of(tmp_path / "other", 3)
    out = tmp_path / "out"
    assert main(["episodes", "merge", str(one.root), "--out", str(out)]) == 0
    assert main(["episodes", "merge", str(other.root), "--out", str(out)]) == 0
    assert "2 were there, 3 episodes copied, 5 in all" in " ".join(capsys.readouterr().out.split())
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("x")
    assert main(["episodes", "merge", str(one.root), "--out", str(tmp_path / "notes")]) == 2
    assert "holds something else than episodes" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "notes").iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("ending", [".png", ".gif", ".mp4", ".rrd"])
def test_pictures_of_referee_are_drawn_again_and_others_are_kept(
    ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if ending == ".rrd":
        pytest.importorskip("rerun")
    store, out = store_of(tmp_path / "store"), tmp_path / f"out{ending}"
    line = ["episodes", "view", str(store.root), "--out", str(out), "--episodes"]
    assert main([*line, "1"]) == 0
    before = out.read_bytes()
    assert main([*line, "2"]) == 0 and out.read_bytes() != before
    foreign = b"RRF2 of somebody else"
    if ending in (".rrd", ".mp4"):
        out.write_bytes(foreign)
    else:
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(out)
        foreign = out.read_bytes()
    assert main([*line, "1"]) == 2
    assert "is there already, and Referee did not draw it" in capsys.readouterr().err and out.read_bytes() == foreign


def test_an_audit_writes_over_no_file_of_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = store_of(tmp_path / "store")
    assert main(["train", str(store.root), "--out", str(tmp_path / "run"), *TINY]) == 0
    model, out = tmp_path / "run" / "checkpoints" / "best_model", tmp_path / "out"
    line = ["audit", str(model), str(store_of(tmp_path / "fresh", first=100).root), "--out", str(out)]
    out.mkdir()
    for name, text in (("report.html", "mine"), ("metrics.json", '{"loss": 1}')):
        (out / name).write_text(text)
        assert main(line) == 2
        assert f"{out / name} is there already, and no audit wrote it" in capsys.readouterr().err
        assert (out / name).read_text() == text
        (out / name).unlink()
    assert main(line) == 0 and "was replaced" not in capsys.readouterr().out
    assert main(line) == 0
    assert f"an audit of 6 episodes in {out} was replaced" in " ".join(capsys.readouterr().out.split())


def test_a_refinement_is_not_begun_among_other_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, out = store_of(tmp_path / "store"), tmp_path / "out"
    assert main(["train", str(store.root), "--out", str(tmp_path / "run"), *TINY]) == 0
    out.mkdir()
    (out / "mine.txt").write_text("x")
    model = str(tmp_path / "run" / "checkpoints" / "best_model")
    assert main(["refine", "run", model, str(store.root), "--out", str(out), "--labeller", "truth"]) == 2
    assert f"{out} holds something else than a refinement (mine.txt)" in capsys.readouterr().err
    assert [path.name for path in out.iterdir() if path.name != ".lock"] == ["mine.txt"]


def test_answers_are_scored_into_a_new_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps({"answer": "1", "reference": "1"}) + "\n")
    line = ["score-text", str(tmp_path / "in.jsonl"), "--out", str(tmp_path / "out.jsonl")]
    assert main(line) == 0
    assert main(line) == 2 and "out.jsonl is there already" in capsys.readouterr().err


def test_recorders_say_how_many_episodes_are_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    line = f"{tmp_path / 'store'} holds 2 episodes already: those recorded now are added to them"
    for times in range(2):
        caplog.clear()
        env = GymRecorder(gym.make("PointReach-v0", render_mode="rgb_array"), tmp_path / "store", image_size=16)
        assert caplog.messages == [line] * times
        for seed in range(2):
            env.reset(seed=seed)
            while not env.step(env.action_space.sample())[3]:
                pass
        env.close()
    assert len(EpisodeStore(tmp_path / "store")) == 4
    caplog.clear()
    vector = Recorder(make_vec(PandaEnvConfig(task="Reach", num_envs=1)), tmp_path / "store", cameras=())
    assert caplog.messages == [line.replace("holds 2", "holds 4")]
    vector.close()


def test_recorders_refuse_a_folder_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    env = gym.make("PointReach-v0", render_mode="rgb_array")
    with pytest.raises(EpisodeError, match="holds something else than episodes"):
        GymRecorder(env, tmp_path)
    with pytest.raises(EpisodeError, match="holds something else than episodes"):
        GymRecorder(env, tmp_path / "notes.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_episodes_left_before_their_end_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    env = GymRecorder(gym.make("PointReach-v0", render_mode="rgb_array"), tmp_path / "store", image_size=16)
    for seed in range(3):
        env.reset(seed=seed)
        env.step(env.action_space.sample())
    env.reset()  # with no step, this is none
    env.close()
    assert sum("3 episodes were left by reset() or close() before they ended" in each for each in caplog.messages) == 1
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("kind", ["native", "pickle_frames", "lerobot"])
def test_a_run_that_records_adds_aloud_or_is_refused(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [
        *EXPERT,
        f"env.eval.data_collection.export_format={kind}",
        f"env.eval.data_collection.save_dir={tmp_path / 'out'}",
    ]
    assert main([*line, f"runner.logger.log_path={tmp_path / 'a'}"]) == 0
    assert not any("already" in each for each in caplog.messages)
    before = content(tmp_path / "out")
    code = main([*line, f"runner.logger.log_path={tmp_path / 'b'}"])
    if kind == "lerobot":
        assert code == 2 and "a LeRobot dataset cannot be added to" in capsys.readouterr().err
        assert content(tmp_path / "out") == before
        return
    assert code == 0
    assert sum("holds 1 " in each and "already" in each for each in caplog.messages) == 1
    assert content(tmp_path / "out").keys() > before.keys()
