"""Records anybody's Gymnasium environment as episodes, while it is used as before."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from referee.envs.gym.share import RENDER, SUCCESS_KEYS, Layout, as_rgb, large_states
from referee.episodes.builder import EpisodeBuilder
from referee.episodes.episode import Episode, EpisodeError, Meta, action_bounds
from referee.episodes.recorder import Wanted
from referee.episodes.store import adding_to
from referee.episodes.writer import BackgroundWriter, Sink
from referee.errors import RefereeError
from referee.pictures import scaled

Success = str | Callable[[Mapping[str, Any]], bool] | None
Images = str | Callable[[gym.Env[Any, Any]], Any] | None
LARGE = 256
"""Pixels from which recording without `image_size` is worth a warning: files and training grow with their square."""
_log = logging.getLogger(__name__)


class GymRecorder(gym.Wrapper[Any, Any, Any, Any]):
    """A Gymnasium environment that also records its episodes.

    >>> env = GymRecorder(gym.make("FetchPush-v4", render_mode="rgb_array"), "episodes", image_size=96)
    >>> observation, info = env.reset(seed=0)  # and so on, as ever; then
    >>> env.close()  # the episodes are in the store `episodes`

    An episode is kept when it ends. What is no image becomes `states`, flattened (a goal observation in the order
    observation, achieved_goal, desired_goal). Images are cameras under their names, the first one is the main one.
    The state after a reset is no success unless the environment says so. Actions are recorded as the environment takes
    them, with the bounds of its Box in `meta.extra`: who learns from them scales them to −1..1.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        sink: Path | str | Callable[[], Sink],
        *,
        success: Success = None,
        images: Images = None,
        image_size: int | None = None,
        meta: Meta | None = None,
        wanted: Wanted | None = None,
        capacity: int = 16,
    ) -> None:
        """sink: folder of an episode store, new or to add to, or a function that opens something else to write to.

        success: a key of info, or a function of info; None: `success` or `is_success`, else episodes are unlabelled.
        images: `observation`, `render`, `none`, or a function of the environment that gives a picture [H,W,3] or
            {camera: picture}; None: the image entries of the observation, else `render()`.
        image_size: pictures are scaled to so many pixels, width and height; None: as they are.
        """
        super().__init__(env)
        self.wanted = wanted or Wanted()
        self._open: Callable[[], Sink] = sink if callable(sink) else adding_to(sink)
        self._success_of, self._images, self._size = success, images, image_size
        name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
        fps = env.metadata.get("render_fps")
        meta = meta or Meta(task=name, description=f"{name}.", fps=fps)
        self._name, self._meta = name, replace(meta, extra={**action_bounds(env.action_space), **meta.extra})
        self._layout = self._choose_layout(env)
        self._capacity, self._episodes, self._unfinished = capacity, 0, 0
        self._writer: BackgroundWriter | None = None
        self._builder: EpisodeBuilder | None = None
        self._success: list[bool | None] = []
        self._cameras: tuple[str, ...] | None = None
        self._warned: set[str] = set()

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Start an episode; one that is under way is not kept."""
        observation, info = self.env.reset(**kwargs)
        self._leave()
        if not self.wanted.satisfied:
            state = self._state(observation)
            cameras = self._cameras or ()
            self._builder = EpisodeBuilder(replace(self._meta, episode=self._episodes, cameras=cameras))
            self._builder.start(state)
            self._success = [self._told(info, first=True)]
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step; the episode is kept when it ends."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if self._builder is not None:
            self._builder.step(
                action, self._state(observation), reward=float(reward), terminated=terminated, truncated=truncated
            )
            self._success.append(self._told(info))
            if terminated or truncated:
                self._keep(self._built())
                self._builder = None
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        """Write what is waiting, then close the environment."""
        self._leave()
        if self._unfinished:
            _log.warning(
                "%s: %d episodes were left by reset() or close() before they ended, and are not kept: an episode is "
                "recorded when it is terminated or truncated (gym.make has max_episode_steps)",
                self._name, self._unfinished,
            )  # fmt: skip
            self._unfinished = 0
        try:
            if self._writer is not None:
                self._writer.close()
        finally:
            super().close()

    def _leave(self) -> None:
        """Count an episode that is under way, and forget it."""
        self._unfinished += self._builder is not None and len(self._builder) > 0
        self._builder = None

    # --- success ---

    def _told(self, info: Mapping[str, Any], *, first: bool = False) -> bool | None:
        """What an info tells about success; None where it tells nothing."""
        if callable(self._success_of):
            try:
                return bool(self._success_of(info))
            except KeyError:
                if first:
                    return None
                raise
        keys = SUCCESS_KEYS if self._success_of is None else (self._success_of,)
        told = next((bool(info[key]) for key in keys if key in info), None)
        if told is None and self._success_of is not None and not first:
            raise RefereeError(
                f"{self._name}: info of step() has no {self._success_of!r} (success=), only "
                f"{', '.join(map(str, info)) or 'nothing'}"
            )
        return told

    def _built(self) -> Episode:
        assert self._builder is not None
        if any(told is not None for told in self._success):
            self._builder.rows["success"] = [np.array(bool(told)) for told in self._success]
        elif "success" not in self._warned:
            self._warned.add("success")
            _log.warning("%s tells no success, so its episodes have no labels: give success=", self._name)
        return self._builder.build()

    def _keep(self, episode: Episode) -> None:
        if self.wanted.take(bool(episode.success_once)):
            self._episodes += 1
            if self._writer is None:
                self._writer = BackgroundWriter(self._open(), capacity=self._capacity)
            self._writer.put(episode)

    # --- what is recorded of a state ---

    def _choose_layout(self, env: gym.Env[Any, Any]) -> Layout:
        space = env.observation_space
        try:
            layout = Layout.of(space, None, self._name)
        except (TypeError, KeyError) as error:
            raise EpisodeError(f"{self._name}: observations of {space} cannot be recorded ({error})") from error
        for words in large_states(space, layout):
            _log.warning("%s: %s", self._name, words)
        if self._images == "observation" and not layout.image_keys:
            raise EpisodeError(f"{self._name} has no images in its observation: give images='render'")
        if self._images not in (None, "observation", "render", "none") and not callable(self._images):
            raise EpisodeError(f"images={self._images!r}: give observation, render, none or a function")
        return layout

    def _state(self, observation: Any) -> dict[str, np.ndarray]:
        pictures = self._pictures(observation)
        if self._cameras is None:
            self._cameras = tuple(pictures)
            self._advise(pictures)
        views = [self._scaled(name, picture) for name, picture in pictures.items()]
        sizes = {view.shape for view in views}
        if len(sizes) > 1:
            named = zip(pictures, views, strict=True)
            shapes = ", ".join(f"{name} {view.shape[1]}×{view.shape[0]}" for name, view in named)
            raise EpisodeError(f"{self._name}: pictures of different size ({shapes}): give image_size=")
        state = self._layout.state(observation, self.env.observation_space)
        out = {"states": state} if len(state) else {}
        if views:
            out["main_images"] = views[0]
            out["extra_view_images"] = np.stack(views[1:]) if views[1:] else np.zeros((0, *views[0].shape), np.uint8)
        return out

    def _pictures(self, observation: Any) -> dict[str, np.ndarray]:
        """{camera: uint8[H,W,3]} of the present state."""
        layout = self._layout
        if callable(self._images):
            given = self._images(self.env)
            return {str(name): np.asarray(each) for name, each in given.items()} if isinstance(given, Mapping) else {
                "main_images": np.asarray(given)
            }  # fmt: skip
        if self._images == "none":
            return {}
        if self._images != "render" and layout.image_keys:
            seen = {name: layout.image(observation, name) for name in layout.image_keys}
            return {name: image for name, image in seen.items() if image is not None}
        return {RENDER: self._rendered()}

    def _rendered(self) -> np.ndarray:
        asked = self._images == "render" or self.env.render_mode == "rgb_array"
        picture = self.env.render() if asked else None
        if picture is None:
            raise EpisodeError(
                f"{self._name} gives no picture: make it with render_mode='rgb_array', give images= a function, or "
                "images='none' to record states alone"
            )
        return np.asarray(picture)

    def _scaled(self, name: str, picture: np.ndarray) -> np.ndarray:
        given, picture = picture, as_rgb(picture)
        if picture.ndim != 3 or picture.shape[-1] != 3 or picture.dtype != np.uint8:
            raise EpisodeError(
                f"{self._name}: camera {name} gives {given.dtype}{list(given.shape)}, but uint8[H,W,3] is needed"
            )
        return picture if self._size is None else scaled(picture, self._size)

    def _advise(self, pictures: Mapping[str, np.ndarray]) -> None:
        large = {name: picture.shape for name, picture in pictures.items() if max(picture.shape) > LARGE}
        if large and self._size is None:
            name, shape = next(iter(large.items()))
            _log.warning(
                "%s: pictures of %s are %d×%d, %.1f MB per 50 steps and slow to train on: give image_size=96",
                self._name, name, shape[1], shape[0], 51 * np.prod(shape) / 1e6,
            )  # fmt: skip
