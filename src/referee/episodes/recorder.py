"""Records what happens in environments as episodes, state-aligned, while they are used as if nobody watched."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from referee.envs.contract import Observation, RefereeVectorEnv, StepResult, void_steps
from referee.envs.wrapper import EnvWrapper
from referee.episodes.episode import GRASP, HELD, IMAGES, INTERVENED, PROGRESS, TASK_SUCCESS, Episode, Meta
from referee.episodes.store import adding_to
from referee.episodes.writer import BackgroundWriter, NumberedSink, Sink

SIGNALS = (GRASP, PROGRESS, TASK_SUCCESS)
STEPS = ("actions", "rewards", "terminated", "truncated")
"""What is about steps; all else is about states, of which there is one more."""
OWN = "recorder."
"""What names of the recorder in a saved state begin with."""
COPIED = 16
"""Episodes that are copied in one go: fewer calls, but more memory before the first of them can be written."""

_log = logging.getLogger(__name__)


def step_signal(name: str, info: Mapping[str, Any], num_envs: int) -> np.ndarray:
    """A signal bool[N] about the step that led to a state, from the info of that step."""
    mask = void_steps(info) if name == HELD else info.get({INTERVENED: "_intervene_action"}[name], False)
    return np.broadcast_to(mask, num_envs)


@dataclass
class Wanted:
    """Which finished episodes are kept, and when there are enough."""

    only_success: bool = False
    target_success: int | None = None
    target_failure: int | None = None
    successes: int = 0
    failures: int = 0

    def take(self, success: bool) -> bool:
        """Whether to keep an episode that had (or had not) a success; counts it if so."""
        if success:
            if self.target_success is not None and self.successes >= self.target_success:
                return False
            self.successes += 1
            return True
        if self.only_success or (self.target_failure is not None and self.failures >= self.target_failure):
            return False
        self.failures += 1
        return True

    @property
    def satisfied(self) -> bool:
        """Whether nothing more will be taken."""
        enough = self.target_success is not None and self.successes >= self.target_success
        return enough and (
            self.only_success or (self.target_failure is not None and self.failures >= self.target_failure)
        )


class Recorder(EnvWrapper):
    """A vector env of the contract that also records. It gives the same answers as the env inside.

    Images are taken for `cameras` (None: all of the env's; (): none), from the observation where it holds them, else
    drawn for the occasion. An episode is kept when it ends; those that were under way when recording began, or when a
    saved state was restored, have no beginning and are not kept.
    What is a success, which images there are and their size are the env's own: keys of its configuration
    (`success_key`, `cameras`, `image_size`), where `GymRecorder` takes arguments.
    """

    def __init__(
        self,
        env: RefereeVectorEnv,
        sink: Path | str | Callable[[], Sink],
        *,
        meta: Meta | None = None,
        wanted: Wanted | None = None,
        cameras: Sequence[str] | None = None,
        capacity: int | None = None,
    ) -> None:
        """sink: folder of an episode store, new or to add to, or a function that opens something else to write to."""
        super().__init__(env)
        self.wanted = wanted or Wanted()
        self.recorded_cameras = tuple(env.cameras if cameras is None else cameras)
        self._meta = replace(meta or Meta(), description=env.task_description, cameras=self.recorded_cameras)
        self._open: Callable[[], Sink] = sink if callable(sink) else adding_to(sink)
        self._capacity = capacity or env.num_envs
        self._writer: BackgroundWriter | None = None
        self.labelled = 0
        """Episodes kept of which the world said what is a success."""
        self._steps = np.zeros(env.num_envs, np.int64)
        self._live = np.zeros(env.num_envs, bool)
        self._resumed = False
        self._episodes = np.zeros(env.num_envs, np.int64)
        self._everyone = np.arange(env.num_envs)
        self._left: np.ndarray | None = None
        """Episodes that may still be kept of each environment; None: any number."""
        self._arrays: dict[str, np.ndarray] = {}
        self._capacity_steps = min(env.max_episode_steps, 1000)
        env.tell_progress = True

    # --- the contract ---

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """See `RefereeVectorEnv`; episodes under way are kept only if `options["terminated"]` says that they end."""
        observation, info = self.env.reset(seed=seed, options=options)  # type: ignore[arg-type]
        mask = np.asarray((options or {}).get("reset_mask", np.ones(self.num_envs)), bool)
        if not self.wanted.satisfied:
            if (options or {}).get("terminated"):
                ended = np.flatnonzero(mask & self._live & (self._steps > 0))
                self._arrays["terminated"][ended, self._steps[ended] - 1] = True
                self._keep(ended)
            self._begin(np.flatnonzero(mask), self._seen(observation), info)
        return observation, self._as_asked(info)

    def step(self, actions: np.ndarray) -> StepResult:
        """See `RefereeVectorEnv`."""
        result = self.env.step(actions)
        if not self.wanted.satisfied:
            self._record(np.asarray(actions, np.float32), result)
        self._as_asked(result[4])
        return result

    def save_state(self) -> dict[str, np.ndarray]:
        """See `RefereeVectorEnv`; with how many episodes were kept, but without those that are under way."""
        kept = np.array([self.wanted.successes, self.wanted.failures])
        return {**self.env.save_state(), f"{OWN}episodes": self._episodes.copy(), f"{OWN}kept": kept}

    def restore_state(self, state: dict[str, np.ndarray]) -> Observation:
        """See `RefereeVectorEnv`; recording goes on with the next episodes, and with the next numbers."""
        observation = self.env.restore_state({name: value for name, value in state.items() if not name.startswith(OWN)})
        self._live[:] = False
        self._resumed = True
        if f"{OWN}episodes" in state:  # not where nothing was recorded before
            self._episodes[:] = state[f"{OWN}episodes"]
            self.wanted.successes, self.wanted.failures = map(int, state[f"{OWN}kept"])
        if not self.wanted.satisfied:
            _log.warning(
                "recording goes on with the next episodes: those under way at the checkpoint, one in each of %d "
                "environments, are not recorded",
                self.num_envs,
            )
        return observation

    def close_extras(self, **kwargs: Any) -> None:
        """Write what is waiting, then close the env."""
        try:
            if self._writer is not None:
                self._writer.close()
        finally:
            super().close_extras(**kwargs)

    # --- recording ---

    def limit_episodes(self, count: int) -> None:
        """Keep the first `count` episodes from now on, as many of each environment (±1), and no more."""
        self._left = np.full(self.num_envs, count // self.num_envs)
        self._left[: count % self.num_envs] += 1

    @property
    def written(self) -> int:
        """Episodes that are safe on disk."""
        return 0 if self._writer is None else self._writer.written

    def flush(self) -> None:
        """Wait until all finished episodes are on disk."""
        if self._writer is not None:
            self._writer.flush()

    def _as_asked(self, info: dict[str, Any]) -> dict[str, Any]:
        """Without the progress that only the recorder asked for."""
        if not self.tell_progress:
            for about in (info, info.get("final_info", {})):
                about.pop("progress", None)
                about.pop("_progress", None)
        return info

    def _record(self, actions: np.ndarray, result: StepResult) -> None:
        observation, rewards, terminated, truncated, info = result
        now, truth = self._seen(observation), _truth(info, self._everyone) | self._about_step(info)
        actions = really_taken(actions, info)
        self._make_room(now, truth)
        here, arrays = (self._everyone, self._steps), self._arrays
        arrays["actions"][here], arrays["rewards"][here] = actions, rewards
        arrays["terminated"][here], arrays["truncated"][here] = terminated, truncated
        self._steps += 1
        self._put_states(self._everyone, now, truth)
        ended = np.flatnonzero(terminated | truncated)
        if len(ended):
            self._put_states(ended, self._seen_last(ended, info), _truth(info["final_info"], ended))
            self._keep(ended[self._live[ended]], info["final_info"].get("_success"))
            self._begin(ended, now, info)

    def _begin(self, ids: np.ndarray, observation: Observation, info: dict[str, Any]) -> None:
        """State 0 of new episodes of the environments `ids`."""
        self._steps[ids] = 0
        self._live[ids] = True
        truth = _truth(info, ids) | {name: value[ids] for name, value in self._about_step({}).items()}
        self._make_room(observation, truth)
        self._put_states(ids, {name: value[ids] for name, value in observation.items()}, truth)

    def _about_step(self, info: dict[str, Any]) -> dict[str, np.ndarray]:
        """Who moved the arm here, where that may be somebody else than the policy; nobody, if nothing is told."""
        return {f"signals/{name}": step_signal(name, info, self.num_envs) for name in self.env.step_signals}

    def _keep(self, ids: np.ndarray, told: np.ndarray | None = None) -> None:
        """Hand over the episodes of the environments `ids` that are wanted, copied several at a time.

        told: bool[n], whether the world said what is a success in them; None: it did.
        """
        arrays, lengths = self._arrays, self._steps.tolist()
        if self._left is not None:
            ids = ids[self._left[ids] > 0]
            self._left[ids] -= 1
        chosen = [i for i in ids.tolist() if self.wanted.take(bool(arrays["success"][i, : lengths[i] + 1].any()))]
        for some in (chosen[start : start + COPIED] for start in range(0, len(chosen), COPIED)):
            longest = max(lengths[i] for i in some)
            copied = {name: array[some, : longest + 1] for name, array in arrays.items()}
            for place, i in enumerate(some):
                rows = {name: array[place, : lengths[i] + (name not in STEPS)] for name, array in copied.items()}
                if told is not None and not told[i]:
                    del rows["success"]
                else:
                    self.labelled += 1
                writer = self._open_writer()
                meta = replace(self._meta, env=i, episode=int(self._episodes[i]))
                self._episodes[i] += 1
                writer.put(Episode.from_arrays(rows, meta))

    def _open_writer(self) -> BackgroundWriter:
        """The writer; after a resume, numbers go on behind those that its sink holds already."""
        if self._writer is None:
            sink = self._open()
            if self._resumed and isinstance(sink, NumberedSink):
                for env, number in sink.last_numbers(self._meta.rank).items():
                    if env < self.num_envs:
                        self._episodes[env] = max(self._episodes[env], number + 1)
            self._writer = BackgroundWriter(sink, capacity=self._capacity)
        return self._writer

    def _seen(self, observation: Observation) -> Observation:
        """What is recorded of the present states."""
        if not self.recorded_cameras or self._holds_images(observation):
            return self._chosen(observation, observation)
        return self._chosen(observation, self.env.render_cameras(cameras=self.recorded_cameras))

    def _seen_last(self, ended: np.ndarray, info: dict[str, Any]) -> Observation:
        """What is recorded of the last states of the episodes that ended."""
        last = info["final_obs"][ended]
        observation = {name: np.stack([each[name] for each in last]) for name in last[0]}
        if not self.recorded_cameras or self._holds_images(observation):
            return self._chosen(observation, observation)
        return self._chosen(observation, self.env.render_cameras(ended, final=True, cameras=self.recorded_cameras))

    def _holds_images(self, observation: Observation) -> bool:
        return "main_images" in observation and self.recorded_cameras == self.cameras

    def _chosen(self, observation: Observation, images: Observation) -> Observation:
        kept = {"states": observation["states"]} if "states" in observation else {}
        wanted = IMAGES if self.recorded_cameras else ()
        return {**kept, **{name: images[name] for name in wanted}}

    def _put_states(self, ids: np.ndarray, observation: Observation, truth: dict[str, np.ndarray]) -> None:
        """Rows of the environments `ids` at their present step."""
        here = (ids, self._steps[ids])
        for name, value in observation.items():
            self._arrays[f"observations/{name}"][here] = value
        for name, value in truth.items():
            self._arrays[name][here] = value

    def _make_room(self, observation: Observation, truth: dict[str, np.ndarray]) -> None:
        """Allocate the arrays, shaped like these rows, or double them when an episode is about to outgrow them."""
        n, steps = self.num_envs, self._capacity_steps
        if not self._arrays:
            about = {**{f"observations/{name}": value for name, value in observation.items()}, **truth}
            self._arrays = {name: np.zeros((n, steps + 1, *like.shape[1:]), like.dtype) for name, like in about.items()}
            self._arrays["actions"] = np.zeros((n, steps, *self.single_action_space.shape), np.float32)  # type: ignore[misc]
            self._arrays["rewards"] = np.zeros((n, steps), np.float32)
            self._arrays["terminated"], self._arrays["truncated"] = np.zeros((2, n, steps), bool)
        elif self._steps.max() >= steps:
            for name, array in self._arrays.items():
                more = np.zeros((n, steps, *array.shape[2:]), array.dtype)
                self._arrays[name] = np.concatenate([array, more], axis=1)
            self._capacity_steps += steps


def _truth(info: dict[str, Any], ids: np.ndarray) -> dict[str, np.ndarray]:
    """What an info says about the states of the environments `ids`, by its name in an episode."""
    signals = {f"signals/{name}": info[name][ids] for name in SIGNALS if name in info}
    return {"success": info["success"][ids], **signals}


def really_taken(actions: np.ndarray, info: dict[str, Any]) -> np.ndarray:
    """The actions f32[n,a] that were taken, where a person stepped in or an arm had to hold."""
    for name in ("intervene_action", "executed_action"):
        if (mask := info.get(f"_{name}")) is not None:
            actions = np.where(mask[:, None], info[name], actions)
    return actions
