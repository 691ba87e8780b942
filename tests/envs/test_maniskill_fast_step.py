"""The fast step of ManiSkill's tasks equals ManiSkill's own `env.step` in every bit."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from referee.config import ManiSkillEnvConfig
from referee.envs import make_vec
from referee.envs.maniskill import vulkan
from referee.envs.maniskill.env import ManiSkillVectorEnv
from referee.envs.maniskill.experts import ManiSkillExpert

pytestmark = [pytest.mark.slow, pytest.mark.maniskill]

TASKS = ("PickCube-v1", "PushCube-v1", "PullCube-v1", "StackCube-v1", "PegInsertionSide-v1", "PlugCharger-v1")
MODES = ("pd_joint_delta_pos", "pd_ee_delta_pos")
THING = {
    "PickCube-v1": "cube",
    "PushCube-v1": "obj",
    "PullCube-v1": "obj",
    "StackCube-v1": "cubeA",
    "PegInsertionSide-v1": "peg",
    "PlugCharger-v1": "charger",
}
STEPS = 50


@pytest.fixture(autouse=True, scope="module")
def _driver() -> Iterator[None]:
    """The environments of these tests are made in this very process."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in vulkan.variables(gpu=False).items():
            patch.setenv(name, value)
        yield


def fast_world(task: str, control_mode: str = "pd_joint_delta_pos") -> Any:
    from referee.envs.maniskill.world import World

    return World(
        ManiSkillEnvConfig(
            task=task,
            control_mode=control_mode,
            reward_mode="sparse" if task == "PlugCharger-v1" else "normalized_dense",
        )
    )


def plain_world(task: str, control_mode: str = "pd_joint_delta_pos") -> Any:
    """The same with ManiSkill's own step."""
    from referee.envs.maniskill import world

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world, "is_supported", lambda task: False)
        made = fast_world(task, control_mode)
    assert made._fast is None
    return made


def snapshot(world: Any, rewards: np.ndarray) -> dict[str, np.ndarray]:
    """All that a step gives, and what may be asked for afterwards."""
    info = {name: np.asarray(value) for name, value in world._info.items()}
    progress = {"progress": world.progress} if world.facts.progress else {}
    return {"rewards": rewards, "states": world.states.copy(), **info, **progress}


def assert_same_bits(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype and a[name].shape == b[name].shape, name
        assert a[name].tobytes() == b[name].tobytes(), (name, a[name], b[name])


def compare_episode(worlds: tuple[Any, Any], seed: int, act: Callable[[Any, int], np.ndarray]) -> list[Any]:
    """The same actions in both, from the start of an episode; returns what the steps gave."""
    for world in worlds:
        world.begin([0], [seed])
    assert_same_bits(*(snapshot(world, np.zeros(1)) for world in worlds))
    return compare_steps(worlds, act, STEPS)


def compare_steps(worlds: tuple[Any, Any], act: Callable[[Any, int], np.ndarray], steps: int) -> list[Any]:
    results = []
    for step in range(steps):
        action = act(worlds[0], step)
        pair = [snapshot(world, world.step(action)) for world in worlds]
        assert_same_bits(*pair)
        results.append(pair[0])
    return results


def random_actions(seed: int) -> Callable[[Any, int], np.ndarray]:
    generator = np.random.default_rng(seed)
    return lambda world, step: generator.uniform(-1, 1, (1, world.facts.action_size)).astype(np.float32)


def grasp(thing: str) -> Callable[[Any, int], np.ndarray]:
    """A hand that goes to the thing, closes, and lifts."""

    def act(world: Any, step: int) -> np.ndarray:
        env = world.env
        gap = (getattr(env, thing).pose.p - env.agent.tcp.pose.p)[0].numpy() * 8
        if step > 35:
            gap = np.array([0, 0, 0.4])
        return np.clip([[*gap, 1 if step < 20 else -1]], -1, 1).astype(np.float32)

    return act


def push(world: Any, step: int) -> np.ndarray:
    """A hand that closes behind the cube and goes forward."""
    env = world.env
    gap = (env.obj.pose.p - env.agent.tcp.pose.p)[0].numpy()
    gap[0] += -0.06 if step < 20 else 0.06
    return np.clip([[*(gap * 8), -1]], -1, 1).astype(np.float32)


def stretch(world: Any, step: int) -> np.ndarray:
    """Out of reach, where inverse kinematics finds no solution, with parts beyond the limits."""
    return np.array([[1.5, 0.3, 1.0, (-1.0) ** step]], np.float32)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("task", TASKS)
def test_each_step_has_the_bits_of_maniskills_own(task: str, mode: str) -> None:
    """States, rewards of each mode and the whole info, over episodes in which things are touched, grasped, moved."""
    worlds = (fast_world(task, mode), plain_world(task, mode))
    assert worlds[0]._fast.set_targets is not None
    rewards = [reward for reward in worlds[0].env.SUPPORTED_REWARD_MODES if reward != "none"]
    for seed, reward in enumerate(rewards):
        for world in worlds:
            world.env._reward_mode = reward
        results = compare_episode(worlds, seed, random_actions(seed))
        if mode == "pd_ee_delta_pos":
            results += compare_episode(worlds, 10 + seed, grasp(THING[task]))
            if task == "PushCube-v1":
                results += compare_episode(worlds, 20 + seed, push)
                assert any(result["success"].all() for result in results)
            compare_episode(worlds, 30, stretch)
            held = [bool(result[name].all()) for result in results for name in result if name.endswith("grasped")]
            assert any(held) == (task in ("PickCube-v1", "StackCube-v1"))


@pytest.mark.parametrize("task", ["PickCube-v1", "StackCube-v1"])
def test_steps_that_begin_in_a_grasp_have_the_same_bits(task: str) -> None:
    """By joints, from a restored state with the cube in the hand."""
    hand = fast_world(task, "pd_ee_delta_pos")
    hand.begin([0], [3])
    for step in range(30):
        hand.step(grasp(THING[task])(hand, step))
    assert hand.grasp.all()
    worlds = (fast_world(task), plain_world(task))
    generator = np.random.default_rng(0)

    def squeeze(world: Any, step: int) -> np.ndarray:
        action = generator.uniform(-0.2, 0.2, (1, 8)).astype(np.float32)
        action[0, -1] = -1
        return action

    for world in worlds:
        world.begin([0], [3])
        world.restore(hand.snapshot())
    results = compare_steps(worlds, squeeze, 20)
    assert any(result[name].all() for result in results for name in result if name.endswith("grasped"))


def test_contacts_push_back_as_they_do_in_maniskill() -> None:
    """The impulse of each pair of bodies in a grasp, asked for in both orders."""
    world = fast_world("StackCube-v1", "pd_ee_delta_pos")
    world.begin([0], [3])
    for step in range(30):
        world.step(grasp("cubeA")(world, step))
    env, pushed = world.env, 0
    bodies = (env.cubeA, env.cubeB, env.agent.finger1_link, env.agent.finger2_link, env.scene.actors["table-workspace"])
    for a, b in itertools.permutations(bodies, 2):
        fast = env.scene.get_pairwise_contact_impulses(a, b)
        plain = type(env.scene).get_pairwise_contact_impulses(env.scene, a, b)
        assert fast.dtype == plain.dtype and fast.numpy().tobytes() == plain.numpy().tobytes()
        pushed += bool(plain.any())
    assert pushed >= 6


def test_inverse_kinematics_without_a_solution_is_among_the_compared() -> None:
    world = fast_world("PickCube-v1", "pd_ee_delta_pos")
    arm = world.env.agent.controller.controllers["arm"]
    world.begin([0], [0])
    for step in range(STEPS):
        world.step(stretch(world, step))
    before = arm.qpos
    arm.set_action(torch.tensor([[1.0, 0.3, 1.0]]))
    assert torch.equal(arm._target_qpos, before)


@pytest.mark.parametrize("mode", ["pd_ee_delta_pose", "pd_joint_target_delta_pos", "pd_ee_target_delta_pos"])
def test_other_control_modes_are_left_to_maniskill(mode: str) -> None:
    worlds = (fast_world("PickCube-v1", mode), plain_world("PickCube-v1", mode))
    assert worlds[0]._fast.set_targets is None
    for seed in range(2):
        compare_episode(worlds, seed, random_actions(seed))


def test_other_tasks_and_versions_take_maniskills_own_step(monkeypatch: pytest.MonkeyPatch) -> None:
    from referee.envs.maniskill import fast_step

    other = fast_world("LiftPegUpright-v1")
    assert other._fast is None
    compare_episode((other, plain_world("LiftPegUpright-v1")), 0, random_actions(0))
    assert fast_step.is_supported("PickCube-v1"), "compare the new ManiSkill with the tests here, then name its version"
    monkeypatch.setattr(fast_step, "version", lambda package: "3.1.0")
    assert not fast_step.is_supported("PickCube-v1")


@pytest.mark.parametrize(
    ("task", "mode"), [("PickCube-v1", MODES[0]), ("PickCube-v1", MODES[1]), ("PushCube-v1", MODES[1])]
)
def test_workers_give_the_same_bits_across_the_ends_of_episodes(task: str, mode: str) -> None:
    """Random actions by joints, the expert's by the hand, whose successes end episodes before the others do."""
    horizon = 45 if mode == "pd_ee_delta_pos" else 8
    env = make_vec(
        ManiSkillEnvConfig(
            task=task,
            control_mode=mode,
            num_envs=2,
            num_workers=2,
            max_episode_steps=horizon,
            terminate_on_success=True,
        )
    )
    assert isinstance(env, ManiSkillVectorEnv)
    generator = np.random.default_rng(0)

    def random() -> np.ndarray:
        return generator.uniform(-1, 1, (2, env._worlds.facts.action_size)).astype(np.float32)

    act = ManiSkillExpert(env, noise=0.05) if mode == "pd_ee_delta_pos" else random
    observation, _ = env.reset(seed=5)
    plain, elapsed, ends = [plain_world(task, mode) for _ in range(2)], [0, 0], {"terminated": 0, "truncated": 0}
    for _ in range(2 * horizon + 10):
        for i, seed in enumerate(env._episode_seeds(np.arange(2), -1).tolist()):
            if elapsed[i] == 0:
                plain[i].begin([0], [seed])
            assert observation["states"][i].tobytes() == plain[i].states.tobytes()
        actions = act()
        observation, rewards, terminated, truncated, info = env.step(actions)
        for i, world in enumerate(plain):
            assert rewards[i] == world.step(actions[i][None])[0]
            elapsed[i] += 1
            assert terminated[i] == bool(world._info["success"])
            assert truncated[i] == (elapsed[i] == horizon and not terminated[i])
            if terminated[i] or truncated[i]:
                assert info["final_obs"][i]["states"].tobytes() == world.states.tobytes()
                ends["terminated" if terminated[i] else "truncated"] += 1
                elapsed[i] = 0
    assert ends["terminated" if mode == "pd_ee_delta_pos" else "truncated"] >= 2
    env.close()


def test_poses_have_the_bits_of_maniskills() -> None:
    from mani_skill.utils.structs import Pose

    from referee.envs.maniskill.poses import SinglePose

    rows = np.random.default_rng(0).standard_normal((600, 7)).astype(np.float32)
    rows[:300, 3:] /= np.linalg.norm(rows[:300, 3:], axis=1, keepdims=True)
    rows[-20:, 3:] = [1, 0, 0, 0]
    rows[-10:, :3] = 0
    ours, theirs = ([kind(torch.from_numpy(row.copy())[None]) for row in rows] for kind in (SinglePose, Pose))
    for a, b, a2, b2 in zip(ours, theirs, ours[::-1], theirs[::-1], strict=True):
        for mine, stock in ((a * a2, b * b2), (a * b2, b * b2), (a * b2.sp, b * b2.sp), (a.inv(), b.inv())):
            assert isinstance(mine, SinglePose)
            assert mine.raw_pose.numpy().tobytes() == stock.raw_pose.numpy().tobytes()
        mine, stock = a.to_transformation_matrix(), b.to_transformation_matrix()
        assert mine.numpy().tobytes() == stock.numpy().tobytes()
    batch = Pose(torch.from_numpy(rows[:3]))
    assert torch.equal((ours[5] * batch).raw_pose, (theirs[5] * batch).raw_pose)


def test_a_grasp_is_one_by_the_same_forces_and_angles() -> None:
    """Around the least force and the largest angle, with forces that PhysX seldom gives."""
    world = fast_world("PickCube-v1")
    world.begin([0], [0])
    agent, scene, cube = world.env.agent, world.env.scene, world.env.cube
    impulses: dict[str, torch.Tensor] = {}
    scene.get_pairwise_contact_impulses = lambda finger, thing: impulses[finger.name]
    generator, verdicts = np.random.default_rng(0), []
    for case in range(300):
        for finger, sign in ((agent.finger1_link, 1), (agent.finger2_link, -1)):
            opening = sign * finger.pose.to_transformation_matrix()[0, :3, 1].numpy()
            direction = opening + generator.normal(0, 1, 3)
            force = generator.choice([0.0, 0.45, 0.499, 0.501, 0.7, 3.0, np.nan], p=[0.1, 0.1, 0.1, 0.2, 0.2, 0.2, 0.1])
            impulse = direction / np.linalg.norm(direction) * force * world.env.sim_timestep
            impulses[finger.name] = torch.tensor(impulse, dtype=torch.float32)[None]
        limits = {} if case % 2 else {"min_force": 0.7, "max_angle": 30}
        fast, plain = agent.is_grasping(cube, **limits), type(agent).is_grasping(agent, cube, **limits)
        assert fast.dtype == plain.dtype and fast.tolist() == plain.tolist()
        verdicts.append(bool(plain))
    assert 10 < sum(verdicts) < 290


def test_nothing_read_is_kept_while_things_may_move() -> None:
    world = fast_world("PickCube-v1")
    world.begin([0], [0])
    tip, cache = world.env.agent.tcp, world._fast._cache
    with cache:
        first = tip.pose
        assert tip.pose is first
    assert tip.pose is not first
    world.step(np.ones((1, 8), np.float32))
    with cache:
        assert not torch.equal(tip.pose.raw_pose, first.raw_pose)
