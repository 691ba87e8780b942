"""The reward worker of models that judge windows: keeps what the environments showed, and asks about what is due."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from referee.envs.contract import RefereeVectorEnv, StepResult, split_views
from referee.errors import RefereeError
from referee.models.contract import Verdict
from referee.rewards import FinalPictures, Scored, rules
from referee.rewards.history import PROGRESS, History, HistoryBuffer, Windows
from referee.rewards.trend import TrendManager
from referee.rl.rollout import Rollout

PRESENT = {"present": HistoryBuffer(history_size=1, min_history_size=1)}
"""What a model looks at that judges single states."""


class TrendWorker:
    """Takes the place of `RewardWorker`: frames are kept while a rollout is made, windows are judged afterwards.

    `history_buffer`: windows, as `buffers` say. `per_step`: every state, as a window of one frame. `terminal`: the
    last state of each finished episode alone.
    """

    eager = False
    """No verdict of a trend ends an episode."""
    remembers = True
    """Later windows depend on frames that were seen before."""

    def __init__(
        self, manager: TrendManager, env: RefereeVectorEnv, steps: int, *,
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

    def share(self, num_envs: int) -> TrendWorker:
        """One with the same model, for rollouts of fewer environments that others draw."""
        buffers = None if self._buffers == PRESENT else self._buffers
        return TrendWorker(self.manager, self._env, self._shape[0], buffers=buffers, num_envs=num_envs)

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
        """The windows that are due, with the frames that they show, to be judged by another worker."""
        return self._windows().packed()

    def take(self, drawn: Windows) -> None:
        """What another worker kept, to be judged here."""
        self._taken = drawn

    # --- judging ---

    def score(self, rollout: Rollout) -> Scored:
        """What the model's answers pay for the rollout that was watched."""
        windows = self._windows() if self._taken is None else self._taken
        began = time.perf_counter()
        scored = self.manager.score(windows, (rollout.steps, rollout.num_envs))
        seconds = time.perf_counter() - began
        return replace(_withheld(scored, rollout.held), version=self.manager.version, seconds=seconds)

    def numbers(self) -> dict[str, float]:
        """What was said of it, and what remembering it costs, under log names."""
        kept = 0 if self._only_ends else self._history.bytes_per_env
        return {**self.manager.numbers(), **({"reward/history_kb_per_env": kept / 1e3} if kept else {})}

    def judge_episode(self, frames: np.ndarray, *, held: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """What is paid for the steps of a recorded episode f32[T], and which of them are judged bool[T].

        frames: uint8[T+1,V,H,W,3], its first state included. held: bool[T], where an arm held in the steps.
        """
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

    def save_state(self) -> dict[str, np.ndarray]:
        """What later windows depend on."""
        return {} if self._only_ends else self._history.save_state()

    def restore_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from a saved state."""
        self._history.restore_state(state)


def _withheld(scored: Scored, stalled: np.ndarray | None) -> Scored:
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
