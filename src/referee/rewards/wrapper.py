"""A trained artifact as the reward of anybody's Gymnasium environment, single or vector: `RewardModelWrapper`."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack, overload

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import iterate

from referee.envs.contract import void_steps
from referee.envs.gym.share import flat
from referee.errors import RefereeError
from referee.models.artifact import Artifact
from referee.rewards.alarm import Alarm
from referee.rewards.env_pictures import EnvPictures, Images
from referee.rewards.scored import ScoredFrames
from referee.rewards.step_scorer import Mode, RewardType, Rules, StepScorer, Success, stalled_in, truth_of

ENV_REWARD = "referee/env_reward"
"""Info key: the environment's own reward."""
PROBABILITY = "referee/probability"
"""Info key: the model's probability of success in the state that the step led to."""
ALARM = "referee/alarm"
"""Info key: whether the alarm is raised, where there is one."""
SUCCESS = "referee/success"
"""Info key: whether that is a success, by the threshold, and by the gate over time where every state is judged."""

NO_RELABELLING = (
    "compute_reward: a reward that a model sees in pictures cannot be computed from goals: train without HER "
    "(HerReplayBuffer), since the environment's own compute_reward is the ground truth"
)


class WrapperOptions(TypedDict, total=False):
    """What `RewardModelWrapper` takes by name."""

    mode: Mode
    reward_type: RewardType
    threshold: float | None
    gate: tuple[int, int] | None
    success_reward: float
    fail_reward: float
    reward_weight: float
    env_reward_weight: float
    terminate_on_success: bool
    images: Images
    cameras: Sequence[str] | None
    alarm: bool
    success: Success


@overload
def RewardModelWrapper(
    env: gym.vector.VectorEnv[Any, Any, Any], artifact: Artifact | Path | str, **options: Unpack[WrapperOptions]
) -> VectorRewardModel: ...


@overload
def RewardModelWrapper(
    env: gym.Env[Any, Any], artifact: Artifact | Path | str, **options: Unpack[WrapperOptions]
) -> SingleRewardModel: ...


def RewardModelWrapper(
    env: gym.Env[Any, Any] | gym.vector.VectorEnv[Any, Any, Any],
    artifact: Artifact | Path | str,
    *,
    mode: Mode = "terminal",
    reward_type: RewardType = "binary",
    threshold: float | None = None,
    gate: tuple[int, int] | None = None,
    success_reward: float = 1.0,
    fail_reward: float = 0.0,
    reward_weight: float = 1.0,
    env_reward_weight: float = 0.0,
    terminate_on_success: bool = False,
    images: Images = None,
    cameras: Sequence[str] | None = None,
    alarm: bool = False,
    success: Success = None,
) -> SingleRewardModel | VectorRewardModel:
    """The environment, single or vector, with its reward replaced by what an artifact sees.

    A function, since Gymnasium has two kinds of wrappers and callers need not know which is theirs: a `gym.Env` gets a
    `SingleRewardModel`, which is a `gym.Wrapper`, a vector env a `VectorRewardModel`; these are what `repr` shows.

    mode … terminate_on_success: see `Rules`.
    images: "observation", "render", or a callable (see `Images`). None takes what there is, in this order: pictures
        in the observation, `render_cameras` of a `RefereeVectorEnv`, `render()`. They are scaled to the size of those
        that the model learned from, as `GymRecorder(image_size=…)` scales them: the same frame has the same score.
    cameras: names of the views in `main_images` and `extra_view_images`, where the observation has those.
    alarm: watch whether the scored frames are still such as the model knows; `env.alarm` is the alarm, a warning says
        when it is raised, and `swap` renews it.
    success: where info tells true success, for those who compare (the refiner): a key of info, or a function of the
        info of one environment. None: `success` or `is_success`.

    Info keys, beside those of the env: `referee/env_reward`, and where the model was asked (every step, or in terminal
    mode the last), `referee/probability` and `referee/success`. In a vector env they are arrays with Gymnasium's
    masks (`_referee/success`, …), and like the reward they are about the transition just made, also where the
    observation is already the first of the next episode. With `alarm`, `referee/alarm` says whether it is raised.
    """
    rules = Rules(
        mode=mode, reward_type=reward_type, threshold=threshold, gate=gate, success_reward=success_reward,
        fail_reward=fail_reward, reward_weight=reward_weight, env_reward_weight=env_reward_weight,
        terminate_on_success=terminate_on_success,
    )  # fmt: skip
    if hasattr(env, "step_async") and not isinstance(env, gym.vector.VectorEnv):
        raise RefereeError(
            f"{type(env).__name__} is a vector environment of Stable-Baselines3: use "
            "referee.integrations.sb3.RewardModelVecEnv"
        )
    opened = artifact if isinstance(artifact, Artifact) else Artifact.open(artifact)
    if isinstance(env, gym.vector.VectorEnv):
        return VectorRewardModel(env, opened, rules, images, cameras, alarm=alarm, success=success)
    return SingleRewardModel(env, opened, rules, images, cameras, alarm=alarm, success=success)


class _Scoring:
    """What single and vector environments offer about the model that scores them."""

    scorer: StepScorer
    _pictures: EnvPictures

    def swap(self, artifact: Artifact | Path | str) -> None:
        """Let another model score from the next step on, e.g. a refined one."""
        opened = artifact if isinstance(artifact, Artifact) else Artifact.open(artifact)
        self.scorer.swap(opened)
        self._pictures.fit(opened)

    @property
    def alarm(self) -> Alarm | None:
        """What watches the scored frames; None unless asked for (`alarm=True`)."""
        return None if self.scorer.watch is None else self.scorer.watch.alarm

    def take_scored(self) -> ScoredFrames | None:
        """A sample of the frames that were scored since the last call, for an alarm or a refiner; None if none were."""
        return self.scorer.scored.take()

    def compute_reward(self, *args: Any, **kwargs: Any) -> Any:
        """Refused: hindsight relabelling (HER) would train on the ground truth of the environment inside."""
        raise RefereeError(NO_RELABELLING)


class SingleRewardModel(_Scoring, gym.Wrapper[Any, Any, Any, Any]):
    """One environment paid by an artifact; made by `RewardModelWrapper`."""

    def __init__(
        self,
        env: gym.Env[Any, Any],
        artifact: Artifact,
        rules: Rules,
        images: Images,
        cameras: Sequence[str] | None,
        *,
        alarm: bool = False,
        success: Success = None,
    ) -> None:
        super().__init__(env)
        inner: Any = env
        while isinstance(inner, gym.Wrapper):
            if isinstance(inner, gym.wrappers.Autoreset):
                raise RefereeError("the env resets itself inside: put Autoreset around RewardModelWrapper instead")
            inner = inner.env
        self._pictures = EnvPictures(env, env.observation_space, artifact, images, cameras)
        self.scorer, self._success = StepScorer(artifact, 1, rules, alarm=alarm), success

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """A new episode; the gate starts anew."""
        observation, info = self.env.reset(seed=seed, options=options)
        self.scorer.begin(_ALL)
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """A step of the env, paid by the model."""
        observation, env_reward, terminated, truncated, info = self.env.step(action)
        ended = np.array([terminated or truncated])
        due = ended[0] or self.scorer.rules.every_state
        truth = truth_of(info, self._success) if due else None
        stalled = np.array([stalled_in(info)])
        ruling = self.scorer.score(
            np.array([env_reward], np.float64), _ALL, ended, stalled,
            lambda ids: self._pictures.now(_batched(observation), ids),
            None if truth is None else np.array([bool(truth)]),
        )  # fmt: skip
        terminated = bool(terminated or ruling.terminate[0])
        info = {**info, ENV_REWARD: float(env_reward)}
        if ruling.judged[0]:
            info |= {PROBABILITY: float(ruling.probability[0]), SUCCESS: bool(ruling.success[0])}
        if self.scorer.watch is not None:
            info[ALARM] = self.scorer.watch.raised
        return observation, float(ruling.reward[0]), terminated, bool(truncated), info


class VectorRewardModel(_Scoring, gym.vector.VectorWrapper[Any, Any, Any, Any, Any]):
    """A vector environment paid by an artifact, whatever its autoreset mode; made by `RewardModelWrapper`."""

    def __init__(
        self,
        env: gym.vector.VectorEnv[Any, Any, Any],
        artifact: Artifact,
        rules: Rules,
        images: Images,
        cameras: Sequence[str] | None,
        *,
        alarm: bool = False,
        success: Success = None,
    ) -> None:
        super().__init__(env)
        if "autoreset_mode" not in env.metadata:
            raise RefereeError(
                f"{env} does not say when it resets: set env.metadata['autoreset_mode'] (Gymnasium ≥ 1.1)"
            )
        self._autoreset = AutoresetMode(env.metadata["autoreset_mode"])
        self._pictures = EnvPictures(env, env.single_observation_space, artifact, images, cameras)
        if self._autoreset is AutoresetMode.SAME_STEP and not self._pictures.knows_final:
            raise RefereeError(
                "the env resets in the same step, so pictures made afterwards show the next episode: put them in the "
                "observation, or make the env with autoreset_mode=NEXT_STEP"
            )
        self.scorer, self._success = StepScorer(artifact, env.num_envs, rules, alarm=alarm), success
        self._done = np.zeros(env.num_envs, bool)
        self._ended_here = np.zeros(env.num_envs, bool)
        """Episodes that the env itself would have gone on with."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """New episodes everywhere, or where `options["reset_mask"]` says; their gates start anew."""
        rows = np.array((options or {}).get("reset_mask", np.ones(self.num_envs, bool)), bool)
        observations, info = self.env.reset(seed=seed, options=options)
        self.scorer.begin(rows)
        self._done[rows] = self._ended_here[rows] = False
        return observations, info

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """A step of all environments, paid by the model; a step that is a reset pays 0."""
        observations, found, *ends, info = self.env.step(actions)
        terminated, truncated = (np.array(each, bool) for each in ends)
        fresh = np.zeros(self.num_envs, bool)
        if self._autoreset is AutoresetMode.NEXT_STEP:
            fresh = self._done
            if self._ended_here.any():  # the env took a step there instead of its reset
                observations, info = self._restart(self._ended_here, observations, info)
                terminated[self._ended_here] = truncated[self._ended_here] = False
        env_rewards = np.where(fresh, 0.0, np.asarray(found, np.float64))
        ended = terminated | truncated

        def pictures(ids: np.ndarray) -> np.ndarray:
            if self._autoreset is not AutoresetMode.SAME_STEP or not ended[ids].any():
                return self._pictures.now(observations, ids)
            return self._pictures.mixed(observations, info, ids, ended[ids])

        stalled = np.broadcast_to(void_steps(info), ended.shape)
        due = ~fresh if self.scorer.rules.every_state else ~fresh & ended
        truth = _truth(info, due, ended, self._success)
        ruling = self.scorer.score(env_rewards, ~fresh, ended, stalled, pictures, truth)
        terminated |= ruling.terminate
        self._done = terminated | truncated
        self.scorer.begin(self._done)
        self._ended_here = self._done & ~ended
        if self._autoreset is AutoresetMode.SAME_STEP and self._ended_here.any():
            observations, info = self._restart(self._ended_here, observations, info, keep_final=True)
        info = {
            **info,
            ENV_REWARD: env_rewards, f"_{ENV_REWARD}": ~fresh,
            PROBABILITY: ruling.probability, f"_{PROBABILITY}": ruling.judged.copy(),
            SUCCESS: ruling.success, f"_{SUCCESS}": ruling.judged.copy(),
        }  # fmt: skip
        if self.scorer.watch is not None:
            info |= {ALARM: np.full(self.num_envs, self.scorer.watch.raised), f"_{ALARM}": np.ones(self.num_envs, bool)}
        return observations, ruling.reward, terminated, truncated, info

    def _restart(
        self, rows: np.ndarray, observations: Any, info: dict[str, Any], *, keep_final: bool = False
    ) -> tuple[Any, dict[str, Any]]:
        """Reset some environments only; with `keep_final`, their last state goes where Gymnasium has it."""
        views = list(iterate(self.env.observation_space, observations))
        last = {i: copy.deepcopy(views[i]) for i in np.flatnonzero(rows)}
        before = copy.deepcopy(observations)
        restarted, news = self.env.reset(options={"reset_mask": rows.copy()})
        if not _equal_rows(before, restarted, ~rows):
            raise RefereeError(
                f"{self.env} does not know reset_mask, so single episodes cannot be ended: use a Sync- or "
                "AsyncVectorEnv, or terminate_on_success=False"
            )
        info = dict(info)
        if keep_final:
            none = np.zeros(self.num_envs, bool)
            final = np.array(info.get("final_obs", np.full(self.num_envs, None, object)), object)
            for i, observation in last.items():
                final[i] = observation
            info["final_info"] = _merge(info.get("final_info", {}), info, rows)
            info["final_obs"] = final
            for name in ("_final_obs", "_final_info"):
                info[name] = info.get(name, none) | rows
        return restarted, _merge(_without(info, rows), news, rows)


_ALL = np.ones(1, bool)


def _truth(info: Mapping[str, Any], due: np.ndarray, ended: np.ndarray, success: Success) -> np.ndarray | None:
    """bool[n]: ground truth of the states that the step led to; None where an environment that is due tells none."""
    truth = np.zeros(len(due), bool)
    for i in np.flatnonzero(due).tolist():
        told = truth_of(_row(info["final_info"] if ended[i] and "final_info" in info else info, i), success)
        if told is None:
            return None
        truth[i] = bool(told)
    return truth


def _row(info: Mapping[str, Any], i: int) -> dict[str, Any]:
    """The info of one environment of a vector; what it does not tell is left out."""
    mine = {}
    for name, value in info.items():
        mask = info.get(f"_{name}")
        if not name.startswith("_") and isinstance(value, dict | np.ndarray) and (mask is None or mask[i]):
            mine[name] = _row(value, i) if isinstance(value, dict) else value[i]
    return mine


def _batched(observation: Any) -> Any:
    if isinstance(observation, Mapping):
        return {name: np.asarray(value)[None] for name, value in flat(observation).items()}
    return np.asarray(observation)[None]


# --- Gymnasium's vector infos: values per environment under a key, and under `_key` who has one ---


def _merge(target: Mapping[str, Any], source: Mapping[str, Any], rows: np.ndarray) -> dict[str, Any]:
    """A copy of `target` with what `source` has for `rows`."""
    merged = dict(target)
    for key, value in source.items():
        if key.startswith("_") or key in ("final_obs", "final_info") or not isinstance(value, dict | np.ndarray):
            continue
        given = source.get(f"_{key}", np.ones_like(rows)) & rows
        if not given.any():
            continue
        merged[f"_{key}"] = target.get(f"_{key}", np.full_like(rows, key in target)) | given
        if isinstance(value, dict):
            merged[key] = _merge(target.get(key, {}), value, given)
        else:
            empty = np.full(value.shape, None, object) if value.dtype == object else np.zeros_like(value)
            merged[key] = np.array(target.get(key, empty))
            merged[key][given] = value[given]
    return merged


def _without(info: Mapping[str, Any], rows: np.ndarray) -> dict[str, Any]:
    """A copy in which `rows` have no values, except for how their episodes ended."""
    masks = {
        f"_{key}": info.get(f"_{key}", np.ones_like(rows)) & ~rows
        for key, value in info.items()
        if not key.startswith("_") and key not in ("final_obs", "final_info") and isinstance(value, dict | np.ndarray)
    }
    return {**info, **masks}


def _equal_rows(before: Any, after: Any, rows: np.ndarray) -> bool:
    if isinstance(before, Mapping):
        return all(_equal_rows(before[name], after[name], rows) for name in before)
    if isinstance(before, tuple):
        return all(_equal_rows(one, other, rows) for one, other in zip(before, after, strict=True))
    return np.asarray(before)[rows].tobytes() == np.asarray(after)[rows].tobytes()
