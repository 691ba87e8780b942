"""A learned reward inside Stable-Baselines3: the model is the reward, ground truth cannot leak, refinement works."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3 import PPO, SAC, HerReplayBuffer
from stable_baselines3.common.vec_env import DummyVecEnv

import referee
from referee import RewardModelWrapper
from referee.cli import main
from referee.episodes.gym_recorder import GymRecorder
from referee.errors import RefereeError
from referee.integrations import sb3
from referee.models import Artifact
from referee.models.contract import ModelSpec
from referee.models.registry import build
from referee.pictures import scaled
from referee.refine.book import Book, Sheet

sys.path.insert(0, str(Path(__file__).parents[1] / "envs"))
import own_worlds  # noqa: F401 - registers its environments

POINT, PIXELS = "PointReach-v0", 24


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    """A small random model whose threshold lies in the middle of what it says."""
    made = Artifact(build(ModelSpec(arch="resnet10", width=8, image_size=PIXELS, cameras=("render",), hidden_dim=None)))
    env = gym.make(POINT, render_mode="rgb_array")
    frames = []
    for seed in range(20):
        env.reset(seed=seed)
        frames.append(scaled(env.render(), PIXELS))
    probability = made.judge(np.stack(frames)).probability
    made.calibration = type(made.calibration)(threshold=float(np.median(probability)))
    return made


def play(env: Any, steps: int) -> list[tuple[np.ndarray, np.ndarray, list[dict[str, Any]]]]:
    env.seed(0)
    env.reset()
    random = np.random.default_rng(0)
    out = []
    for _ in range(steps):
        actions = random.uniform(env.action_space.low, env.action_space.high, (env.num_envs, 3)).astype(np.float32)
        _, rewards, dones, infos = env.step(actions)
        out.append((rewards, dones, infos))
    return out


def _drawing(env: Any, step: Any, frames: list[np.ndarray], action: Any) -> Any:
    result = step(action)
    frames.append(env.render())
    return result


def test_cameras_of_the_observation_are_scaled_as_by_the_wrapper() -> None:
    spec = ModelSpec(arch="resnet10", width=8, image_size=PIXELS, cameras=("top", "wrist"), hidden_dim=None)
    artifact, rules = Artifact(build(spec)), {"mode": "per_step", "reward_type": "continuous", "threshold": 0.0}
    vector = play(sb3.make_vec_env("PointCameras-v0", artifact, 1, **rules), 20)
    alone = RewardModelWrapper(gym.make("PointCameras-v0"), artifact, **rules)
    alone.reset(seed=0)
    random, box = np.random.default_rng(0), alone.action_space
    for rewards, _, _ in vector:
        action = random.uniform(box.low, box.high, (1, 3)).astype(np.float32)[0]
        assert rewards[0] == pytest.approx(alone.step(action)[1], abs=1e-6)
    assert np.ptp([rewards[0] for rewards, _, _ in vector]) > 1e-4


@pytest.mark.parametrize("mode", ["terminal", "per_step"])
def test_the_reward_is_what_the_model_says_of_the_state_before_the_reset(artifact: Artifact, mode: str) -> None:
    rules = {"mode": mode, "reward_type": "continuous", "threshold": 0.0}
    vector = sb3.make_vec_env(POINT, artifact, 3, **rules)
    shown = DummyVecEnv([lambda: gym.make(POINT, render_mode="rgb_array")] * 3)
    drawn: list[list[np.ndarray]] = []
    for one in shown.envs:  # the same environments, each drawing what its step led to
        frames: list[np.ndarray] = []
        drawn.append(frames)
        one.step = partial(_drawing, one, one.step, frames)  # type: ignore[method-assign]
    plain = play(shown, 45)
    for number, (rewards, dones, infos) in enumerate(play(vector, 45)):
        assert dones.tolist() == plain[number][1].tolist()
        for i in range(3):
            assert infos[i]["referee/env_reward"] == pytest.approx(float(plain[number][0][i]))
            if mode == "terminal" and not dones[i]:
                assert rewards[i] == 0.0 and "referee/probability" not in infos[i]
                continue
            expected = artifact.judge(scaled(drawn[i][number], PIXELS)[None]).probability
            np.testing.assert_allclose(rewards[i], expected[0], atol=1e-5)


def test_pictures_in_the_observation_need_no_wrapper_inside(artifact: Artifact) -> None:
    top = Artifact(build(ModelSpec(arch="resnet10", width=8, image_size=48, cameras=("top",), hidden_dim=None)))
    vector = sb3.make_vec_env("PointCameras-v0", top, 2, mode="per_step", reward_type="continuous", threshold=0.0)
    vector.seed(0)
    observations = vector.reset()
    for _ in range(3):
        observations, rewards, _, _ = vector.step(np.zeros((2, 3), np.float32))
        np.testing.assert_allclose(rewards, top.judge(observations["top"]).probability, atol=1e-5)


def test_hindsight_relabelling_cannot_train_on_ground_truth(artifact: Artifact) -> None:
    vector = sb3.make_vec_env(POINT, artifact, 1)
    learner = SAC("MultiInputPolicy", vector, replay_buffer_class=HerReplayBuffer, learning_starts=45, batch_size=8)
    with pytest.raises(RefereeError, match="cannot be computed from goals: train without HER"):
        learner.learn(60)
    single = RewardModelWrapper(gym.make(POINT, render_mode="rgb_array"), artifact)
    with pytest.raises(RefereeError, match="train without HER"):
        single.get_wrapper_attr("compute_reward")(np.zeros(2), np.zeros(2), {})


def test_a_vector_environment_of_sb3_is_named_by_the_wrapper(artifact: Artifact) -> None:
    with pytest.raises(RefereeError, match=r"DummyVecEnv .* use referee\.integrations\.sb3\.RewardModelVecEnv"):
        RewardModelWrapper(DummyVecEnv([lambda: gym.make(POINT)]), artifact)  # type: ignore[type-var]


def test_an_environment_without_pictures_is_refused(artifact: Artifact) -> None:
    vector = sb3.RewardModelVecEnv(DummyVecEnv([lambda: gym.make(POINT)]), artifact, mode="per_step")
    vector.reset()
    with pytest.raises(RefereeError, match=r"no pictures of render: .*make_vec_env"):
        vector.step(np.zeros((1, 3), np.float32))
    with pytest.raises(RefereeError, match="cannot be reset one by one"):
        sb3.make_vec_env(POINT, artifact, 1, terminate_on_success=True)


class Renamed(gym.Wrapper[Any, Any, Any, Any]):
    """Tells success as gym-hil does."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, {"succeed": bool(info["is_success"])}


def renamed() -> gym.Env[Any, Any]:
    return Renamed(gym.make(POINT, render_mode="rgb_array"))


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """A small model with data to learn on from, and with a reference of its training frames."""
    env: Any = gym.make(POINT, render_mode="rgb_array").unwrapped
    frames, labels = [], []
    for seed in range(120):
        env.reset(seed=seed)
        if seed % 2:
            env.point = env.goal.copy()
        frames.append(scaled(env.render(), PIXELS))
        labels.append(seed % 2)
    folder = tmp_path_factory.mktemp("learned")
    return referee.train(np.stack(frames), np.array(labels), groups=np.arange(120) // 2, out=folder / "reward",
                         max_epochs=1, width=8)  # fmt: skip


class Asked:
    """A labeller of somebody's own, who says no to everything."""

    def __init__(self) -> None:
        self.truths: list[Any] = []

    def ask(self, book: Book, sheet: Sheet, truth: Any) -> None:
        self.truths.append(truth)
        book.answer(sheet, [False] * len(sheet), source="web", who="somebody")


@pytest.mark.parametrize("inside", [False, True], ids=["alarm of the callback", "alarm inside"])
def test_sac_with_a_callback_an_alarm_and_a_labeller_of_ones_own(
    learned: Artifact, tmp_path: Path, inside: bool
) -> None:
    env = sb3.make_vec_env(renamed, learned, 2, mode="per_step", success="succeed", alarm=inside)
    asked = Asked()
    watch = sb3.RefereeCallback(env, interval=100, refine_in=tmp_path / "refined", labeller=asked, budget=6, ask=6)
    assert (watch.alarm is env.alarm) == inside and watch.alarm is not None
    learner = SAC("MultiInputPolicy", env, learning_starts=300, buffer_size=400, device="cpu", seed=0)
    logged: dict[str, list[float]] = {}
    learner.set_logger(_Keeping(logged))
    learner.learn(300, callback=watch, log_interval=1)
    assert {"reward/alarm", "reward/true_success", "reward/hacking_gap", "refine/asked"} <= set(logged)
    assert watch.refiner is not None and watch.refiner.book.asked == 6
    (truth,) = asked.truths
    assert truth is not None and truth.shape == (6,)
    assert np.mean(logged["reward/env_return"]) < -5  # distances
    assert np.min(logged["rollout/ep_rew_mean"]) >= 0 and np.max(logged["rollout/ep_rew_mean"]) <= 20  # per step 0 or 1


def test_the_logged_return_is_that_of_the_model(artifact: Artifact) -> None:
    env = sb3.make_vec_env(POINT, artifact, 3, mode="per_step", reward_type="continuous", threshold=0.0)
    returns, own = np.zeros(3), np.zeros(3)
    ended = 0
    for rewards, dones, infos in play(env, 45):
        returns += rewards
        own += [info["referee/env_reward"] for info in infos]
        for i in np.flatnonzero(dones):
            assert infos[i]["episode"]["r"] == pytest.approx(returns[i], abs=1e-4)
            assert infos[i]["episode"]["env_r"] == pytest.approx(own[i], abs=1e-4)
            returns[i], own[i], ended = 0, 0, ended + 1
    assert ended == 6


def test_a_labeller_that_is_never_told_is_refused_at_the_first_scored_step(learned: Artifact, tmp_path: Path) -> None:
    env = sb3.make_vec_env("PointSilent-v0", learned, 2, mode="per_step")
    watch = sb3.RefereeCallback(env, refine_in=tmp_path / "refined")
    learner = PPO("MultiInputPolicy", env, n_steps=8, batch_size=8, device="cpu")
    with pytest.raises(RefereeError, match="labeller='truth' needs to be told, but info has neither success nor"):
        learner.learn(64, callback=watch)
    assert learner.num_timesteps == 2
    sb3.RefereeCallback(env, refine_in=tmp_path / "log", labeller="log")
    with pytest.raises(RefereeError, match="labeller is 'me': give truth, terminal, log, or an object"):
        sb3.RefereeCallback(env, refine_in=tmp_path / "me", labeller="me")


@pytest.mark.slow
def test_refinement_inside_ppo_swaps_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of few episodes is asked about while PPO learns; a better one takes over, and scores from then on."""
    monkeypatch.chdir(tmp_path)
    recorder = GymRecorder(gym.make(POINT, render_mode="rgb_array"), "episodes", image_size=32)
    random = np.random.default_rng(0)
    for episode in range(40):
        observation, _ = recorder.reset(seed=episode)
        done = False
        while not done:
            towards = (observation["desired_goal"] - observation["achieved_goal"]) / 0.5
            noise = random.normal(0, 0.2 if episode % 2 else 1.5, 2)
            action = np.append(np.clip(towards + noise, -0.5, 0.5), 0).astype(np.float32)
            observation, *_, done, _ = recorder.step(action)
    recorder.close()
    assert main(["train", "episodes", "--out", "reward", "runner.max_epochs=2"]) == 0
    env = sb3.make_vec_env(POINT, "reward/checkpoints/best_model", 8, mode="per_step")
    first = env.scorer.artifact
    watch = sb3.RefereeCallback(env, interval=1024, refine_in="refined", labeller="truth", budget=72)
    learner = PPO("MultiInputPolicy", env, n_steps=64, batch_size=64, seed=0, device="cpu")
    logged: dict[str, list[float]] = {}
    learner.set_logger(_Keeping(logged))
    learner.learn(6144, callback=watch)
    assert watch.refiner is not None and watch.refiner.book.asked == 72
    assert watch.swaps and env.scorer.artifact is not first
    assert {"reward/model_success", "reward/true_success", "reward/hacking_gap", "refine/version"} <= set(logged)
    gaps = zip(logged["reward/model_success"], logged["reward/true_success"], strict=True)
    np.testing.assert_allclose(logged["reward/hacking_gap"], [model - true for model, true in gaps])


class _Keeping:
    """A logger of SB3 that keeps what it is told."""

    def __init__(self, logged: dict[str, list[float]]) -> None:
        self.logged, self.level = logged, 20
        self.name_to_value: dict[str, float] = {}

    def record(self, name: str, value: Any, exclude: Any = None) -> None:
        self.logged.setdefault(name, []).append(value)

    record_mean = record

    def dump(self, step: int = 0) -> None:
        pass
