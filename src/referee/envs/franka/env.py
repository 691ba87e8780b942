"""Arms as a vector environment: episodes, success by pose, and what is told of every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from referee.config.arm import FrankaEnvConfig
from referee.envs.contract import Observation, RefereeVectorEnv, StepResult, ends, split_views
from referee.envs.franka.setup import Setup, make_station
from referee.envs.franka.stage import Stage
from referee.envs.franka.station import VECTOR, Outcome, Seen, Station
from referee.errors import RefereeError
from referee.robots.arm import ArmError
from referee.robots.poses import Pose
from referee.robots.twin import Twin
from referee.sim.streams import Stream

COUNTERS = ("elapsed", "held", "seeds", "episodes")


class FrankaVectorEnv(RefereeVectorEnv):
    """One Franka, or one or several twins, moved at 10 Hz by steps of the hand.

    Actions are in −1..1: x, y, z (and turns about them, with `ee_delta_rotation`) of `max_step` metres, and the
    gripper: above 0.5 opens it, below −0.5 closes it. `states` is what an arm measures of itself, never the task's.

    Where the arm did not move, `info["hold"]` says why (mask `_hold`), and `info["executed_action"]` (mask
    `_executed_action`) what was done instead: nothing. Where the result of a step could not be seen, `info["unseen"]`
    says why (mask `_unseen`): a fault that begins during a step is noticed at its end, and the arm is stopped there.
    Neither is ever a success; see `void_steps`.

    The arm is reached at the first reset, not before. A saved state of a real arm holds the counters alone: restoring
    one begins a new episode, since nobody can put an arm and a table back to where they were. A twin can.
    """

    step_signals = ("held",)

    def __init__(self, config: FrankaEnvConfig) -> None:
        self.config = config
        self.setup = Setup.of(config)
        self.metadata = {**RefereeVectorEnv.metadata, "render_fps": config.control_hz}
        self.num_envs, self.obs_mode = config.num_envs, config.obs_mode
        self.task_description = config.description
        self.max_episode_steps = config.max_episode_steps
        self.cameras, self.image_size = tuple(config.cameras), config.image_size
        self.proprio_size = VECTOR
        n = self.num_envs
        self._stations: list[Station] = []
        self._stage = None
        if config.robot.driver == "twin":
            self._stage = Stage(config.robot.scene, self.setup.target, config.position_tolerance)
        self._elapsed, self._held = np.zeros((2, n), np.int64)
        self._seeds, self._episodes = np.arange(n, dtype=np.uint64), np.zeros(n, np.uint64)
        self._seen: list[Seen | None] = [None] * n
        self._last: list[Seen | None] = [None] * n
        self._just_finished = np.zeros(n, bool)
        self.make_spaces(self.setup.rules.action_size, VECTOR)

    # --- Gymnasium ---

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """See `RefereeVectorEnv`; moves the arm to where an episode begins."""
        mask = self.check_mask(options)
        if seed is not None:
            self._seed(seed, mask)
        self._connect()
        for i in np.flatnonzero(mask):
            self._begin(int(i))
        self._just_finished[:] = False
        return self._observation(), self._joined([self._truth(i) for i in range(self.num_envs)])

    def step(self, actions: np.ndarray) -> StepResult:
        """One control step of every arm; ends when its time is over, so that steps come at `control_hz`."""
        if self._seen[0] is None:
            raise RefereeError("step() was called before the first reset(): call reset() once")
        actions = self.check_actions(actions)
        return self._answer([station.act(action) for station, action in zip(self._stations, actions, strict=True)])

    def hold(self, reason: str) -> StepResult:
        """One control step in which no arm moves, for whoever waits for something that must be there first.

        The step counts as any other; `info["hold"]` says `reason`.
        """
        if self._seen[0] is None:
            raise RefereeError("hold() was called before the first reset(): call reset() once")
        return self._answer([station.hold(reason) for station in self._stations])

    def close_extras(self, **kwargs: Any) -> None:
        """Let go of arms and cameras."""
        while self._stations:
            self._stations.pop().close()

    # --- pictures and state ---

    def render_cameras(
        self,
        env_ids: Sequence[int] | np.ndarray | None = None,
        *,
        final: bool = False,
        cameras: Sequence[str] | None = None,
    ) -> Observation:
        """See `RefereeVectorEnv`. These are the frames that were taken with the observation: none is taken anew."""
        if self._seen[0] is None:
            raise RefereeError("render_cameras() was called before the first reset(): call reset() once")
        ids = self.check_ids(env_ids, self._just_finished if final else None)
        chosen = self.check_cameras(cameras)
        source = self._last if final else self._seen
        shape = (len(ids), len(chosen), self.image_size, self.image_size, 3)
        frames = np.empty(shape, np.uint8)
        for row, i in enumerate(ids):
            seen = source[i]
            assert seen is not None
            for place, name in enumerate(chosen):
                frames[row, place] = seen.frames[self.cameras.index(name)].image
        return split_views(frames)

    def save_state(self) -> dict[str, np.ndarray]:
        """See `RefereeVectorEnv`."""
        state = {name: getattr(self, f"_{name}").copy() for name in COUNTERS}
        if self._stage is not None:
            self._connect()
            for i, station in enumerate(self._stations):
                state |= {f"twin{i}.{name}": value for name, value in _twin(station).save_state().items()}
        return state

    def restore_state(self, state: dict[str, np.ndarray]) -> Observation:
        """See `RefereeVectorEnv`; a real arm begins a new episode."""
        self.check_state(state, self.config.task)
        if len([name for name in state if name.startswith("twin")]) != len(self.save_state()) - len(COUNTERS):
            raise RefereeError("saved environment state does not fit: it is of another number of arms, or of a twin")
        for name in COUNTERS:
            getattr(self, f"_{name}")[:] = state[name]
        if self._stage is None:
            return self.reset()[0]
        for i, station in enumerate(self._stations):
            twin = {name.removeprefix(f"twin{i}."): value for name, value in state.items()}
            _twin(station).restore_state(twin)
            self._seen[i] = station.observe(wait=False)
        self._just_finished[:] = False
        return self._observation()

    @property
    def stations(self) -> Sequence[Station]:
        """The arms; none before the first reset."""
        return self._stations

    @property
    def stage(self) -> Stage:
        """The twin's table; an error on a real arm, where nobody knows the truth."""
        if self._stage is None:
            raise RefereeError("only a twin knows what is true: set robot.driver=twin")
        return self._stage

    @property
    def elapsed(self) -> np.ndarray:
        """Steps of the present episodes, i64[n]."""
        return self._elapsed

    # --- inside ---

    def _connect(self) -> None:
        while len(self._stations) < self.num_envs:
            self._stations.append(make_station(self.config, self.setup))

    def _seed(self, seed: int | Sequence[int | None], mask: np.ndarray) -> None:
        seeds = self.check_seeds(seed)
        for i in np.flatnonzero(mask):
            value = seeds[i]
            if value is not None:
                self._seeds[i], self._episodes[i] = value, 0

    def _begin(self, i: int) -> None:
        """Bring arm i to the start of its next episode."""
        station, row = self._stations[i], slice(i, i + 1)
        station.begin(self._start(Stream(self._seeds[row], self._episodes[row], purpose=2)))
        if self._stage is not None:
            self._stage.arrange(_twin(station), Stream(self._seeds[row], self._episodes[row]))
        self._seen[i] = station.observe()
        self._episodes[i] += np.uint64(1)
        self._elapsed[i] = self._held[i] = 0

    def _start(self, stream: Stream) -> Pose:
        """Where the next episode begins: near the reset pose, and inside the box."""
        spread = np.array([self.config.reset_range, self.config.reset_range, 0.0])
        offset = stream.between(-spread, spread)[0]
        yaw = self.config.reset_yaw * (2 * stream.uniform(1)[0, 0] - 1)
        pose = self.setup.start.moved(offset, np.array([0.0, 0.0, yaw]))
        return Pose(np.clip(pose.position, self.setup.limits.low, self.setup.limits.high), pose.rotation)

    def _truth(self, i: int, outcome: Outcome | None = None) -> dict[str, Any]:
        """What is true of the state that arm i is seen in; nothing is a success while it holds."""
        seen, target = self._seen[i], self.setup.target
        assert seen is not None
        truth: dict[str, Any] = {"success": False}
        if self._stage is not None:
            known = self._stage.truth(_twin(self._stations[i]), progress=self.tell_progress)
            truth |= known
            truth["task_success"] = known["success"]
        if target is not None:
            metres, radians = seen.state.pose.apart(target)
            truth["success"] = metres <= self.config.position_tolerance and radians <= self.config.rotation_tolerance
        if outcome is not None and (outcome.held or outcome.fault):
            truth["success"] = False
        return truth

    def _answer(self, outcomes: list[Outcome]) -> StepResult:
        for i, outcome in enumerate(outcomes):
            self._seen[i] = outcome.seen
        self._elapsed += 1
        info = self._joined([self._truth(i, outcome) for i, outcome in enumerate(outcomes)])
        success = info["success"]
        self._held, terminated = ends(self._held, success, self.config)
        given_up = np.array([outcome.given_up for outcome in outcomes])
        truncated = ((self._elapsed >= self.max_episode_steps) | given_up) & ~terminated
        done = terminated | truncated
        told = self._told(outcomes)
        rewards = success.astype(np.float64)
        self._just_finished = done
        if done.any():
            info = self._next_episodes(np.flatnonzero(done), info)
        return self._observation(), rewards, terminated, truncated, {**info, **told}

    def _told(self, outcomes: list[Outcome]) -> dict[str, Any]:
        """What is worth saying about this step, in Gymnasium's way: values with a mask."""
        told: dict[str, Any] = {}
        reasons = {
            "hold": [outcome.held for outcome in outcomes],
            "unseen": [outcome.fault for outcome in outcomes],
            "limited": [outcome.said for outcome in outcomes],
        }
        for name, why in reasons.items():
            if any(why):
                told |= {name: np.array(why, object), f"_{name}": np.array([reason is not None for reason in why])}
        if "_hold" in told:
            done = np.stack([outcome.done for outcome in outcomes])
            told |= {"executed_action": done, "_executed_action": told["_hold"].copy()}
        return told

    def _next_episodes(self, ids: np.ndarray, info: dict[str, Any]) -> dict[str, Any]:
        """Keep what the finished episodes end with, then begin the next ones; returns what is true now."""
        done, last = self._just_finished.copy(), self._observation()
        final_obs = np.full(self.num_envs, None, object)
        for i in ids:
            self._last[i] = self._seen[i]
            final_obs[i] = {name: value[i] for name, value in last.items()}
        final_info = {**info, "elapsed_steps": self._elapsed.copy()}
        final_info |= {f"_{name}": done.copy() for name in final_info}
        now = {name: value.copy() for name, value in info.items()}
        for i in ids:
            try:
                self._begin(int(i))
            except ArmError:
                self._seen[i] = self._last[i]
                raise
            for name, value in self._truth(int(i)).items():
                now[name][i] = value
        ends = {"final_obs": final_obs, "_final_obs": done, "final_info": final_info, "_final_info": done.copy()}
        return {**now, **ends}

    def _joined(self, truths: list[dict[str, Any]]) -> dict[str, Any]:
        kinds: dict[str, Any] = {"progress": np.float32}
        return {name: np.array([truth[name] for truth in truths], kinds.get(name, bool)) for name in truths[0]}

    def _observation(self) -> Observation:
        observation: Observation = {}
        if self.obs_mode in ("state", "state+rgb"):
            observation["states"] = np.stack([seen.vector() for seen in self._seen if seen is not None])
        if self.obs_mode in ("rgb", "state+rgb"):
            observation |= self.render_cameras()
        return observation


def _twin(station: Station) -> Twin:
    assert isinstance(station.arm, Twin)
    return station.arm
