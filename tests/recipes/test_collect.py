"""Collection at an arm: keys become train.pt and val.pt, poses become data.pkl; kills and mistakes cost little."""

import os
import pty
import select
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from referee.config import load
from referee.datasets.payload import RewardBinaryDataset
from referee.episodes import EpisodeStore, Meta
from referee.episodes.formats.detect import read_any
from referee.episodes.journal import Journal
from referee.episodes.live import alone_in
from referee.errors import ConfigError, RefereeError
from referee.labels.log import LabelLog
from referee.printing import show
from referee.recipes.collect_data import collect_data
from referee.recipes.collect_labels import collect_labels
from referee.robots.keys import ScriptedKeys

SIM = ["env.eval.num_envs=1", "env.eval.num_threads=1", "env.eval.task=Reach", "runner.policy=random"]


def run_labels(folder: Path, presses: Sequence[str], *overrides: str) -> None:
    keys = ScriptedKeys([[], *map(list, presses)])
    lines = ["runner.recipe=collect_labels", *SIM, f"runner.logger.log_path={folder}",
             "env.eval.max_episode_steps=10000", f"runner.max_steps={len(presses)}", *overrides]  # fmt: skip
    show(collect_labels(load("panda_expert", lines), keys=keys), Console())


def test_keys_become_a_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One long episode: failure, then success, twice over; what is not labelled is not in it."""
    half = ["", "A", *[""] * 10, "x", "", "C", *[""] * 5, "x", "a", "c", ""]
    run_labels(tmp_path, half * 2 + ["q"], "runner.fail_success_ratio=0", "runner.val_split=0.3")
    store = EpisodeStore(tmp_path / "recording")
    [episode] = store
    assert episode.success is None and len(episode) == 2 * len(half) + 1 and episode.truncated[-1]
    assert set(episode.signals) == {"env_success"}
    labels = LabelLog.of(store).resolve(episode)
    wanted = [-1, -1, *[0] * 11, -1, -1, *[1] * 6, -1, 0, 1, -1]  # frame 0 is the first state
    np.testing.assert_array_equal(labels, [*wanted, *wanted[1:], -1])
    sides = [RewardBinaryDataset(tmp_path / f"{side}.pt") for side in ("train", "val")]
    frames = [set(side.metadata["frame_of_sample"]) for side in sides]
    assert not frames[0] & frames[1] and min(abs(a - b) for a in frames[0] for b in frames[1]) > 5
    for side in sides:
        about = side.metadata
        assert (about["num_success_frames"], about["num_fail_frames"]) == (14, 24)
        assert (about["fail_success_ratio"], about["val_split"], about["random_seed"]) == (0.0, 0.3, 42)
        assert about["cameras"] == ["front", "side"]
        for row, (frame, label) in enumerate(zip(about["frame_of_sample"], side.labels, strict=True)):
            assert labels[frame] == label
            np.testing.assert_array_equal(side[row][0][0], episode.observations["main_images"][frame])
    assert sides[0].metadata["num_train_samples"] == len(sides[0])
    assert sides[1].metadata["num_val_samples"] == len(sides[1])
    documented = torch.load(tmp_path / "train.pt", weights_only=True)
    assert set(documented) >= {"images", "labels", "metadata"}
    log = (tmp_path / "run_collect_process.log").read_text()
    assert "frame 15 and on: success" in log and "stopped by hand" in log
    assert "success: 14/50 [" in capsys.readouterr().out


def test_it_stops_when_there_are_enough_of_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    half = ["c", "c", "a", "a", "a", *[""] * 8]
    run_labels(tmp_path, half * 9, "runner.num_success_frames=4", "runner.num_fail_frames=7", "runner.val_split=0.4")
    [episode] = EpisodeStore(tmp_path / "recording")
    assert len(episode) == 2 * len(half) + 3  # the seventh failure
    out = capsys.readouterr().out
    assert "success: 6/4 [############################] fail: 7/7 [################################]" in out


def test_episodes_end_by_key_and_by_label(tmp_path: Path) -> None:
    """What is pressed while the arm goes back to its start is about no frame."""
    half = ["a", "a", "", "c", "c", "r", "a", "a", "", "c", "a"]
    run_labels(tmp_path, half * 2, "runner.labelling.ends_on=[success]", "runner.val_split=0.3", "runner.max_steps=16")
    episodes = list(EpisodeStore(tmp_path / "recording"))
    assert [len(each) for each in episodes] == [4, 1, 3, 4, 1, 3]
    assert all(each.terminated[-1] and not each.truncated[-1] for each in episodes)
    sides = [set(RewardBinaryDataset(tmp_path / f"{side}.pt").metadata["episodes"]) for side in ("train", "val")]
    assert sides[0] and sides[1] and not sides[0] & sides[1]


def test_keys_at_the_end_of_an_episode_are_about_its_last_frame(tmp_path: Path) -> None:
    with pytest.raises(RefereeError, match="no dataset was made"):
        run_labels(tmp_path, ["", "c", "", "C", "", "q"], "env.eval.max_episode_steps=2")
    store = EpisodeStore(tmp_path / "recording")
    found = [LabelLog.of(store).resolve(each).tolist() for each in store]
    assert found == [[-1, -1, 1], [-1, -1, 1], [-1, -1, -1]]  # a stretch ends with its episode


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["runner.num_success_frames=0", "runner.num_fail_frames=0"], "runner.num_success_frames .* at least 1, got 0"),
        (["env.eval.num_envs=3"], "a person leads one arm, not 3: set env.eval.num_envs=1"),
        (["env.eval.cameras=[]"], "env.eval.cameras .* must have at least 1"),
        (["data.cameras=[wrist]"], "data.cameras names wrist, which is not one of env.eval.cameras"),
        (["runner.resume_dir=/nowhere"], "runner.resume_dir: /nowhere holds no recording"),
        (["runner.logger.log_path=/proc/here"], "cannot write to /proc/here .*: set runner.logger.log_path"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(RefereeError, match=message):
        run_labels(tmp_path / "run", [""], *overrides)


def test_an_arm_whose_keys_say_nothing_is_refused(tmp_path: Path) -> None:
    lines = ["runner.recipe=collect_labels", "env.eval.env_type=franka", "env.eval.robot.driver=twin"]
    with pytest.raises(ConfigError, match="keyboard_reward_wrapper is null, so keys would say nothing"):
        collect_labels(load(str(_yaml(tmp_path)), lines), keys=ScriptedKeys())


def test_no_terminal_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", (tmp_path / "no_terminal").open("w+"))
    with pytest.raises(ConfigError, match="labelled by keys, but standard input is no terminal"):
        collect_labels(load("panda_expert", ["runner.recipe=collect_labels", *SIM]))


def test_labels_of_one_kind_make_no_dataset_but_are_kept(tmp_path: Path) -> None:
    with pytest.raises(RefereeError, match=r"has no failure frame.*Nothing is lost: runner.resume_dir="):
        run_labels(tmp_path, ["c"] * 6)
    assert not (tmp_path / "train.pt").exists()
    with pytest.raises(RefereeError, match="holds a recording already"):
        run_labels(tmp_path, ["a"])
    run_labels(tmp_path, ["a", "c"] * 6, f"runner.resume_dir={tmp_path}", "runner.val_split=0.5")
    assert RewardBinaryDataset(tmp_path / "train.pt").metadata["num_success_frames"] == 12


def test_after_a_split_that_failed_a_resumed_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """There are frames enough from its first step on; it ends when they also make a dataset."""
    enough = ["runner.num_success_frames=2", "runner.num_fail_frames=2", "runner.val_split=0.4"]
    with pytest.raises(RefereeError, match=r"no stretch .* give another runner.val_split, runner.num_success_frames"):
        run_labels(tmp_path, ["a", "a", "c", "c"], *enough)
    on = [*enough, f"runner.resume_dir={tmp_path}"]
    with pytest.raises(RefereeError, match="no dataset was made"):
        run_labels(tmp_path, ["", "", "q"], *on)
    assert "no dataset can be made of them yet: go on, q stops" in capsys.readouterr().out
    run_labels(tmp_path, ["a", "a", "c", "c", "r", *[""] * 50], *on, "runner.labelling.reaction_seconds=0.05")
    said = capsys.readouterr().out
    assert "there are enough frames of both kinds" in said and "labels moved 0.05 s earlier" in said
    assert (tmp_path / "train.pt").exists()
    steps = sum(row.steps for row in EpisodeStore(tmp_path / "recording").rows.values())
    run_labels(tmp_path, [""] * 9, *on)  # a dataset can be made already: the arm does not move
    assert sum(row.steps for row in EpisodeStore(tmp_path / "recording").rows.values()) == steps < 20


def test_what_a_kill_left_is_gone_on_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A journal with words about its frames, as a killed run leaves it."""
    store = EpisodeStore(tmp_path / "recording")
    journal = Journal(store, Meta(cameras=("front", "side"), fps=20.0))
    picture = {"main_images": np.zeros((64, 64, 3), np.uint8), "extra_view_images": np.zeros((1, 64, 64, 3), np.uint8)}
    journal.start({**picture, "main_images": picture["main_images"] + 1}, signals={"intervened": False})
    for i in range(9):
        journal.step([0.0], {**picture, "main_images": picture["main_images"] + 10 * i}, signals={"intervened": False})
    journal.flush()
    log = LabelLog.of(store)
    log.append(journal.meta.id, True, frames=(4, None), source="keyboard")
    del journal  # and its lock
    with alone_in(tmp_path), pytest.raises(RefereeError, match="is being recorded into by another process"):
        run_labels(tmp_path, ["q"], f"runner.resume_dir={tmp_path}")
    run_labels(tmp_path, ["a", "a", "a", "c", "c", "c"] * 4, f"runner.resume_dir={tmp_path}",
               "runner.num_success_frames=15", "runner.num_fail_frames=9", "runner.val_split=0.3")  # fmt: skip
    assert len(EpisodeStore(tmp_path / "recording")) == 2
    assert "success: 15/15" in capsys.readouterr().out
    assert "1 of them cut off by a kill" in (tmp_path / "run_collect_process.log").read_text()


def test_a_full_disk_ends_it_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Journal) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Journal, "flush", full)
    with pytest.raises(RefereeError, match=r"recording stopped: .*No space left on device"):
        run_labels(tmp_path, [""] * 1000, "runner.pace=200")


@pytest.mark.slow
@pytest.mark.parametrize("last", ["q", "\x03"])
def test_keys_of_a_real_terminal(tmp_path: Path, last: str) -> None:
    """Through a pseudo-terminal, as over SSH: presses are heard without Enter, and Ctrl-C saves."""
    lines = ["runner.recipe=collect_labels", *SIM, f"runner.logger.log_path={tmp_path}", "runner.pace=25",
             "env.eval.max_episode_steps=10000", "runner.val_split=0.4"]  # fmt: skip
    process, terminal = pty.fork()
    if process == 0:
        os.execv(sys.executable, [sys.executable, "-m", "referee.cli", "run", "panda_expert", *lines])
    said = wait_for(terminal, b"success: 0/50 [")
    assert b"Keys: c success, a fail" in said
    before = termios.tcgetattr(terminal)[3]
    for key, wanted in (("A", b"fail: 12/150"), ("C", b"success: 6/50"), ("a", b""), ("A", b"fail: 20/150"),
                        ("C", b"success: 15/50"), (last, b"val.pt: ")):  # fmt: skip
        os.write(terminal, key.encode())
        said += wait_for(terminal, wanted)
    said += wait_for(terminal, None)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    assert not before & termios.ICANON and before & termios.ISIG  # key by key, and Ctrl-C keeps its meaning
    assert (b"; Ctrl-C again to stop at once" in said) == (last == "\x03")
    [episode] = EpisodeStore(tmp_path / "recording")
    labels = LabelLog.of(EpisodeStore(tmp_path / "recording")).resolve(episode)
    assert (labels == 1).sum() >= 15 and (labels == 0).sum() >= 20
    assert RewardBinaryDataset(tmp_path / "val.pt").metadata["num_success_frames"] == (labels == 1).sum()


def wait_for(terminal: int, wanted: bytes | None) -> bytes:
    """What a terminal shows until `wanted` is there; None: until it closes."""
    said, patience = b"", time.monotonic() + 120
    while (wanted is None or wanted not in said) and time.monotonic() < patience:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                said += os.read(terminal, 65536)
            except OSError:  # Linux says so where the other end is gone
                return said
    return said


# --- by pose ---


def run_data(folder: Path, *overrides: str, presses: Sequence[str] = ()) -> None:
    lines = ["runner.recipe=collect_data", *SIM, "runner.policy=expert", f"runner.logger.log_path={folder}",
             "env.eval.terminate_on_success=true", "env.eval.success_hold_steps=3", "env.eval.max_episode_steps=30",
             "runner.num_data_episodes=3", *overrides]  # fmt: skip
    collect_data(load("panda_expert", lines), keys=ScriptedKeys(map(list, presses)))


def test_episodes_at_a_pose_become_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_data(tmp_path)
    native = list(EpisodeStore(tmp_path / "recording"))
    assert len(native) == 3
    for episode in native:
        assert episode.success is not None and episode.terminated[-1]
        np.testing.assert_array_equal(episode.success[-4:], [False, True, True, True])  # held for three steps
    for kept, wanted in zip(read_any(tmp_path / "data.pkl"), native, strict=True):
        np.testing.assert_array_equal(kept.success, wanted.success)
        np.testing.assert_array_equal(kept.observations["main_images"], wanted.observations["main_images"])
    assert "episode 3 of 3: " in capsys.readouterr().out


def test_an_episode_can_be_given_up_and_a_run_gone_on_with(tmp_path: Path) -> None:
    run_data(tmp_path, "runner.max_steps=12", presses=["", "", "r", *[""] * 4, "q"])
    assert [len(each) for each in EpisodeStore(tmp_path / "recording")] == [4]  # cut off by q
    run_data(tmp_path, f"runner.resume_dir={tmp_path}")
    assert len(list(read_any(tmp_path / "data.pkl"))) == 3


def test_only_successes_are_counted_where_asked(tmp_path: Path) -> None:
    with pytest.raises(RefereeError, match="no episode was recorded"):
        run_data(tmp_path, "runner.policy=random", "runner.max_steps=100", "env.eval.data_collection.only_success=true",
                 "env.eval.task=PickCube", "env.eval.data_collection.enabled=true")  # fmt: skip


def _yaml(folder: Path) -> Path:
    path = folder / "arm.yaml"
    path.write_text("runner:\n  recipe: collect_labels\nenv:\n  eval:\n    env_type: franka\n")
    return path


def test_keys_lead_the_arm_and_label_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["robot.driver=twin", "robot.realtime=false", "env.eval.teleoperator=keyboard", "runner.max_steps=30",
             f"runner.logger.log_path={tmp_path}", "runner.val_split=0.4"]  # fmt: skip
    presses = [*["ia"] * 5, *["jc"] * 5, *["m"] * 6, *["ka"] * 5, *["lc"] * 5, "q"]
    read = [[], *(each for press in presses for each in (list(press), []))]  # by the hand, then by whoever labels
    collect_labels(load("realworld_collect_dataset", lines), keys=ScriptedKeys(read))
    [episode] = EpisodeStore(tmp_path / "recording")
    moved = np.sign(episode.actions[:, :3]).astype(int).tolist()
    assert [1, 0, 0] in moved and [0, 1, 0] in moved and [0, 0, -1] in moved and [-1, 0, 0] in moved
    assert episode.signals["intervened"][2:-1].all()
    assert RewardBinaryDataset(tmp_path / "train.pt").metadata["num_success_frames"] == 10
    assert "Steering: i/k forward, back" in capsys.readouterr().out
