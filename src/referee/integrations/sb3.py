"""Referee inside Stable-Baselines3: a learned reward for its vector environments, and a callback that watches it.

from stable_baselines3 import PPO
from referee.integrations import sb3

env = sb3.make_vec_env("FetchReach-v4", "reward/checkpoints/best_model", n_envs=8)
watch = sb3.RefereeCallback(env, refine_in="refined", labeller="truth", budget=240)
PPO("MultiInputPolicy", env).learn(100_000, callback=watch)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from referee.envs.gym.env import find_spec
from referee.envs.gym.share import Layout, as_rgb
from referee.errors import MissingDependency, RefereeError
from referee.models.artifact import Artifact
from referee.models.contract import select_views
from referee.pictures import scaled
from referee.refine.labellers import Labeller, Truth
from referee.refine.loop import RefineOptions, Refiner
from referee.rewards.alarm import Alarm
from referee.rewards.env_pictures import fitted
from referee.rewards.scored import ScoredFrames
from referee.rewards.step_scorer import Rules, StepScorer, Success, stalled_in, truth_of
from referee.rewards.wrapper import ALARM, ENV_REWARD, NO_RELABELLING, PROBABILITY, SUCCESS

try:
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecEnvWrapper
except ImportError as error:
    raise MissingDependency(
        f"referee.integrations.sb3 needs stable-baselines3: pip install 'referee-rl[sb3]' ({error})"
    ) from error

TRUE_SUCCESS = "referee/true_success"
"""Info key: what the environment tells of true success, where the model was asked."""
PICTURES = "referee/pictures"
"""Info key between `PictureInfo` and `RewardModelVecEnv`: {camera: uint8[H,W,3]} of the state that the step led to."""
_log = logging.getLogger(__name__)


class PictureInfo(gym.Wrapper[Any, Any, Any, Any]):
    """Puts pictures for a reward model into info, before a vector environment resets the episode.

    Inside each environment of a `DummyVecEnv` or `SubprocVecEnv`; `make_vec_env` puts it there.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        *,
        every_step: bool = False,
        images: Callable[[Any], Any] | None = None,
        image_size: int | tuple[int, int] | None = None,
    ) -> None:
        """every_step: not only at the end of an episode. images: a function of the environment; None: `render()`."""
        super().__init__(env)
        self._every, self._images, self._size = every_step, images, image_size
        if images is None and env.render_mode != "rgb_array":
            raise RefereeError(f"{env} gives no picture: make it with render_mode='rgb_array', or give images=")

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if self._every or terminated or truncated:
            given = self.env.render() if self._images is None else self._images(self.env)
            pictures: Mapping[str, Any] = given if isinstance(given, Mapping) else {"main_images": given}
            info = {**info, PICTURES: {name: self._sized(picture) for name, picture in pictures.items()}}
        return observation, reward, terminated, truncated, info

    def _sized(self, picture: Any) -> np.ndarray:
        array = as_rgb(np.asarray(picture))
        return array if self._size is None else scaled(array, self._size)


class RewardModelVecEnv(VecEnvWrapper):
    """A vector environment of Stable-Baselines3 whose reward is what an artifact sees; all frames in one batch.

    Pictures come from the observation where it holds the model's cameras, else from `PictureInfo` inside.
    `infos[i]` also has `referee/env_reward` and, where the model was asked, `referee/probability`, `referee/success`.
    Where SB3's `Monitor` lies inside, `info["episode"]["r"]`, and with it `rollout/ep_rew_mean`, is the return of the
    model's reward; that of the environment's own is `info["episode"]["env_r"]`.
    """

    def __init__(
        self,
        venv: VecEnv,
        artifact: Artifact | Path | str,
        *,
        alarm: bool = False,
        success: Success = None,
        **rules: Any,
    ) -> None:
        """alarm, success: see `RewardModelWrapper`.

        rules: fields of `referee.rewards.step_scorer.Rules`: mode, reward_type, threshold, gate, …"""
        super().__init__(venv)
        chosen = Rules(**rules)
        if chosen.terminate_on_success:
            raise RefereeError(
                "terminate_on_success: a vector environment of Stable-Baselines3 cannot be reset one by one; end "
                "episodes inside, with referee.RewardModelWrapper around each environment"
            )
        opened = artifact if isinstance(artifact, Artifact) else Artifact.open(artifact)
        self.scorer, self._success = StepScorer(opened, venv.num_envs, chosen, alarm=alarm), success
        self._returns = np.zeros(venv.num_envs)
        self._layout = Layout.of(venv.observation_space, None, str(venv.observation_space))

    def reset(self) -> Any:
        """New episodes everywhere."""
        self.scorer.begin(np.ones(self.num_envs, bool))
        self._returns[:] = 0
        return self.venv.reset()

    def step_wait(self) -> tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """The result of a step, with the reward of the model."""
        observations, env_rewards, dones, infos = self.venv.step_wait()
        pictures = [info.pop(PICTURES, None) for info in infos]
        due = np.asarray(dones, bool) | self.scorer.rules.every_state
        told = [truth_of(info, self._success) if due[i] else False for i, info in enumerate(infos)]
        truth = None if None in told else np.array([bool(each) for each in told])

        def see(ids: np.ndarray) -> np.ndarray:
            return np.stack([self._views(i, pictures[i], observations, dones, infos) for i in ids.tolist()])

        stalled = np.array([stalled_in(info) for info in infos])
        live = np.ones(self.num_envs, bool)
        score = self.scorer.score(
            np.asarray(env_rewards, np.float64), live, np.asarray(dones, bool), stalled, see, truth
        )
        self.scorer.begin(np.asarray(dones, bool))
        self._returns += score.reward
        for i, info in enumerate(infos):
            info[ENV_REWARD] = float(env_rewards[i])
            if due[i] and told[i] is not None:
                info[TRUE_SUCCESS] = bool(told[i])
            if self.scorer.watch is not None:
                info[ALARM] = self.scorer.watch.raised
            if dones[i] and "episode" in info:  # of a Monitor, which sees the environment's own rewards
                own = info["episode"]
                info["episode"] = {**own, "r": round(float(self._returns[i]), 6), "env_r": own["r"]}
            if score.judged[i]:
                info |= {PROBABILITY: float(score.probability[i]), SUCCESS: bool(score.success[i])}
        self._returns[np.asarray(dones, bool)] = 0
        return observations, score.reward.astype(np.float32), dones, infos

    def swap(self, artifact: Artifact | Path | str) -> None:
        """Let another model score from the next step on."""
        self.scorer.swap(artifact if isinstance(artifact, Artifact) else Artifact.open(artifact))

    @property
    def alarm(self) -> Alarm | None:
        """What watches the scored frames; None unless asked for (`alarm=True`)."""
        return None if self.scorer.watch is None else self.scorer.watch.alarm

    def take_scored(self) -> ScoredFrames | None:
        """A sample of the frames that were scored since the last call; None if none were."""
        return self.scorer.scored.take()

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        """See SB3; `compute_reward` is refused, which hindsight relabelling would call."""
        if method_name == "compute_reward":
            raise RefereeError(NO_RELABELLING)
        return self.venv.env_method(method_name, *method_args, indices=indices, **method_kwargs)

    def _views(
        self, i: int, pictures: Mapping[str, np.ndarray] | None, observations: Any, dones: Any, infos: Any
    ) -> np.ndarray:
        """uint8[V,H,W,3]: what the model looks at in the state that environment i was led to."""
        artifact = self.scorer.artifact
        cameras = artifact.spec.cameras
        if pictures is None:
            seen = infos[i]["terminal_observation"] if dones[i] else _row(observations, i)
            named = {name: self._layout.image(seen, name) for name in self._layout.image_keys}
            pictures = {name: image for name, image in named.items() if image is not None}
        if not pictures:
            raise RefereeError(
                f"no pictures of {', '.join(cameras)}: neither in the observation nor in info; make the environments "
                "with referee.integrations.sb3.make_vec_env, or put PictureInfo around each"
            )
        scaled_pictures = {name: fitted(image[None], artifact.picture_size) for name, image in pictures.items()}
        views = np.asarray(select_views(scaled_pictures, cameras, None))[0]
        return views if views.ndim == 4 else views[None]


def make_vec_env(
    env: str | Callable[[], gym.Env[Any, Any]],
    artifact: Artifact | Path | str,
    n_envs: int = 1,
    *,
    subprocesses: bool = False,
    images: Callable[[Any], Any] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    alarm: bool = False,
    success: Success = None,
    **rules: Any,
) -> RewardModelVecEnv:
    """A vector environment of Stable-Baselines3 with the reward of an artifact.

    env: a Gymnasium id, or a function that makes one environment. images: see `PictureInfo`.
    alarm, success: see `RewardModelWrapper`.
    rules: fields of `Rules`: mode="per_step", reward_type="continuous", …
    """
    opened = artifact if isinstance(artifact, Artifact) else Artifact.open(artifact)
    every = Rules(**rules).every_state
    make = partial(_make_one, env, dict(env_kwargs or {}), opened.spec.cameras, images, every, opened.picture_size)
    kind: Any = SubprocVecEnv if subprocesses and n_envs > 1 else DummyVecEnv
    return RewardModelVecEnv(kind([make] * n_envs), opened, alarm=alarm, success=success, **rules)


def _make_one(
    env: str | Callable[[], gym.Env[Any, Any]], kwargs: dict[str, Any], cameras: tuple[str, ...],
    images: Callable[[Any], Any] | None, every_step: bool, image_size: tuple[int, int] | None,
) -> gym.Env[Any, Any]:  # fmt: skip
    from stable_baselines3.common.monitor import Monitor

    one = env() if callable(env) else gym.make(find_spec(env), **{"render_mode": "rgb_array", **kwargs})
    keys = Layout.of(one.observation_space, None, str(env)).image_keys
    if images is None and set(cameras) <= {*keys, "main_images"} and keys:
        return Monitor(one)  # the pictures are in the observation
    return Monitor(PictureInfo(one, every_step=every_step, images=images, image_size=image_size))


class RefereeCallback(BaseCallback):
    """Logs how far the learned reward can be trusted, raises the alarm, and refines the model while SB3 learns.

    Logged: `reward/model_success` and, where info tells success, `reward/true_success` and `reward/hacking_gap`
    (model − true, in episodes since the last look); `reward/alarm`; `refine/…` with refinement; `reward/env_return`,
    the mean return of the environment's own reward (SB3's `rollout/ep_rew_mean` is that of the model's).
    Rewards that an off-policy learner has stored stay those of the model that scored them.
    """

    def __init__(
        self,
        env: RewardModelVecEnv,
        *,
        interval: int = 2048,
        alarm: bool = True,
        refine_in: Path | str | None = None,
        labeller: str | Labeller = "truth",
        budget: int = 240,
        ask: int = 24,
        data: Path | str | None = None,
        seed: int = 0,
    ) -> None:
        """interval: environment steps between looks. refine_in: folder of questions, answers and model versions.

        labeller: truth, terminal, log, or an object with `ask` (see `referee.refine.labellers.Labeller`).
        data: folder with the model's train.pt and val.pt; None: those that it names.
        """
        super().__init__()
        self._env, self._interval = env, interval
        artifact = env.scorer.artifact
        self.alarm = env.alarm
        """The environment's own, where it has one; else one that looks whenever this callback does."""
        if self.alarm is None and alarm and artifact.reference is not None:
            self.alarm = Alarm(artifact)
        self.refiner: Refiner | None = None
        if refine_in is not None:
            options = RefineOptions(budget=budget, ask=ask, seed=seed)
            place = None if data is None else Path(data)
            self.refiner = Refiner(artifact, Path(refine_in), labeller, options, mode=env.scorer.rules.mode, data=place)
        self._asks_truth = self.refiner is not None and isinstance(self.refiner.labeller, Truth)
        self.swaps: list[int] = []
        """Steps at which a better model took over."""
        self._looked_at = 0
        self._episodes: list[tuple[bool, bool | None]] = []
        self._env_returns: list[float] = []

    def _on_step(self) -> bool:
        for done, info in zip(self.locals["dones"], self.locals["infos"], strict=True):
            truth = info.get(TRUE_SUCCESS)
            if self._asks_truth and PROBABILITY in info and truth is None:
                raise RefereeError(
                    "labeller='truth' needs to be told, but info has neither success nor is_success: give success= to "
                    "make_vec_env, or labeller='terminal' or 'log'"
                )
            if done and "env_r" in info.get("episode", {}):
                self._env_returns.append(info["episode"]["env_r"])
            if done and SUCCESS in info:
                self._episodes.append((info[SUCCESS], truth))
        if self.num_timesteps - self._looked_at >= self._interval:
            self._looked_at = self.num_timesteps
            self._look()
        return True

    def _on_training_end(self) -> None:
        self._look()

    def _look(self) -> None:
        self._log_episodes()
        frames = self._env.take_scored()
        if frames is None:
            return
        if self._env.scorer.watch is not None:
            self._record(self._env.scorer.watch.numbers)
        elif self.alarm is not None:
            self._watch(self.alarm, frames)
        if self.refiner is not None and self.refiner.left:
            self.refiner.watch(frames.images, frames.summary, frames.probability, frames.truth)
            self._refine(self.refiner)

    def _log_episodes(self) -> None:
        if self._env_returns:
            self.logger.record("reward/env_return", float(np.mean(self._env_returns)))
            self._env_returns = []
        episodes, self._episodes = self._episodes, []
        if not episodes:
            return
        model = float(np.mean([said for said, _ in episodes]))
        self.logger.record("reward/model_success", model)
        truth = [true for _, true in episodes if true is not None]
        if len(truth) == len(episodes):
            self.logger.record("reward/true_success", float(np.mean(truth)))
            self.logger.record("reward/hacking_gap", model - float(np.mean(truth)))

    def _watch(self, alarm: Alarm, frames: ScoredFrames) -> None:
        quiet = alarm.first_at is None
        rows = np.arange(min(8, len(frames)))
        numbers = alarm.look(
            frames.summary,
            frames.probability,
            frames.images[rows],
            rows,
            self.num_timesteps,
            self._env.scorer.threshold,
        )
        self._record(numbers)
        if quiet and alarm.first_at is not None:
            _log.warning("alarm at step %s: %s", f"{self.num_timesteps:,}", alarm.reason())

    def _record(self, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self.logger.record(name, value)

    def _refine(self, refiner: Refiner) -> None:
        done = refiner.round(self.num_timesteps)
        if done is None:
            return
        self._record(done.numbers())
        if done.swapped:
            self._env.swap(refiner.artifact)
            self.swaps.append(self.num_timesteps)
            if self.alarm is not None and self._env.scorer.watch is None:
                self.alarm.take(refiner.artifact)


def _row(observations: Any, i: int) -> Any:
    return (
        {name: value[i] for name, value in observations.items()}
        if isinstance(observations, Mapping)
        else observations[i]
    )
