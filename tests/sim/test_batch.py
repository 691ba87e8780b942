"""Batched stepping: the same bits for any number of threads, exact restore, and no way for one env to spoil another."""

import numpy as np
import pytest

from referee.sim.batch import CUBE, FINGER_OPEN, HOME, PandaBatch
from referee.sim.scene import CUBE_HALF, GRAVITY, SUBSTEPS, TIMESTEP, Scene

CUBE_SCENE = Scene(cube=True)


def cubes(n: int) -> np.ndarray:
    return np.tile([0.5, 0.0, CUBE_HALF, 1.0, 0.0, 0.0, 0.0], (n, 1))


def wander(sim: PandaBatch, steps: int, seed: int = 0) -> None:
    random = np.random.default_rng(seed)
    for _ in range(steps):
        arm = sim.qpos[:, :7] + random.uniform(-0.05, 0.05, (sim.num_envs, 7))
        sim.step(arm, random.uniform(0.0, FINGER_OPEN, sim.num_envs))


@pytest.mark.parametrize("threads", [2, 3])
def test_bits_do_not_depend_on_threads(threads: int) -> None:
    sims = [PandaBatch(CUBE_SCENE, 7, num_threads=each) for each in (1, threads)]
    for sim in sims:
        sim.place(np.arange(7), np.tile(HOME, (7, 1)), cube=cubes(7))
        wander(sim, 25)
    np.testing.assert_array_equal(sims[0].qpos, sims[1].qpos)
    np.testing.assert_array_equal(sims[0].tcp, sims[1].tcp)


def test_restore_goes_on_bit_by_bit() -> None:
    sim = PandaBatch(CUBE_SCENE, 3, num_threads=1)
    sim.place(np.arange(3), np.tile(HOME, (3, 1)), cube=cubes(3))
    wander(sim, 20)
    saved = sim.save()
    wander(sim, 20, seed=1)
    there = sim.qpos.copy()
    other = PandaBatch(CUBE_SCENE, 3, num_threads=2)
    other.restore(saved)
    wander(other, 20, seed=1)
    np.testing.assert_array_equal(other.qpos, there)


def test_a_cube_in_the_air_falls_as_it_should() -> None:
    """Gravity is a force on the cube: after t seconds it has fallen g·t²/2 (plus the integrator's half step)."""
    sim = PandaBatch(CUBE_SCENE, 1, num_threads=1)
    high = cubes(1)
    high[0, :3] = 0.35, 0.25, 0.5
    sim.place(np.array([0]), HOME[None], cube=high)
    for _ in range(4):
        sim.step(HOME[None], np.zeros(1))
    seconds = 4 * SUBSTEPS * TIMESTEP
    fallen = 0.5 - sim.qpos[0, CUBE][2]
    assert fallen == pytest.approx(GRAVITY * seconds * (seconds + TIMESTEP) / 2, rel=1e-3)


def test_a_cube_at_rest_stays_at_rest() -> None:
    sim = PandaBatch(CUBE_SCENE, 1, num_threads=1)
    sim.place(np.array([0]), HOME[None], cube=cubes(1))
    for _ in range(40):
        sim.step(HOME[None], np.full(1, FINGER_OPEN))
    np.testing.assert_allclose(sim.qpos[0, CUBE][:3], [0.5, 0.0, CUBE_HALF], atol=2e-4)


def test_the_arm_holds_its_pose_without_sagging() -> None:
    sim = PandaBatch(Scene(), 1, num_threads=1)
    for _ in range(40):
        sim.step(HOME[None], np.full(1, FINGER_OPEN))
    np.testing.assert_allclose(sim.qpos[0, :7], HOME, atol=1e-4)


def test_an_unstable_simulation_stands_still_and_the_others_go_on() -> None:
    sim = PandaBatch(CUBE_SCENE, 3, num_threads=2)
    sim.place(np.arange(3), np.tile(HOME, (3, 1)), cube=cubes(3))
    wander(sim, 3)
    sim.qvel[1, 9:12] = 1e12
    before = sim.qpos[1].copy()
    unstable = sim.step(sim.qpos[:, :7], np.zeros(3))
    assert unstable.tolist() == [False, True, False]
    np.testing.assert_array_equal(sim.qpos[1], before)
    assert not sim.step(sim.qpos[:, :7], np.zeros(3)).any()
    sim.qvel[1, 9:12] = 1e12
    assert sim.step(sim.qpos[:, :7], np.zeros(3)).tolist() == [False, True, False]


def test_placing_one_leaves_the_others_alone() -> None:
    sims = [PandaBatch(CUBE_SCENE, 2, num_threads=1) for _ in range(2)]
    for sim in sims:
        sim.place(np.arange(2), np.tile(HOME, (2, 1)), cube=cubes(2))
        wander(sim, 5)
    sims[1].place(np.array([0]), HOME[None], cube=cubes(1))
    for sim in sims:
        wander(sim, 5, seed=2)
    np.testing.assert_array_equal(sims[0].qpos[1], sims[1].qpos[1])
    assert not np.array_equal(sims[0].qpos[0], sims[1].qpos[0])
