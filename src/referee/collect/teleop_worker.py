"""The teleop worker: a person leads an arm, a reward model judges every frame, and nothing learns."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from referee.envs.contract import VOID, RefereeVectorEnv, StepResult
from referee.episodes.live import LiveRecording, check_single
from referee.errors import RefereeError
from referee.models.contract import Verdict
from referee.models.packed import Packed
from referee.rewards import Gate, RewardManager, RewardOptions, rules

Pictures = dict[str, np.ndarray]


@dataclass(frozen=True)
class Look:
    """What the model says of one frame, and how long it took where it was judged."""

    success: bool
    """By itself, before the gate."""
    probability: float
    seconds: float


@dataclass(frozen=True)
class Shown:
    """What a step of teleoperation looked like."""

    number: int
    reward: float
    success: bool
    """By the gate; never where the verdict was late, or where the arm held."""
    probability: float | None
    ended: bool
    """An episode ended with this step."""
    led: bool
    """A person led the arm."""
    held: str | None = None
    """Why the arm did not move, where it did not."""

    def line(self, *, probability: bool = False, latency: str = "") -> str:
        """Step, reward and success; behind them the probability, where wanted, and a column for the latency."""
        parts = [f"Step {self.number}", f"rm_reward: {self.reward:g}", f"success: {self.success}"]
        if probability:
            parts.append("prob: " + ("none" if self.probability is None else f"{self.probability:.3f}"))
        return " | ".join(parts + ([latency] if latency else []))


class LiveJudge:
    """A reward model that looks at single frames for others; asking twice does no harm."""

    def __init__(
        self, model: Packed, options: RewardOptions, *, backend: str, int8: bool, debug_save_dir: str | None = None
    ) -> None:
        torch.set_num_threads(1)  # one frame at a time: further threads only wait for each other
        self._manager = RewardManager(
            model.unpacked(), options, backend=backend, int8=int8, debug_save_dir=debug_save_dir
        )

    def look(self, pictures: Pictures, cameras: tuple[str, ...]) -> Look:
        """The verdict on one frame, as environments show it, by these cameras."""
        began = time.perf_counter()
        verdict = self._manager.judge(pictures, cameras=cameras)
        if verdict.success is None or verdict.probability is None:
            raise RefereeError(
                "the reward model says neither success nor probability: teleoperation needs a classifier"
            )
        return Look(bool(verdict.success[0]), float(verdict.probability[0]), time.perf_counter() - began)

    def pid(self) -> int:
        """Of the process that it lives in."""
        return os.getpid()


class TeleopWorker:
    """One arm. `step` moves it and shows what is to be judged, `take` takes the verdict in; always in turn.

    With `verdict_ends`, `hold` successes in a row (by the gate) end the episode, and the next one begins.
    """

    def __init__(
        self,
        env: RefereeVectorEnv,
        act: Callable[[], np.ndarray],
        *,
        gate: Gate,
        options: RewardOptions,
        cameras: tuple[str, ...],
        verdict_ends: bool,
        hold: int = 1,
        recording: LiveRecording | None = None,
        seed: int = 0,
    ) -> None:
        """options: what is shown as the reward of a success, and of anything else."""
        check_single(env)
        self._env, self._act, self._recording = env, act, recording
        self._gate, self._options, self._cameras = gate, options, cameras
        self._verdict_ends, self._hold, self._streak = verdict_ends, hold, np.zeros(1, np.int64)
        self._number = -1
        self._began = True
        self._result: StepResult | None = None
        self._seed: int | None = seed

    def _start(self) -> None:
        """Bring the arm to its start; not before somebody asks for something."""
        if self._seed is not None:
            observation, info = self._env.reset(seed=self._seed)
            self._seed = None
            if self._recording is not None:
                self._recording.begin(observation, info)

    def first(self) -> Pictures:
        """The first frame, to wake the model up with."""
        self._start()
        return dict(self._env.render_cameras(cameras=self._cameras))

    def step(self) -> Pictures:
        """One step of the arm; returns pictures of the state that it led to, the last one where an episode ended."""
        self._start()
        action = self._act()
        return self._see(action, self._env.step(action))

    def hold(self, reason: str) -> None:
        """One step in which the arm stands still, since a verdict is missing; nobody is asked about it."""
        hold = getattr(self._env, "hold", None)
        if hold is None:  # a simulation, whose time stands still
            return
        self._see(np.zeros_like(self._act()), hold(reason))
        self.take(None)

    def take(self, look: Look | None) -> Shown:
        """What the judge says of the last step; None where it came too late, which is no success."""
        assert self._result is not None
        _, _, terminated, truncated, info = self._result
        done = bool(terminated[0] or truncated[0])
        held = next((info[name][0] for name in VOID if name in info and info[f"_{name}"][0]), None)
        probability = np.array([0.0 if look is None else look.probability], np.float32)
        verdict = Verdict(probability, probability, np.array([look is not None and look.success]))
        unusable = np.array([look is None or held is not None])
        verdict = rules.gated_verdict(verdict, np.array([self._began]), self._gate, unusable)
        model = rules.model_rewards(verdict, self._options, threshold=0.0)  # of success alone: no threshold is used
        reward = float(rules.combine(np.zeros(1), model, self._options, dtype=np.float64)[0])
        assert verdict.success is not None
        fires = bool(verdict.success[0])
        self._streak, enough = rules.streak(self._streak, np.array([fires]), self._hold)
        ends = self._verdict_ends and bool(enough[0]) and not done
        if ends:
            self._end()
        self._began = done or ends
        if self._began:
            self._streak[:] = 0
        return Shown(
            self._number,
            reward,
            fires,
            None if look is None else look.probability,
            done or ends,
            bool(info.get("_intervene_action", (False,))[0]),
            held,
        )

    def close(self) -> None:
        """Keep what was recorded, and let go of the arm."""
        try:
            if self._recording is not None:
                self._recording.close()
        finally:
            self._env.close()

    def finish(self) -> int:
        """The same; returns how many episodes are safe on disk."""
        self.close()
        return 0 if self._recording is None else self._recording.kept

    def views(self) -> tuple[str, ...]:
        """The cameras of the pictures that it shows."""
        return self._cameras

    def pid(self) -> int:
        """Of the process that it lives in."""
        return os.getpid()

    def _see(self, action: np.ndarray, result: StepResult) -> Pictures:
        self._number += 1
        self._result = result
        if self._recording is not None:
            self._recording.step(action, result)
        done = bool(result[2][0] or result[3][0])
        return dict(self._env.render_cameras([0], final=done, cameras=self._cameras))

    def _end(self) -> None:
        if self._recording is not None:
            self._recording.end()
        observation, info = self._env.reset(options={"reset_mask": np.ones(1, bool), "terminated": True})
        if self._recording is not None:
            self._recording.begin(observation, info)
