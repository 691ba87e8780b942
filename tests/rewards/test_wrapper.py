"""The wrapper pays what the artifact sees, in a single env and in vector envs that reset whenever they like."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from referee.config import PandaEnvConfig
from referee.envs import make_vec
from referee.errors import RefereeError
from referee.metrics.gate import first, gate
from referee.models import Artifact, Calibration, ModelSpec, Reference, build
from referee.models.artifact import embed
from referee.rewards.wrapper import RewardModelWrapper

PIXELS, FRAMES = 16, 64
PICTURES = np.random.default_rng(0).integers(0, 256, (FRAMES, PIXELS, PIXELS, 3), dtype=np.uint8)
MODES = pytest.mark.parametrize("autoreset", list(AutoresetMode))


def make_artifact(cameras: tuple[str, ...] = ("main_images",), k: int = 1, n: int = 1) -> Artifact:
    """A tiny model that calls half of the pictures a success."""
    torch.manual_seed(1)
    model = build(ModelSpec(arch="resnet10", width=8, hidden_dim=8, image_size=PIXELS, cameras=cameras)).eval()
    pictures = PICTURES if len(cameras) == 1 else np.stack([PICTURES] * len(cameras), 1)
    threshold = float(np.median(Artifact(model).judge(pictures).probability))
    return Artifact(model, Calibration(threshold=threshold, gate_k=k, gate_n=n))


ARTIFACT = make_artifact()
SAID = ARTIFACT.judge(PICTURES).probability
THRESHOLD = ARTIFACT.calibration.threshold


class Film(gym.Env[Any, Any]):
    """Shows picture after picture; an episode ends after `length` steps, every other one by termination."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - Gymnasium declares it so

    def __init__(self, kind: str = "dict", *, place: int = 0, length: int = 5, render_mode: str | None = None) -> None:
        self.kind, self.place, self.length, self.render_mode = kind, place, length, render_mode
        self.episode, self.step_number = -1, 0
        self.action_space = gym.spaces.Discrete(2)
        image = gym.spaces.Box(0, 255, (PIXELS, PIXELS, 3), np.uint8)
        state = gym.spaces.Box(0, FRAMES, (1,), np.float32)
        spaces = {"dict": gym.spaces.Dict({"main_images": image, "state": state}), "image": image, "state": state}
        self.observation_space = spaces[kind]

    @property
    def number(self) -> int:
        return (17 * self.place + 7 * self.episode + self.step_number) % FRAMES

    def _observe(self) -> Any:
        state = np.array([self.number], np.float32)
        everything = {"main_images": PICTURES[self.number], "state": state}
        return {"dict": everything, "image": PICTURES[self.number], "state": state}[self.kind]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.step_number = self.episode + 1, 0
        return self._observe(), {"number": self.number, "first": True}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.step_number += 1
        ended = self.step_number >= self.length
        by_itself = self.episode % 2 == 0
        info = {"number": self.number, "nested": {"twice": 2 * self.number}}
        return self._observe(), 10.0 + self.step_number, ended and by_itself, ended and not by_itself, info

    def render(self) -> Any:
        return PICTURES[self.number]


def episode(env: gym.Env[Any, Any]) -> tuple[list[float], list[dict[str, Any]], bool]:
    """Rewards, infos, and whether the episode was terminated rather than cut off."""
    env.reset()
    rewards, infos = [], []
    while True:
        _, reward, terminated, truncated, info = env.step(0)
        rewards.append(reward)
        infos.append(info)
        if terminated or truncated:
            return rewards, infos, terminated


# --- a single env ---


def test_every_step_pays_what_the_model_sees_in_the_state_it_leads_to() -> None:
    rewards, infos, _ = episode(RewardModelWrapper(Film(), ARTIFACT, mode="per_step"))
    success = SAID[1:6] >= THRESHOLD
    assert 0 < success.sum() < 5
    assert rewards == success.astype(float).tolist()
    assert [info["referee/env_reward"] for info in infos] == [11, 12, 13, 14, 15]
    assert [info["referee/success"] for info in infos] == success.tolist()
    np.testing.assert_allclose([info["referee/probability"] for info in infos], SAID[1:6], rtol=0, atol=1e-6)
    assert [info["number"] for info in infos] == [1, 2, 3, 4, 5]


def test_terminal_mode_asks_once_and_pays_at_the_end() -> None:
    env = RewardModelWrapper(Film(), ARTIFACT, success_reward=2.0, fail_reward=-1.0, reward_weight=3.0)
    asked: list[int] = []
    seen = ARTIFACT.seen
    try:
        ARTIFACT.seen = lambda images: (asked.append(len(images)), seen(images))[1]  # type: ignore[method-assign]
        for number in (5, 12):  # the last pictures of two episodes
            rewards, infos, _ = episode(env)
            assert rewards == [0, 0, 0, 0, 6.0 if SAID[number] >= THRESHOLD else -3.0]
            assert ["referee/success" in info for info in infos] == [False] * 4 + [True]
            assert all("referee/env_reward" in info for info in infos)
    finally:
        del ARTIFACT.seen  # type: ignore[method-assign]
    assert asked == [1, 1]


def test_continuous_pays_the_probability_and_nothing_below_the_threshold() -> None:
    rewards, _, _ = episode(RewardModelWrapper(Film(), ARTIFACT, mode="per_step", reward_type="continuous"))
    np.testing.assert_allclose(rewards, np.where(SAID[1:6] >= THRESHOLD, SAID[1:6], 0), rtol=0, atol=1e-6)


def test_the_envs_reward_counts_by_its_weight_and_not_at_all_with_none() -> None:
    rewards, _, _ = episode(RewardModelWrapper(Film(), ARTIFACT, reward_weight=0.0, env_reward_weight=0.5))
    assert rewards == [5.5, 6, 6.5, 7, 7.5]
    broken = gym.wrappers.TransformReward(Film(), lambda reward: float("nan"))
    rewards, infos, _ = episode(RewardModelWrapper(broken, ARTIFACT, mode="per_step"))
    assert np.isfinite(rewards).all() and np.isnan(infos[0]["referee/env_reward"])


@pytest.mark.parametrize("limits", [(1, 1), (2, 3), (3, 3)])
def test_the_gate_pays_and_ends_where_k_of_the_last_n_states_are_successes(limits: tuple[int, int]) -> None:
    success = SAID >= THRESHOLD
    env = RewardModelWrapper(Film(length=20), ARTIFACT, mode="per_step", gate=limits)
    artifact = make_artifact(k=limits[0], n=limits[1])
    ending = RewardModelWrapper(Film(length=20), artifact, terminate_on_success=True, fail_reward=-1.0)
    for start in (0, 7):  # the second episode knows nothing of the first
        fires = gate(success[start + 1 : start + 21], *limits)
        assert fires.any()
        assert episode(env)[0] == fires.astype(float).tolist()
        rewards, infos, terminated = episode(ending)
        before = int(first(fires))
        assert rewards == [0.0] * before + [1.0] and terminated and infos[-1]["referee/success"]


@pytest.mark.parametrize("make", [Film, lambda: vector(AutoresetMode.NEXT_STEP, number=1)], ids=["single", "vector"])
def test_a_reset_in_the_middle_starts_the_gate_anew(make: Callable[[], Any]) -> None:
    env = RewardModelWrapper(make(), ARTIFACT, mode="per_step", gate=(2, 2), threshold=0.0)
    action = env.action_space.sample()
    paid = []
    for _ in range(2):
        env.reset()
        paid += [float(np.sum(env.step(action)[1])) for _ in range(3)]
    assert paid == [0, 1, 1, 0, 1, 1]


def test_a_threshold_of_ones_own() -> None:
    assert episode(RewardModelWrapper(Film(), ARTIFACT, mode="per_step", threshold=0.0))[0] == [1.0] * 5
    assert episode(RewardModelWrapper(Film(), ARTIFACT, mode="per_step", threshold=1.0))[0] == [0.0] * 5


def show(env: Any) -> dict[str, np.ndarray]:
    return {"main_images": PICTURES[[env.unwrapped.number]]}


@pytest.mark.parametrize(
    ("env", "images"),
    [
        (Film("image"), None),
        (Film("image"), "observation"),
        (Film("state", render_mode="rgb_array"), None),
        (Film("dict", render_mode="rgb_array"), "render"),
        (Film("state"), show),
    ],
    ids=["image", "asked for", "render", "render asked for", "callable"],
)
def test_pictures_from_anywhere_pay_the_same(env: Film, images: Any) -> None:
    rewards, _, _ = episode(
        RewardModelWrapper(gym.wrappers.TimeLimit(env, 4), ARTIFACT, mode="per_step", images=images)
    )
    assert rewards == (SAID[1:5] >= THRESHOLD).astype(float).tolist()


def test_a_model_of_two_cameras_gets_both_in_its_order() -> None:
    artifact = make_artifact(("front", "side"))
    other = PICTURES[::-1]
    env = Film("state", length=3)
    wrapped = RewardModelWrapper(
        env, artifact, mode="per_step", reward_type="continuous", threshold=0.0,
        images=lambda env: {"side": other[[env.number]], "front": PICTURES[[env.number]]},
    )  # fmt: skip
    expected = artifact.judge(np.stack([PICTURES[1:4], other[1:4]], 1)).probability
    np.testing.assert_allclose(episode(wrapped)[0], expected, rtol=0, atol=1e-6)


def test_an_artifact_is_opened_by_its_path(tmp_path: Path) -> None:
    ARTIFACT.save(tmp_path / "model")
    expected = episode(RewardModelWrapper(Film(), ARTIFACT, mode="per_step"))[0]
    assert episode(RewardModelWrapper(Film(), tmp_path / "model", mode="per_step"))[0] == expected


@pytest.mark.parametrize(
    ("make", "options", "said"),
    [
        (lambda: Film("state"), {}, "no pictures of main_images"),
        (lambda: Film("state"), {"images": "render"}, "render_mode='rgb_array'"),
        (lambda: Film(), {"images": "camera"}, "images is 'camera'"),
        (lambda: Film(), {"mode": "sometimes"}, "mode is 'sometimes'"),
        (lambda: Film(), {"reward_type": "score"}, "reward_type is 'score'"),
        (lambda: Film(), {"threshold": 1.5}, "threshold is 1.5"),
        (lambda: Film(), {"reward_weight": float("inf")}, "reward_weight is inf"),
        (lambda: Film(), {"mode": "per_step", "gate": (3, 2)}, "3 of 2"),
        (lambda: Film(), {"gate": (2, 3)}, "gate changes nothing in terminal mode"),
        (lambda: gym.wrappers.Autoreset(Film()), {}, "put Autoreset around"),
        (lambda: vector(AutoresetMode.SAME_STEP, "state", render_mode="rgb_array"), {}, "show the next episode"),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_step(
    make: Callable[[], Any], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(RefereeError, match=said):
        RewardModelWrapper(make(), ARTIFACT, **options)


# --- vector envs: as many single envs that are reset by hand pay the same ---


def vector(autoreset: AutoresetMode, kind: str = "dict", number: int = 3, **options: Any) -> SyncVectorEnv:
    def one(place: int) -> Callable[[], Film]:
        return lambda: Film(kind, place=place, length=4 + place, **options)

    return SyncVectorEnv([one(place) for place in range(number)], autoreset_mode=autoreset)


class ByHand:
    """Single wrapped envs, stepped and reset as a vector env of some mode does it."""

    def __init__(self, autoreset: AutoresetMode, artifact: Artifact, number: int = 3, **options: Any) -> None:
        self.autoreset, self.done = autoreset, [False] * number
        films = [Film(place=place, length=4 + place) for place in range(number)]
        self.envs = [RewardModelWrapper(film, artifact, **options) for film in films]
        for env in self.envs:
            env.reset()

    def step(self) -> list[dict[str, Any]]:
        """What each env has to show for this step."""
        shown = []
        for place, env in enumerate(self.envs):
            if self.done[place] and self.autoreset is not AutoresetMode.SAME_STEP:
                observation, info = env.reset()
                if self.autoreset is AutoresetMode.NEXT_STEP:
                    self.done[place] = False
                    shown.append({"obs": observation, "reward": 0.0, "ends": (False, False), "info": info})
                    continue
            observation, reward, *ends, info = env.step(0)
            row = {"obs": observation, "reward": reward, "ends": tuple(ends), "info": info}
            self.done[place] = any(ends)
            if self.done[place] and self.autoreset is AutoresetMode.SAME_STEP:
                row["final"] = {"obs": observation, "info": info}
                row["obs"], started = env.reset()
                row["info"] = started | {name: info[name] for name in info if name.startswith("referee/")}
            shown.append(row)
        return shown


def assert_same(observations: Any, place: int, expected: Any) -> None:
    for name, value in expected.items():
        np.testing.assert_array_equal(observations[name][place], value)


@MODES
@pytest.mark.parametrize("mode", ["per_step", "terminal"])
@pytest.mark.parametrize("ending", [False, True], ids=["", "ending on success"])
@pytest.mark.parametrize("gate", [(1, 1), (2, 3)])
def test_a_vector_env_pays_as_single_envs_do(
    autoreset: AutoresetMode, mode: str, ending: bool, gate: tuple[int, int]
) -> None:
    artifact = make_artifact(k=gate[0], n=gate[1])
    options: dict[str, Any] = {"mode": mode, "terminate_on_success": ending, "env_reward_weight": 0.25}
    env, by_hand = RewardModelWrapper(vector(autoreset), artifact, **options), ByHand(autoreset, artifact, **options)
    env.reset()
    ended = np.zeros(3, int)
    for _ in range(30):
        expected = by_hand.step()
        observations, rewards, terminated, truncated, info = env.step(np.zeros(3, int))
        for place, row in enumerate(expected):
            assert_same(observations, place, row["obs"])
            assert rewards[place] == pytest.approx(row["reward"], abs=1e-6)
            assert (terminated[place], truncated[place]) == row["ends"]
            for name in ("env_reward", "probability", "success"):
                key = f"referee/{name}"
                assert info[f"_{key}"][place] == (key in row["info"])
                if key in row["info"]:
                    assert info[key][place] == pytest.approx(row["info"][key], abs=1e-6)
            assert info["number"][place] == row["info"]["number"]
            assert info.get("_first", np.zeros(3, bool))[place] == ("first" in row["info"])
            assert info.get("_nested", np.zeros(3, bool))[place] == ("nested" in row["info"])
            assert info.get("_final_obs", np.zeros(3, bool))[place] == ("final" in row)
            if "final" in row:
                last = row["final"]
                np.testing.assert_array_equal(info["final_obs"][place]["main_images"], last["obs"]["main_images"])
                assert info["_final_info"][place] and info["final_info"]["_number"][place]
                assert info["final_info"]["number"][place] == last["info"]["number"]
                assert info["final_info"]["nested"]["twice"][place] == 2 * last["info"]["number"]
        done = terminated | truncated
        ended += done
        if autoreset is AutoresetMode.DISABLED and done.any():
            env.reset(options={"reset_mask": done})
    assert (ended >= 3).all()


@MODES
def test_what_the_policy_sees_does_not_depend_on_the_gate_of_its_neighbours(autoreset: AutoresetMode) -> None:
    """Two of two is reached in one env, reset there, and goes on counting in the others."""
    artifact = make_artifact(k=2, n=2)
    env = RewardModelWrapper(vector(autoreset), artifact, mode="per_step", terminate_on_success=True)
    env.reset()
    numbers: list[list[int]] = [[], [], []]
    for _ in range(12):
        *_, terminated, truncated, info = env.step(np.zeros(3, int))
        for place in range(3):
            if not info["_referee/success"][place]:
                numbers[place] = []
                continue
            final = info.get("_final_info", np.zeros(3, bool))[place]
            shown = info["final_info"]["number"] if final else info["number"]
            numbers[place].append(int(shown[place]))
            two = len(numbers[place]) >= 2 and (SAID[numbers[place][-2:]] >= THRESHOLD).all()
            assert info["referee/success"][place] == two
            assert not two or terminated[place]
        done = terminated | truncated
        for place in np.flatnonzero(done):
            numbers[place] = []
        if autoreset is AutoresetMode.DISABLED and done.any():
            env.reset(options={"reset_mask": done})


@pytest.mark.parametrize("autoreset", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
@pytest.mark.parametrize("images", [None, lambda env: {"main_images": np.stack(env.render())}], ids=["", "callable"])
def test_pictures_by_render_pay_the_same_as_those_in_the_observation(autoreset: AutoresetMode, images: Any) -> None:
    plain = RewardModelWrapper(vector(autoreset), ARTIFACT, mode="per_step")
    drawn = RewardModelWrapper(
        vector(autoreset, "state", render_mode="rgb_array"), ARTIFACT, mode="per_step", images=images
    )
    plain.reset(), drawn.reset()
    for _ in range(10):
        one, other = plain.step(np.zeros(3, int)), drawn.step(np.zeros(3, int))
        np.testing.assert_array_equal(one[1], other[1])
        if autoreset is AutoresetMode.DISABLED and (done := one[2] | one[3]).any():
            plain.reset(options={"reset_mask": done.copy()}), drawn.reset(options={"reset_mask": done.copy()})


def test_an_image_observation_of_a_vector_env() -> None:
    for autoreset in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
        one = RewardModelWrapper(vector(autoreset), ARTIFACT)
        other = RewardModelWrapper(vector(autoreset, "image"), ARTIFACT)
        one.reset(), other.reset()
        paid = 0.0
        for _ in range(20):
            rewards = one.step(np.zeros(3, int))[1]
            np.testing.assert_array_equal(rewards, other.step(np.zeros(3, int))[1])
            paid += rewards.sum()
        assert paid > 0


class Forgetful(SyncVectorEnv):
    """Resets everybody, whoever was meant; as some vector envs of Gymnasium do."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed)


def test_an_env_that_cannot_reset_one_episode_is_found_out() -> None:
    made = Forgetful([lambda: Film(place=0), lambda: Film(place=3)])
    env = RewardModelWrapper(made, ARTIFACT, terminate_on_success=True)
    env.reset()
    with pytest.raises(RefereeError, match="does not know reset_mask"):
        [env.step(np.zeros(2, int)) for _ in range(10)]


def test_an_env_that_does_not_say_when_it_resets_is_refused() -> None:
    made = vector(AutoresetMode.NEXT_STEP)
    del made.metadata["autoreset_mode"]
    with pytest.raises(RefereeError, match="autoreset_mode"):
        RewardModelWrapper(made, ARTIFACT)


# --- the alarm, and where success is told ---


class Dimmed(Film):
    """A film whose light goes out when somebody says so; told of success under a name of its own, at the end alone."""

    dark = False

    def _observe(self) -> Any:
        observation = super()._observe()
        return observation // 8 if type(self).dark else observation

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated, {**info, "succeed": self.number % 2 == 0}


def knowing(pictures: np.ndarray) -> Artifact:
    """The model, with a reference of pictures that it is said to know."""
    features = embed(ARTIFACT.model, pictures[:, None])
    reference = Reference.of(features, pictures[:, None]).calibrated(features)
    return Artifact(ARTIFACT.model, ARTIFACT.calibration, reference=reference)


@pytest.fixture
def light() -> Iterator[None]:
    Dimmed.dark = False
    yield
    Dimmed.dark = False


def dimmed(number: int) -> Any:
    if number == 0:
        return Dimmed("image")
    kinds = [lambda place=place: Dimmed("image", place=place) for place in range(number)]
    return SyncVectorEnv(kinds, autoreset_mode=AutoresetMode.SAME_STEP)


def play(env: Any, steps: int, number: int) -> list[dict[str, Any]]:
    infos = []
    for _ in range(steps):
        *_, terminated, truncated, info = env.step(np.zeros(number, int) if number else 0)
        infos.append(info)
        if not number and (terminated or truncated):
            env.reset()
    return infos


@pytest.mark.parametrize("number", [0, 4])
def test_an_alarm_is_raised_once_and_renewed_by_a_better_model(
    light: None, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    env: Any = RewardModelWrapper(dimmed(number), knowing(PICTURES), mode="per_step", alarm=True)
    env.reset()
    steps = 512 // max(1, number)
    assert not np.any([info["referee/alarm"] for info in play(env, steps, number)])
    assert env.alarm.raised_at is None and not caplog.text
    Dimmed.dark = True
    infos = play(env, steps, number)
    assert np.all(infos[-1]["referee/alarm"]) and not np.any(infos[0]["referee/alarm"])
    assert 512 < env.alarm.raised_at <= 1024
    assert [record.message.startswith("alarm at step ") for record in caplog.records] == [True]
    assert "unlike those of training" in caplog.text
    env.swap(knowing(np.concatenate([PICTURES, PICTURES // 8])))
    assert env.alarm.raised_at is None
    assert not np.any([info["referee/alarm"] for info in play(env, steps, number)])
    assert len(caplog.records) == 1 and env.take_scored() is not None


def test_no_alarm_unless_asked_for_and_none_without_a_reference() -> None:
    env = RewardModelWrapper(Film(), ARTIFACT, mode="per_step")
    env.reset()
    assert env.alarm is None and "referee/alarm" not in env.step(0)[4]
    with pytest.raises(RefereeError, match=r"alarm=True: .* leave alarm out, or train the model with Referee"):
        RewardModelWrapper(Film(), ARTIFACT, alarm=True)
    watched = RewardModelWrapper(Film(), knowing(PICTURES), alarm=True)
    with pytest.raises(RefereeError, match="leave alarm out"):
        watched.swap(ARTIFACT)


def by_name(info: Any) -> bool:
    return bool(info["succeed"])


@pytest.mark.parametrize("success", ["succeed", by_name], ids=["key", "function"])
@pytest.mark.parametrize("mode", ["terminal", "per_step"])
@pytest.mark.parametrize("number", [0, 4])
def test_success_is_told_under_any_name(success: Any, mode: Any, number: int) -> None:
    """gym-hil says `succeed`; all environments of a vector end at once here, as where episodes have one length."""
    env: Any = RewardModelWrapper(dimmed(number), ARTIFACT, mode=mode, success=success)
    env.reset()
    play(env, 20, number)
    scored = env.take_scored()
    assert scored.truth is not None and len(scored) == max(1, number) * (20 if mode == "per_step" else 4)
    pictures = {picture.tobytes(): place for place, picture in enumerate(PICTURES)}
    numbers = [pictures[image[0].tobytes()] for image in scored.images]
    assert [bool(place % 2 == 0) for place in numbers] == scored.truth.tolist()
    silent: Any = RewardModelWrapper(dimmed(number), ARTIFACT, mode=mode)
    silent.reset()
    play(silent, 20, number)
    assert silent.take_scored().truth is None  # it has neither success nor is_success


def test_a_key_that_info_does_not_have_is_refused() -> None:
    env = RewardModelWrapper(Film(), ARTIFACT, mode="per_step", success="succeed")
    env.reset()
    with pytest.raises(RefereeError, match=r"info of step\(\) has no 'succeed' \(success=\), only number, nested"):
        env.step(0)


@pytest.mark.slow
def test_processes_pay_the_same() -> None:
    for autoreset in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
        here = RewardModelWrapper(vector(autoreset), ARTIFACT, mode="per_step", terminate_on_success=True)
        there = RewardModelWrapper(
            AsyncVectorEnv([lambda place=place: Film(place=place, length=4 + place) for place in range(3)],
                           autoreset_mode=autoreset),
            ARTIFACT, mode="per_step", terminate_on_success=True,
        )  # fmt: skip
        here.reset(), there.reset()
        for _ in range(12):
            for one, other in zip(here.step(np.zeros(3, int))[1:4], there.step(np.zeros(3, int))[1:4], strict=True):
                np.testing.assert_array_equal(one, other)
        there.close()


# --- the embedded world ---


@pytest.fixture(scope="module")
def side_artifact() -> Artifact:
    torch.manual_seed(0)
    model = build(ModelSpec(arch="resnet10", width=8, hidden_dim=8, image_size=64, cameras=("side",))).eval()
    return Artifact(model, Calibration(threshold=0.0))


@pytest.mark.parametrize("obs_mode", ["state", "rgb"])
def test_the_panda_is_judged_by_its_last_state_not_by_the_next_episode(side_artifact: Artifact, obs_mode: str) -> None:
    config = PandaEnvConfig(task="Reach", num_envs=2, max_episode_steps=3, obs_mode=obs_mode, num_threads=1)
    env, twin = RewardModelWrapper(make_vec(config), side_artifact, reward_type="continuous"), make_vec(config)
    env.reset(seed=5), twin.reset(seed=5)
    random = np.random.default_rng(0)
    for step in range(1, 5):
        actions = random.uniform(-1, 1, (2, 4)).astype(np.float32)
        _, rewards, _, truncated, info = env.step(actions)
        twin.step(actions)
        assert truncated.all() == (step == 3)
        if step != 3:
            assert rewards.tolist() == [0, 0] and not info["_referee/success"].any()
            continue
        last = twin.render_cameras(final=True, cameras=["side"])["main_images"]
        np.testing.assert_allclose(rewards, side_artifact.judge(last).probability, rtol=0, atol=1e-6)
        following = side_artifact.judge(twin.render_cameras(cameras=["side"])["main_images"]).probability
        assert np.abs(rewards - following).max() > 1e-5
    env.close(), twin.close()


@pytest.mark.slow
def test_the_example_trains_stable_baselines3(
    tmp_path: Path, side_artifact: Artifact, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("stable_baselines3")
    side_artifact.save(tmp_path / "model")
    script = Path(__file__).parents[2] / "examples" / "wrap_sb3.py"
    monkeypatch.setattr("sys.argv", [str(script), str(tmp_path / "model"), "--steps", "512"])
    runpy.run_path(str(script), run_name="__main__")
    assert "model success" in capsys.readouterr().out
