"""A replay that was saved is the same again; a broken file costs its own steps and nothing else."""

import logging
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.rl.lived import FRAME, World, frames

from referee.rewards import RolloutFrames
from referee.rl import replay_file
from referee.rl.album import Album
from referee.rl.replay import STEP, Replay
from referee.rl.replay_file import ReplayFiles


def make() -> Replay:
    return Replay(2, 40, state_size=2, action_size=1, album=Album(FRAME, memory=1e9))


def live(world: World, replay: Replay, times: int) -> None:
    for _ in range(times):
        rollout = world.rollout(3)
        rollout.judged = RolloutFrames(np.ones_like(rollout.terminated), frames(rollout))
        replay.add(rollout)


def same(one: Replay, other: Replay) -> None:
    assert one.steps == other.steps and (one.count == other.count).all()
    for name, column in one.columns().items():
        if name != "picture":
            known = one.kind != 0
            assert (column[known] == other.columns()[name][known]).all(), name
    assert ((one.kind != 0) == (other.kind != 0)).all()
    rows, slots = np.nonzero(one.picture >= 0)
    assert one.album is not None and other.album is not None
    assert (one.album.take(one.picture[rows, slots]) == other.album.take(other.picture[rows, slots])).all()


@pytest.mark.parametrize("times", [1, 4, 20])
def test_what_was_saved_piece_by_piece_is_the_same_again(tmp_path: Path, times: int) -> None:
    world, replay, kept = World(2, 5), make(), ReplayFiles(tmp_path)
    marks = {}
    for _ in range(times):
        live(world, replay, 2)
        marks = kept.save(replay)
        kept.prune(replay)
    again = make()
    assert ReplayFiles(tmp_path).restore(again, marks) == replay.steps
    same(replay, again)
    assert len(list(tmp_path.iterdir())) <= 8  # what was overwritten is not kept for ever


def test_files_of_before_holds_were_kept_are_read(tmp_path: Path) -> None:
    world, replay, kept = World(2, 5), make(), ReplayFiles(tmp_path)
    live(world, replay, 2)
    marks = kept.save(replay)
    (path,) = tmp_path.iterdir()
    arrays = load_file(path)
    del arrays["held"]
    save_file(arrays, path, metadata={"sha256": replay_file._sha256(arrays)})
    again = make()
    assert ReplayFiles(tmp_path).load(again, marks) == replay.steps
    same(replay, again)


def test_what_came_after_a_checkpoint_is_forgotten(tmp_path: Path) -> None:
    world, replay, kept = World(2, 5), make(), ReplayFiles(tmp_path)
    live(world, replay, 2)
    marks = kept.save(replay)
    before = make()
    ReplayFiles(tmp_path).load(before, marks)
    live(world, replay, 2)
    kept.save(replay)
    again, resumed = make(), ReplayFiles(tmp_path)
    resumed.restore(again, marks)
    same(before, again)
    # And the run goes on from there.
    live(World(2, 8), again, 1)
    third = make()
    ReplayFiles(tmp_path).restore(third, resumed.save(again))
    same(again, third)


@pytest.mark.parametrize("harm", ["cut", "flip"])
def test_a_broken_file_is_dropped_and_named(tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture) -> None:
    world, replay, kept = World(2, 5), make(), ReplayFiles(tmp_path)
    marks = {}
    for _ in range(3):
        live(world, replay, 1)
        marks = kept.save(replay)
    middle = sorted(tmp_path.iterdir())[1]
    content = bytearray(middle.read_bytes())
    if harm == "flip":
        content[-5] ^= 255
    middle.write_bytes(content if harm == "flip" else content[:-20])
    again = make()
    with caplog.at_level(logging.WARNING):
        left = ReplayFiles(tmp_path).restore(again, marks)
    assert middle.name in caplog.text and "forgotten" in caplog.text
    assert 0 < left < replay.steps
    # Whatever is left can be learned from: each step leads to the state that it led to.
    rows, slots = np.nonzero(again.kind == STEP)
    found = again.transitions(rows, slots, gamma=0.9)
    assert (found.after["states"][:, 1] == found.before["states"][:, 1] + 1).all()
