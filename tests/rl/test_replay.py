"""The replay against a slow list of episodes: rings, ends, n-step sums, pictures, re-scoring."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rl.lived import FRAME, World, frames

from referee.errors import RefereeError
from referee.rewards import RolloutFrames
from referee.rl.album import CHUNK, Album
from referee.rl.replay import CUT, END, STEP, Replay


def replay(num_envs: int, capacity: int, album: Album | None = None) -> Replay:
    return Replay(num_envs, capacity, state_size=2, action_size=1, album=album)


@settings(max_examples=40, deadline=None)
@given(
    num_envs=st.integers(1, 3), capacity=st.integers(8, 60),
    pieces=st.lists(st.integers(1, 7), min_size=1, max_size=12),
    seed=st.integers(0, 99), n_step=st.integers(1, 4), bootstrap=st.sampled_from(["standard", "always", "never"]),
)  # fmt: skip
def test_transitions_are_those_that_were_lived(num_envs, capacity, pieces, seed, n_step, bootstrap) -> None:
    world, memory, gamma = World(num_envs, seed), replay(num_envs, capacity), 0.9
    for steps in pieces:
        memory.add(world.rollout(steps))
    rows, slots = np.nonzero(memory.kind == STEP)
    assert memory.steps == len(rows)
    # As many steps are kept as fit, and they are the latest ones.
    for env in range(num_envs):
        kept = sorted(memory.actions[env, slots[rows == env], 0].astype(int).tolist())
        lived = [step[0] for step in world.lived[env]]
        assert kept == lived[len(lived) - len(kept) :]
        assert len(kept) == len(lived) or len(kept) + (memory.kind[env] == END).sum() + 1 >= memory.length - 1
    found = memory.transitions(rows, slots, gamma=gamma, n_step=n_step, bootstrap_type=bootstrap)
    for number, (env, slot) in enumerate(zip(rows, slots, strict=True)):
        lived = {step[0]: step for step in world.lived[env]}
        state = int(memory.actions[env, slot, 0])
        total, discount, ended, terminated = 0.0, 1.0, False, False
        for _ in range(n_step):
            _, after, ended, terminated = lived[state]
            total, discount, state = total + discount * after, discount * gamma, after
            if ended or state not in lived:
                break
        if (bootstrap == "standard" and terminated) or (bootstrap == "never" and ended):
            discount = 0.0
        assert found.before["states"][number].tolist() == [env, memory.actions[env, slot, 0]]
        assert found.after["states"][number].tolist() == [env, state]
        assert found.rewards[number] == pytest.approx(total, rel=1e-5)
        assert found.discounts[number] == pytest.approx(discount, rel=1e-5)


def test_what_does_not_go_on_is_not_joined() -> None:
    world = World(2, seed=0)
    replay = Replay(2, 80, state_size=2, action_size=1, album=None)
    replay.add(world.rollout(6))
    world.now += 100  # those who acted have died, and others begin elsewhere
    jumped = world.rollout(6)
    jumped.goes_on = False
    replay.add(jumped)
    assert replay.steps == 24
    rows, slots = np.nonzero(replay.kind == STEP)
    found = replay.transitions(rows, slots, gamma=1.0)
    assert (found.after["states"][:, 1] - found.before["states"][:, 1] == 1).all()
    assert torch.equal(found.before["states"][:, 1:], found.actions)


def test_every_step_is_drawn_as_often_as_any_other() -> None:
    world, memory = World(3, 1), replay(3, 30)
    for _ in range(8):
        memory.add(world.rollout(5))
    rows, slots = memory.draw(30_000, np.random.default_rng(0))
    assert (memory.kind[rows, slots] == STEP).all()
    _, counts = np.unique(rows * memory.length + slots, return_counts=True)
    assert len(counts) == memory.steps
    assert counts.min() > 0.8 * counts.mean() and counts.max() < 1.2 * counts.mean()


def test_an_empty_replay_says_so() -> None:
    with pytest.raises(RefereeError, match="empty"):
        replay(1, 10).draw(3, np.random.default_rng(0))


def test_a_demonstration_ends_and_a_stretch_is_cut() -> None:
    memory = replay(1, 20)
    states = np.stack([np.zeros(4), np.arange(4)], axis=1).astype(np.float32)
    arrays = ({"states": states}, np.zeros((3, 1), np.float32), np.ones(3, np.float32), np.zeros(3, bool))
    memory.add_episode(*arrays)
    memory.add_episode(*arrays, whole=False)
    assert memory.kind[0, :9].tolist() == [STEP, STEP, STEP, END, STEP, STEP, STEP, CUT, 0]
    last = np.zeros(2, int), np.array([2, 6])
    assert memory.transitions(*last, gamma=0.5, bootstrap_type="never").discounts.tolist() == [0.0, 0.5]


@pytest.mark.parametrize("every", [True, False])
def test_another_model_pays_anew_for_all_that_is_remembered(every: bool) -> None:
    world, album = World(2, 3), Album(FRAME, memory=1e9)
    memory = replay(2, 24, album)
    for _ in range(6):
        rollout = world.rollout(4)
        rollout.success[:] = rollout.rewards % 2 == 0
        rollout.held[:] = rollout.rewards % 5 == 0
        ends = rollout.terminated | rollout.truncated
        where = np.ones_like(ends) if every else ends
        rollout.env_rewards, rollout.judged = (
            rollout.rewards.copy(),
            RolloutFrames(where, frames(rollout)[where.reshape(-1)]),
        )
        rollout.rewards[:] = -7
        memory.add(rollout)
    began: list[int] = []

    def judge(images: np.ndarray, starts: np.ndarray, held: np.ndarray) -> np.ndarray:
        began.append(int(starts.sum()))
        shown = images[:, 0, 0, 0, 0].astype(np.float32)
        assert (held == (shown % 5 == 0)).all()
        return shown

    def mix(env: np.ndarray, model: np.ndarray, truth: np.ndarray) -> np.ndarray:
        return 100 * env + model + 1000 * truth

    count = memory.rescore(judge, mix, every=every, version=4)
    rows, slots = np.nonzero(memory.kind == STEP)
    after = memory.actions[rows, slots, 0] + 1
    ends = memory.kind[rows, (slots + 1) % memory.length] == END
    judged = ends | every
    wanted = 100 * after + judged * (after + 1000 * (after % 2 == 0))
    assert memory.rewards[rows, slots].tolist() == wanted.tolist()
    assert (memory.version[rows, slots] == 4).all()
    assert count == judged.sum() and sum(began) >= ends.sum()
    # Each picture that is remembered is kept once, and room is used again.
    assert album.nbytes == CHUNK * album.frame_bytes


def test_pictures_lie_in_a_file_once_memory_is_full(tmp_path) -> None:
    album = Album(FRAME, memory=CHUNK * np.prod(FRAME), folder=tmp_path)
    images = np.random.default_rng(0).integers(256, size=(3 * CHUNK, *FRAME), dtype=np.uint8)
    ids = album.add(images)
    assert album.mapped == 2 * CHUNK
    assert (album.take(ids[::-1]) == images[::-1]).all()
    album.free(ids[:CHUNK])
    again = album.add(images[-CHUNK:])
    assert sorted(again.tolist()) == sorted(ids[:CHUNK].tolist()) and (album.take(again) == images[-CHUNK:]).all()
    assert not list(tmp_path.iterdir())  # nothing is left behind, however the process ends


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("capacity", [4, 40])
def test_steps_of_paid_episodes_are_worth_imitating(anew: bool, capacity: int) -> None:
    """Those of an episode whose last step was paid, as far as they are remembered; no others."""
    world, album = World(2, 8), Album(FRAME, memory=1e9)
    memory = replay(2, capacity, album)
    for _ in range(9):
        rollout = world.rollout(4)
        rollout.rewards[:] = rollout.rewards % 3 == 0
        rollout.judged = RolloutFrames(np.ones_like(rollout.success), frames(rollout))
        memory.add(rollout)
        if anew:
            memory.good[:] = ~memory.good
            memory.rescore(
                lambda images, *_: images[:, 0, 0, 0, 0] % 3 == 0, lambda env, model, _: model, every=True, version=1
            )
        for env in range(2):
            lived = {step[0]: step for step in world.lived[env]}
            for slot in np.flatnonzero(memory.kind[env] == STEP):
                state = int(memory.actions[env, slot, 0])
                while state in lived and not lived[state][2]:
                    state += 1
                assert memory.good[env, slot] == (state in lived and (state + 1) % 3 == 0)


def test_what_a_person_did_is_cut_out_with_its_pictures() -> None:
    world, album = World(2, 3), Album(FRAME, memory=1e9)
    for _ in range(12):
        rollout, memory = world.rollout(8), replay(1, 40, album)
        rollout.intervened[2:7, 1] = True
        rollout.judged = RolloutFrames(np.ones_like(rollout.success), frames(rollout))
        memory.add_stretches(rollout)
        rows, slots = np.nonzero(memory.kind == STEP)
        found = memory.transitions(rows, slots, gamma=0.9)
        assert found.before["states"].tolist() == rollout.observations["states"][2:7, 1].tolist()
        assert (found.after["states"][:, 1] == found.before["states"][:, 1] + 1).all()
        ends = (rollout.terminated | rollout.truncated)[2:7, 1]
        assert ((memory.kind[rows, slots + 1] == END) == ends).all()
        judged = album.take(memory.picture[rows, slots + 1])[:, 0, 0, 0, 0]
        assert judged.tolist() == found.after["states"][:, 1].numpy().astype(np.uint8).tolist()
