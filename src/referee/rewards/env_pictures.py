"""Where an environment's pictures come from, and how they get the size of those that a model learned from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from referee.envs.contract import IMAGES, RefereeVectorEnv
from referee.envs.gym.share import as_rgb, flat, is_image
from referee.errors import RefereeError
from referee.models.artifact import Artifact
from referee.models.contract import select_views
from referee.models.spec import MAIN_NAMES
from referee.pictures import scaled

Images = Literal["observation", "render"] | Callable[[Any], Any] | None
"""Where pictures come from; a callable gets the env and returns {camera: uint8[n,H,W,3]}, or one camera's array.

For a single environment n may be left out, so that the function of a `GymRecorder` serves here too.
"""


class EnvPictures:
    """Pictures of the states of a Gymnasium environment, single or vector, as a model wants to see them."""

    def __init__(
        self,
        env: Any,
        space: gym.Space[Any],
        artifact: Artifact,
        images: Images,
        cameras: Sequence[str] | None,
    ) -> None:
        """space: of one observation. cameras: names of the views in `main_images` and `extra_view_images`."""
        self._env, self._cameras, self._images = env, cameras, images
        self.fit(artifact)
        base = env.unwrapped
        if isinstance(base, RefereeVectorEnv):
            self._cameras = cameras or base.cameras
        if callable(images):
            self._source = "callable"
        elif images is None:
            self._source = self._choose(space, base)
        elif images in ("observation", "render"):
            self._source = images
        else:
            raise RefereeError(f"images is {images!r}: give 'observation', 'render' or a callable")
        if self._source == "render" and env.render_mode != "rgb_array":
            raise RefereeError(f"render_mode is {env.render_mode!r}: make the env with render_mode='rgb_array'")
        self.knows_final = self._source in ("observation", "render_cameras")
        """Whether the last state can still be seen after a reset in the same step."""

    def fit(self, artifact: Artifact) -> None:
        """Give pictures of that model's cameras, in the size of its training pictures."""
        self._wanted, self._size = artifact.spec.cameras, artifact.picture_size

    def now(self, observations: Any, ids: np.ndarray) -> np.ndarray:
        """Pictures of the present states of some environments."""
        if self._source == "render_cameras":
            return self._drawn(ids, final=False)
        if self._source == "observation":
            return self._views(observations, ids)
        vector = isinstance(self._env, gym.vector.VectorEnv)
        if self._source == "callable":
            assert callable(self._images)
            given = self._images(self._env)
            return self._views(given if vector else _batched(given), ids)
        frames = self._env.render()
        frames = frames if vector else [frames]
        if frames is None or any(frame is None for frame in frames):
            raise RefereeError("render() gave no picture: make the env with render_mode='rgb_array', or give images=")
        return self._views(np.stack([frames[i] for i in ids]))

    def mixed(self, observations: Any, info: dict[str, Any], ids: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """The same, but the last state where an episode has ended and the next one has begun already."""
        final = self._final(info, ids[ended])
        whole = np.empty((len(ids), *final.shape[1:]), final.dtype)
        whole[ended] = final
        if not ended.all():
            whole[~ended] = self.now(observations, ids[~ended])
        return whole

    def _final(self, info: dict[str, Any], ids: np.ndarray) -> np.ndarray:
        if self._source == "render_cameras":
            return self._drawn(ids, final=True)
        if "final_obs" not in info:
            raise RefereeError("an episode ended, but info has no final_obs: the env must say how it ended")
        last = [info["final_obs"][i] for i in ids]
        if isinstance(last[0], Mapping):
            rows = [flat(each) for each in last]
            return self._views({name: np.stack([row[name] for row in rows]) for name in rows[0]})
        return self._views(np.stack(last))

    def _drawn(self, ids: np.ndarray, *, final: bool) -> np.ndarray:
        base = self._env.unwrapped
        names = [base.cameras[0] if name in MAIN_NAMES and name not in base.cameras else name for name in self._wanted]
        drawn = base.render_cameras(ids, final=final, cameras=names)
        return np.asarray(select_views(drawn, names, names))  # the env draws at any size: another one is refused

    def _views(self, given: Any, ids: np.ndarray | slice = slice(None)) -> np.ndarray:
        """[n,H,W,3] or [n,V,H,W,3] of some rows; what does not fit the model is refused by it."""
        if not isinstance(given, Mapping):
            return fitted(np.asarray(given)[ids], self._size)
        given = flat(given)
        looked_at = [name for name in (*self._wanted, *IMAGES) if name in given]
        views = {name: fitted(np.asarray(given[name])[ids], self._size) for name in looked_at}
        return np.asarray(select_views({**given, **views}, self._wanted, self._cameras))

    def _choose(self, space: gym.Space[Any], base: Any) -> str:
        if isinstance(space, gym.spaces.Dict):
            entries = flat(space.spaces)
            if "main_images" in entries or all(name in entries for name in self._wanted):
                return "observation"
        elif is_image(space) or (isinstance(space, gym.spaces.Box) and len(space.shape) == 3 and space.shape[-1] == 3):
            return "observation"
        if isinstance(base, RefereeVectorEnv):
            return "render_cameras"
        if self._env.render_mode == "rgb_array":
            return "render"
        raise RefereeError(
            f"no pictures of {', '.join(self._wanted)}: neither in the observation nor by render(); make the env with "
            "render_mode='rgb_array', or give images="
        )


def fitted(images: np.ndarray, size: tuple[int, int] | None) -> np.ndarray:
    """Pictures [n,(V,)H,W,3] in colours, with their channels last, scaled to (height, width) as a recorder scales them.

    What is not uint8, and all where `size` is None, is left as large as it is.
    """
    if images.ndim in (4, 5):
        images = as_rgb(images)
    if size is None or images.dtype != np.uint8 or images.ndim not in (4, 5) or images.shape[-3:-1] == size:
        return images
    if images.shape[-1] != 3 or not images.size:
        return images
    rows = [scaled(image, size) for image in images.reshape(-1, *images.shape[-3:])]
    return np.stack(rows).reshape(*images.shape[:-3], *size, 3)


def _batched(given: Any) -> Any:
    """Pictures of a single environment with an axis for it in front."""
    if isinstance(given, Mapping):
        return {name: _batched(value) for name, value in given.items()}
    array = np.asarray(given)
    return array[None] if array.ndim == 3 else array
