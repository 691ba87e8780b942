"""A share of the environments, in whatever process it lives: several Gymnasium environments behind one.

Gymnasium's vector environments run one environment per process. A `Share` is such an environment to them, and holds
as many real ones as its process is to step.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes.util import find_library
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from referee.config.imports import load_attribute
from referee.errors import RefereeError
from referee.pictures import scaled

SUCCESS_KEYS = ("success", "is_success")
GOAL_KEYS = ("observation", "achieved_goal", "desired_goal")
RENDER = "render"
"""The camera that is the environment's own `render()`."""
SMALLEST = 8
"""Pixels that a picture of one or four channels has at least, each way: less may be a table of numbers."""
LARGE_STATE = 1024
"""Entries of uint8 from which on a state is worth a warning."""
KEEP = "env.*.keep_final_images=true"
DrawImages = Callable[[gym.Env[Any, Any]], Any]
"""From an environment to its pictures: {camera: uint8[H,W,3]}, or one picture alone."""


@dataclass(frozen=True)
class Layout:
    """Where states and images are in an observation.

    state_keys: entries of a dict observation that make up the state, in this order; None: the observation is the state.
    cameras: names of images, those of the observation and `render`.
    """

    state_keys: tuple[str, ...] | None
    cameras: tuple[str, ...]
    image_keys: tuple[str, ...]

    @staticmethod
    def of(space: gym.Space[Any], cameras: Sequence[str] | None, name: str) -> Layout:
        """Of an observation space. A goal observation is ordered observation, achieved_goal, desired_goal."""
        if is_image(space):
            return Layout((), tuple(("main_images",) if cameras is None else cameras), ("main_images",))
        if not isinstance(space, gym.spaces.Dict):
            return Layout(None, tuple((RENDER,) if cameras is None else cameras), ())
        entries = flat(space.spaces)
        images = tuple(key for key, entry in entries.items() if is_image(entry))
        states = [key for key in entries if key not in images]
        states.sort(key=lambda key: GOAL_KEYS.index(key) if key in GOAL_KEYS else len(GOAL_KEYS))
        selected = tuple((images or (RENDER,)) if cameras is None else cameras)
        unknown = [camera for camera in selected if camera not in (*images, RENDER)]
        if unknown:
            raise RefereeError(
                f"{name} has no camera {unknown[0]!r}: env.*.cameras may name {', '.join((*images, RENDER))}"
            )
        return Layout(tuple(states), selected, images)

    def state(self, observation: Any, space: gym.Space[Any]) -> np.ndarray:
        """f32[d]: the state in an observation, flattened entry by entry."""
        if self.state_keys is None:
            return np.asarray(gym.spaces.flatten(space, observation), np.float32).reshape(-1)
        if not self.state_keys:
            return np.zeros(0, np.float32)
        assert isinstance(space, gym.spaces.Dict)
        spaces, entries = flat(space.spaces), flat(observation)
        parts = [np.asarray(gym.spaces.flatten(spaces[key], entries[key])).reshape(-1) for key in self.state_keys]
        return np.concatenate(parts).astype(np.float32)

    def image(self, observation: Any, camera: str) -> np.ndarray | None:
        """uint8[H,W,3] of a camera that is in the observation; None for one that is not."""
        if camera not in self.image_keys:
            return None
        entry = flat(observation)[camera] if isinstance(observation, Mapping) else observation
        return as_rgb(np.asarray(entry))


def flat(entries: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of nested dicts, each under its last name, or under all with dots where that stands twice.

    >>> flat({"pixels": {"front": 1, "wrist": 2}, "agent_pos": 3})
    {'front': 1, 'wrist': 2, 'agent_pos': 3}
    """
    if not any(isinstance(entry, Mapping) for entry in entries.values()):
        return dict(entries)
    leaves = list(_leaves(entries))
    count = Counter(path[-1] for path, _ in leaves)
    return {path[-1] if count[path[-1]] == 1 else ".".join(path): entry for path, entry in leaves}


def _leaves(entries: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, entry in entries.items():
        if isinstance(entry, Mapping):  # a Dict space is one, too
            yield from _leaves(entry, (*path, key))
        else:
            yield (*path, key), entry


def is_image(space: gym.Space[Any]) -> bool:
    """Whether a space holds pictures: uint8 with colours, grey or colours and alpha; see `as_rgb`."""
    if not isinstance(space, gym.spaces.Box) or space.dtype != np.uint8 or len(space.shape) != 3:
        return False
    return _channels(space.shape) is not None


def _channels(shape: Sequence[int]) -> int | None:
    """The axis of the channels among the last three: −1 or −3; None where these are no picture's."""
    if shape[-1] == 3:
        return -1
    if shape[-3] == 3:
        return -3
    if shape[-1] in (1, 4) and min(shape[-3], shape[-2]) >= SMALLEST:
        return -1
    return -3 if shape[-3] == 1 and min(shape[-2], shape[-1]) >= SMALLEST else None


def as_rgb(images: np.ndarray) -> np.ndarray:
    """uint8[…,H,W,3] of pictures with 3 channels first or last, grey ones, or ones with alpha, which is dropped.

    What is no picture is left as it is.
    """
    axis = _channels(images.shape) if images.ndim >= 3 else None
    if axis is None or images.shape[-1] == 3:
        return images
    last = np.moveaxis(images, axis, -1)
    return np.repeat(last, 3, axis=-1) if last.shape[-1] == 1 else last[..., :3]


def large_states(space: gym.Space[Any], layout: Layout) -> list[str]:
    """Words about each entry that becomes a state, though it looks like a picture of a kind that nobody knows."""
    entries: Mapping[str, Any] = {"the observation": space} if layout.state_keys is None else {}
    if isinstance(space, gym.spaces.Dict) and layout.state_keys is not None:
        spaces = flat(space.spaces)
        entries = {key: spaces[key] for key in layout.state_keys}
    return [
        f"{name} is uint8{list(entry.shape)}, so it is no picture ([H,W,3], [3,H,W], [H,W,1], [H,W,4]) and becomes "
        f"{int(np.prod(entry.shape)):,} state entries: convert it in a wrapper, or leave it out (FilterObservation)"
        for name, entry in entries.items()
        if isinstance(entry, gym.spaces.Box) and entry.dtype == np.uint8 and np.prod(entry.shape) >= LARGE_STATE
    ]


def success_reader(key: str | None) -> Callable[[Mapping[str, Any], bool], bool | None]:
    """A function (info, terminated) → success; None where the info does not tell."""
    if key == "terminated":
        return lambda info, terminated: terminated
    if key is not None and ":" in key:
        function = load_attribute(key, "env.*.success_key")
        return lambda info, terminated: bool(function(info))
    keys = SUCCESS_KEYS if key is None else (key,)

    def read(info: Mapping[str, Any], terminated: bool) -> bool | None:
        return next((bool(info[each]) for each in keys if each in info), None)

    return read


@dataclass
class _Slot:
    """One environment, and what it takes to live its episode again."""

    env: gym.Env[Any, Any]
    seed: int = 0
    observation: Any = None
    actions: list[np.ndarray] | None = None
    last: tuple[int, list[np.ndarray], np.ndarray] | None = None
    """Seed, actions and last state of the episode before."""
    last_images: np.ndarray | None = None


class Share(gym.Env[Any, np.ndarray]):
    """Environments first..first+count−1 of a run, stepped together; see the module."""

    def __init__(
        self, spec: gym.envs.registration.EnvSpec, *, first: int, count: int, kwargs: Mapping[str, Any],
        max_episode_steps: int | None, cameras: Sequence[str] | None, images: str | None, image_size: int,
        success_key: str | None, keep_final_images: bool,
    ) -> None:  # fmt: skip
        choose_renderer()
        self.name = spec.id
        self.ids = range(first, first + count)
        self._size, self._keep_final = image_size, keep_final_images
        self._success = success_reader(success_key)
        self._success_key = success_key
        self._images: DrawImages | None = None if images is None else load_attribute(images, "env.*.images")
        draws = images is None and (cameras is None or RENDER in cameras)
        mode = {"render_mode": "rgb_array"} if draws and "rgb_array" in _render_modes(spec) else {}
        limit = {} if max_episode_steps is None else {"max_episode_steps": max_episode_steps}
        self._slots = [_Slot(gym.make(spec, **{**mode, **kwargs, **limit})) for _ in self.ids]
        env = self._slots[0].env
        self.layout = Layout.of(env.observation_space, None if self._images else cameras, self.name)
        self._undrawn = ""
        observation, _ = env.reset(seed=0)
        if self._images is not None:
            self.layout = self._own_cameras(env, cameras)
        elif RENDER in self.layout.cameras and (why := _cannot_draw(env)):
            if cameras is not None:
                raise RefereeError(f"{self.name} draws no pictures ({why}): env.*.cameras may not name render")
            self._undrawn = why
            self.layout = Layout(self.layout.state_keys, (), self.layout.image_keys)
        box = env.action_space
        if not isinstance(box, gym.spaces.Box) or len(box.shape) != 1:
            raise RefereeError(
                f"{self.name} has actions {box}, but policies here act in a Box of one dimension: use your own "
                "training loop with referee.RewardModelWrapper"
            )
        if not np.isfinite([box.low, box.high]).all():
            raise RefereeError(f"{self.name} has actions without bounds ({box}): wrap it in RescaleAction")
        self._low, self._high = box.low.astype(np.float64), box.high.astype(np.float64)
        state_size = len(self.layout.state(observation, env.observation_space))
        real = gym.spaces.Box(-np.inf, np.inf, (count, state_size), np.float32)
        flags = gym.spaces.MultiBinary(count)
        self.observation_space = gym.spaces.Dict(
            states=real, rewards=gym.spaces.Box(-np.inf, np.inf, (count,), np.float64),
            terminated=flags, truncated=flags, success=flags, told=flags,
        )  # fmt: skip
        self.action_space = gym.spaces.Box(-1.0, 1.0, (count, *box.shape), np.float32)

    def facts(self) -> dict[str, Any]:
        """What is the same in every share: names of cameras (or why there are none), length of episodes, frame rate."""
        spec = self._slots[0].env.spec
        return {
            "cameras": self.layout.cameras,
            "undrawn": self._undrawn,
            "large_states": large_states(self._slots[0].env.observation_space, self.layout),
            "max_episode_steps": None if spec is None else spec.max_episode_steps,
            "fps": self._slots[0].env.metadata.get("render_fps", 20),
        }

    # --- what Gymnasium's vector environments call ---

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Nothing begins here: see `begin`."""
        zeros = {name: np.zeros(space.shape or (), space.dtype) for name, space in self.observation_space.items()}  # type: ignore[attr-defined]
        return zeros, {}

    def step(self, actions: np.ndarray) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """One step of all; rewards and ends are in the observation, one per environment."""
        out, _ = self.reset()
        for row, (slot, action) in enumerate(zip(self._slots, actions, strict=True)):
            reward, terminated, truncated, success = self._step(slot, action)
            out["states"][row] = self._state(slot)
            out["rewards"][row] = reward
            out["success"][row], out["told"][row] = bool(success), success is not None
            out["terminated"][row], out["truncated"][row] = terminated, truncated
        return out, 0.0, False, False, {}

    def close(self) -> None:
        """Close all environments."""
        for slot in self._slots:
            slot.env.close()

    # --- what the vector environment asks for by name ---

    def begin(self, seeds: Mapping[int, int], keep: bool) -> dict[int, tuple[np.ndarray, bool]]:
        """Start the episodes of these environments; {id: (state, success)}. keep: the last states may be drawn."""
        out = {}
        for number, slot in zip(self.ids, self._slots, strict=True):
            if number in seeds:
                slot.last, slot.last_images = None, None
                if keep and slot.actions is not None:
                    slot.last = (slot.seed, slot.actions, self._state(slot))
                    if self._keep_final or not self._renders:
                        slot.last_images = self._draw(slot)
                success = self._reset(slot, seeds[number])
                out[number] = (self._state(slot), success)
        return out

    def replay(self, seeds: Mapping[int, int], actions: np.ndarray, lengths: Sequence[int]) -> dict[int, Any]:
        """Live episodes again, from their seeds and actions f64[n,T,a] of all environments; {id: (state, success)}."""
        out = {}
        for number, slot in zip(self.ids, self._slots, strict=True):
            success: bool | None = self._reset(slot, seeds[number])
            for action in actions[number, : lengths[number]]:
                *_, success = self._step(slot, action)
            out[number] = (self._state(slot), bool(success))
        return out

    def draw(self, ids: Sequence[int], final: bool) -> dict[int, np.ndarray]:
        """{id: uint8[V,S,S,3]}: all cameras of the present states, or of the last ones of the episodes before."""
        out = {}
        for number, slot in zip(self.ids, self._slots, strict=True):
            if number in ids:
                out[number] = self._draw_last(slot) if final else self._draw(slot)
        return out

    def film(self, ids: Sequence[int], final: bool) -> dict[int, np.ndarray]:
        """{id: uint8[H,W,3]}: the first camera as large as it is."""
        out = {}
        for number, slot in zip(self.ids, self._slots, strict=True):
            if number in ids and not final:
                out[number] = self._pictures(slot)[0]
            elif number in ids:
                now = self._pictures(slot)[0]  # all frames of a film have one shape
                out[number] = scaled(self._draw_last(slot)[0], (now.shape[0], now.shape[1]))
        return out

    # --- inside ---

    @property
    def _renders(self) -> bool:
        """Whether pictures cost time, so that they are made when they are asked for."""
        return self._images is not None or RENDER in self.layout.cameras

    def _own_cameras(self, env: gym.Env[Any, Any], cameras: Sequence[str] | None) -> Layout:
        """The layout where a function of the environment draws: the names are those that it answers with."""
        names = tuple(self._drawn_by_function(env))
        unknown = [camera for camera in cameras or () if camera not in names]
        if unknown:
            raise RefereeError(
                f"env.*.images draws no camera {unknown[0]!r}: env.*.cameras may name {', '.join(names)}"
            )
        return Layout(self.layout.state_keys, names if cameras is None else tuple(cameras), self.layout.image_keys)

    def _drawn_by_function(self, env: gym.Env[Any, Any]) -> Mapping[str, Any]:
        assert self._images is not None
        pictures = self._images(env)
        return pictures if isinstance(pictures, Mapping) else {"main_images": pictures}

    def _state(self, slot: _Slot) -> np.ndarray:
        return self.layout.state(slot.observation, slot.env.observation_space)

    def _reset(self, slot: _Slot, seed: int) -> bool:
        slot.observation, info = slot.env.reset(seed=seed)
        slot.seed, slot.actions = seed, []
        return bool(self._success(info, False)) if self._success_key != "terminated" else False

    def _step(self, slot: _Slot, action: np.ndarray) -> tuple[float, bool, bool, bool | None]:
        """Reward, terminated, truncated, success; None where success is not told."""
        assert slot.actions is not None
        slot.actions.append(action.copy())
        action = action.astype(np.float64)
        scaled_action = self._low + (action + 1.0) / 2.0 * (self._high - self._low)
        dtype = slot.env.action_space.dtype
        slot.observation, reward, terminated, truncated, info = slot.env.step(scaled_action.astype(dtype))
        success = self._success(info, bool(terminated))
        if success is None and self._success_key is not None:
            raise RefereeError(
                f"{self.name}: info has no {self._success_key!r} (env.*.success_key), "
                f"only {', '.join(info) or 'nothing'}"
            )
        return float(reward), bool(terminated), bool(truncated), success

    def _pictures(self, slot: _Slot) -> list[np.ndarray]:
        """uint8[H,W,3] of each camera, in their order."""
        if self._images is not None:
            drawn = self._drawn_by_function(slot.env)
            return [self._checked(camera, drawn[camera]) for camera in self.layout.cameras]
        return [self._picture(slot, camera) for camera in self.layout.cameras]

    def _picture(self, slot: _Slot, camera: str) -> np.ndarray:
        image: Any = self.layout.image(slot.observation, camera)
        return self._checked(camera, slot.env.render() if image is None else image)

    def _checked(self, camera: str, picture: Any) -> np.ndarray:
        image = as_rgb(np.asarray(picture))
        if image.ndim != 3 or image.shape[-1] != 3:
            raise RefereeError(f"{self.name}: camera {camera} gave no picture [H,W,3] but {image.shape}")
        checked: np.ndarray = image.astype(np.uint8, copy=False)
        return checked

    def _draw(self, slot: _Slot) -> np.ndarray:
        pictures = [scaled(picture, self._size) for picture in self._pictures(slot)]
        return np.stack(pictures) if pictures else np.zeros((0, self._size, self._size, 3), np.uint8)

    def _draw_last(self, slot: _Slot) -> np.ndarray:
        """The last state of the episode before; lived again once, and kept from then on."""
        if slot.last_images is None:
            self._keep_final = True
            assert slot.last is not None
            seed, actions, state = slot.last
            now_seed, now_actions, now_state = slot.seed, list(slot.actions or ()), self._state(slot)
            self._again(slot, seed, actions, state)
            slot.last_images = self._draw(slot)
            self._again(slot, now_seed, now_actions, now_state)
        return slot.last_images

    def _again(self, slot: _Slot, seed: int, actions: Sequence[np.ndarray], state: np.ndarray) -> None:
        self._reset(slot, seed)
        for action in actions:
            self._step(slot, action)
        if not np.array_equal(self._state(slot), state, equal_nan=True):
            raise RefereeError(
                f"{self.name} does not repeat an episode from its seed and actions, so its last picture is lost: "
                f"set {KEEP}"
            )


def _cannot_draw(env: gym.Env[Any, Any]) -> str | None:
    """Why `render()` gives no pictures, asked before anything depends on them; None where it does."""
    if env.render_mode != "rgb_array":
        return "no render_mode rgb_array"
    try:
        env.render()
    except (gym.error.Error, ImportError) as error:
        return str(error).splitlines()[0]
    return None


def _render_modes(spec: gym.envs.registration.EnvSpec) -> Sequence[str]:
    """The render modes that an environment's class declares."""
    entry = spec.entry_point
    maker = gym.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
    metadata = getattr(maker, "metadata", None)
    return metadata.get("render_modes", ()) if isinstance(metadata, Mapping) else ("rgb_array",)


def choose_renderer() -> None:
    """Draw without a screen where there is none: MuJoCo would look for one, and decides when it is imported."""
    if os.environ.get("MUJOCO_GL") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return
    bound = os.environ.get("PYOPENGL_PLATFORM", "")
    if bound in ("egl", "osmesa"):  # one platform per process
        os.environ["MUJOCO_GL"] = bound
        return
    if os.name == "posix" and (name := next((each for each in ("EGL", "OSMesa") if find_library(each)), None)):
        os.environ["MUJOCO_GL"] = name.lower()
