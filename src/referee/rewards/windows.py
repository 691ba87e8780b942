"""The reward of a model that scores windows: frames are kept on the way, and windows scored when a rollout is full."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from referee.config.schema import RewardConfig
from referee.config.vlm import VLMModelConfig, values
from referee.envs.contract import RefereeVectorEnv, StepResult, split_views
from referee.errors import RefereeError
from referee.models import Artifact
from referee.models.contract import Verdict
from referee.models.vlm import make_reward_parser
from referee.rewards import rules, window_model
from referee.rewards.history import PROGRESS, History, HistoryBuffer, Windows
from referee.rewards.rules import RewardOptions
from referee.rewards.score_rollout import FinalPictures, RolloutFrames, Scores
from referee.rewards.source import Features, RemoteScores, Steps, relabel
from referee.rewards.window_scorer import WindowScorer

PRESENT = {"present": HistoryBuffer(history_size=1, min_history_size=1)}
"""What a model looks at that scores single states."""
_log = logging.getLogger(__name__)


class WindowReward:
    """A RewardSource of a model that gives scores and labels, but no success.

    `history_buffer`: windows, as `buffers` say. `per_step`: every state, as a window of one frame. `terminal`: the
    last state of each finished episode alone.
    """

    learned = remembers = True
    note = ""
    says_success = ends_episodes = scored_by_others = False
    version = 0
    """No better model takes over on the way."""
    artifact = None

    def __init__(
        self, manager: WindowScorer, env: RefereeVectorEnv, steps: int, *,
        buffers: Mapping[str, HistoryBuffer] | None = None, num_envs: int | None = None,
    ) -> None:  # fmt: skip
        """buffers: of `history_buffer` mode.

        num_envs: of the rollouts that others draw for this worker, if not those of `env`.
        """
        num_envs = env.num_envs if num_envs is None else num_envs
        self.manager, self.options, self._env = manager, manager.options, env
        self._buffers = dict(buffers or PRESENT)
        self.cameras = _cameras(self._buffers, env, needed=buffers is not None)
        self._shape = (steps, num_envs)
        self._only_ends = self.options.reward_mode == "terminal"
        self._history = History(self._buffers, num_envs, steps)
        self._finals = FinalPictures(lambda ids: env.render_cameras(ids, final=True, cameras=self.cameras))
        self._taken: Windows | None = None
        env.tell_progress = True  # for the log

    def share(self, num_envs: int) -> WindowReward:
        """See RewardSource."""
        buffers = None if self._buffers == PRESENT else self._buffers
        return WindowReward(self.manager, self._env, self._shape[0], buffers=buffers, num_envs=num_envs)

    # --- during a rollout ---

    def begin(self) -> None:
        """A rollout begins."""
        self._taken = None
        self._finals.begin()
        if self._only_ends:
            return
        if not self._history.started:
            unknown = np.full(self._env.num_envs, np.nan, np.float32)
            self._history.start({**self._env.render_cameras(cameras=self.cameras), PROGRESS: unknown})
        self._history.begin()

    def watch(self, step: int, result: StepResult) -> None:
        """See the result of a step; no episode ends by it."""
        ended = result[2] | result[3]
        if self._only_ends:
            self._finals.add(step, ended)
            return
        now = dict(self._env.render_cameras(cameras=self.cameras))
        info = result[4]
        now[PROGRESS] = info.get(PROGRESS, np.full(len(ended), np.nan, np.float32))
        ids = np.flatnonzero(ended)
        states, firsts = dict(now), {name: images[ids] for name, images in now.items()}
        if len(ids):  # what is there now is the next episode's first state
            finals = dict(self._env.render_cameras(ids, final=True, cameras=self.cameras))
            finals[PROGRESS] = info["final_info"].get(PROGRESS, now[PROGRESS])[ids]
            for name, values in finals.items():
                states[name] = now[name].copy()
                states[name][ids] = values
        self._history.add(states, ended, firsts)

    def _windows(self) -> Windows:
        """What is due in the rollout that was watched."""
        if not self._only_ends:
            return self._history.windows()
        steps, envs = self._finals.places()
        ones = np.ones(len(steps), np.int64)
        keys = (PRESENT["present"].history_keys,)
        return Windows(self._finals.pictures(), keys, steps, envs, np.arange(len(steps)), ones, 0 * ones)

    # --- kept here, judged elsewhere ---

    def drawn(self) -> Windows:
        """The windows that are due, with the frames that they show."""
        return self._windows().packed()

    def score_at_once(self, rollout: Steps) -> Scores | None:
        """See RewardSource."""
        return None

    def features(self) -> Features | None:
        """See RewardSource."""
        return None

    def take(self, drawn: Windows, features: Features | None = None, remote: RemoteScores | None = None) -> None:
        """See RewardSource."""
        self._taken = drawn

    # --- scoring ---

    def relabel(self, rollout: Steps, scores: Scores | None = None) -> Scores:
        """See RewardSource."""
        return relabel(rollout, self.score(rollout) if scores is None else scores, self.options)

    def score(self, rollout: Steps) -> Scores:
        """What the model's answers pay for the rollout that was watched."""
        windows = self._windows() if self._taken is None else self._taken
        began = time.perf_counter()
        scored = self.manager.score(windows, (rollout.steps, rollout.num_envs))
        seconds = time.perf_counter() - began
        return replace(_withheld(scored, rollout.held), version=self.version, seconds=seconds)

    def scored_frames(self, scores: Scores) -> RolloutFrames | None:
        """See RewardSource."""
        return None

    def metrics(self) -> dict[str, float]:
        """What was answered, and what keeping the frames costs."""
        kept = 0 if self._only_ends else self._history.bytes_per_env
        return {**self.manager.numbers(), **({"reward/history_kb_per_env": kept / 1e3} if kept else {})}

    def score_episode(
        self, frames: np.ndarray, *, whole: bool = False, held: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """See RewardSource."""
        steps = len(frames) - 1
        history = History(self._buffers, 1, steps)
        history.start(split_views(frames[:1]))
        history.begin()
        for step in range(1, steps + 1):
            history.add(split_views(frames[step : step + 1]), np.array([step == steps]), split_views(frames[-1:]))
        windows = history.windows()
        if self._only_ends:
            last = windows.steps == steps - 1
            names = ("steps", "envs", "starts", "lengths", "buffers")
            windows = replace(windows, **{name: getattr(windows, name)[last] for name in names})
        scored = self.manager.score(windows, (steps, 1))
        scored = _withheld(scored, None if held is None else held[:, None])
        return scored.rewards[:, 0], scored.judged[:, 0]

    def rescore(
        self, frames: np.ndarray, began: np.ndarray, held: np.ndarray, *, cameras: tuple[str, ...] | None = None
    ) -> np.ndarray:
        """See RewardSource."""
        raise RefereeError("windows are not scored again: no better model takes over")

    def swap(self, artifact: Artifact, version: int) -> None:
        """See RewardSource."""
        raise RefereeError("a model of windows cannot be replaced on the way")

    def state_key(self, worker: int) -> str:
        """See RewardSource."""
        return f"reward{worker}."

    def account(self) -> dict[str, float]:
        """See RewardSource."""
        return self.manager.account()

    def save_state(self) -> dict[str, np.ndarray]:
        """What later windows depend on."""
        return {} if self._only_ends else self._history.save_state()

    def restore_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from a saved state."""
        self._history.restore_state(state)


def _withheld(scored: Scores, stalled: np.ndarray | None) -> Scores:
    """No reward where an arm stalled."""
    rewards = rules.withhold(Verdict(scored.rewards, None, None), stalled).score
    return replace(scored, rewards=rewards, judged=rules.usable(scored.judged, stalled))


def _cameras(buffers: Mapping[str, HistoryBuffer], env: RefereeVectorEnv, *, needed: bool) -> tuple[str, ...]:
    """Those of the environment that some window shows. needed: whether a missing extra view is an error."""
    extra = any("extra_view_images" in buffer.history_keys for buffer in buffers.values())
    if extra and needed and len(env.cameras) < 2:
        raise RefereeError(
            f"history_keys want extra_view_images, but env.train.cameras is only {env.cameras[0]}: add another camera, "
            "or leave extra_view_images out"
        )
    return env.cameras if extra else env.cameras[:1]


# --- how it is made ---


def make(
    config: RewardConfig, env: RefereeVectorEnv, steps: int, *, hold: int = 1, draws_only: bool = False
) -> WindowReward:
    """See `make_reward`; where it only draws, the model is not loaded."""
    wanted = config.model
    assert isinstance(wanted, VLMModelConfig)
    looks_back = config.reward_mode == "history_buffer"
    if not draws_only:
        _warn(config)
    given = {name: getattr(config, name) for name in RewardOptions.__dataclass_fields__}
    manager = WindowScorer(
        None if draws_only else window_model.make_window_model(config),
        RewardOptions(**{**given, "reward_type": "score"}), task=env.task_description,
        assign=config.history_reward_assign if looks_back else "end",
        interval_reward=wanted.interval_reward if looks_back else 0.0,
    )  # fmt: skip
    return WindowReward(manager, env, steps, buffers=window_model.buffers_of(wanted) if looks_back else None)


def _warn(config: RewardConfig) -> None:
    wanted = config.model
    assert isinstance(wanted, VLMModelConfig)
    parser = make_reward_parser(wanted.reward_parser_name, values(wanted.reward_parser_params))
    if config.reward_mode == "history_buffer" and parser.to_and_fro > 0:
        _log.warning(
            "reward.model.reward_parser_params: a rise and a fall together are rewarded with %+g, so a policy can earn "
            "by going to and fro; with negative_reward = -positive_reward it cannot", parser.to_and_fro,
        )  # fmt: skip
    if config.reward_mode == "history_buffer" and config.history_reward_assign != "end":
        _log.warning(
            "reward.history_reward_assign=%s also pays steps before the one that ends a window, for what came after "
            "them: no policy of ours learned from that; end is better", config.history_reward_assign,
        )  # fmt: skip
    if config.alarm.enabled:
        _log.warning("no alarm watches this reward: it knows frames of image classifiers, not windows")
