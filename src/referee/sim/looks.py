"""Domain randomisation: how each environment's pictures differ in light, colours, cameras and distractors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from referee.sim.scene import DISTRACTOR_GEOMS

Draw = Callable[[int], np.ndarray]
"""`draw(k)` gives uniform numbers f64[n,k] in [0, 1), from the stream of each environment."""


@dataclass
class Looks:
    """The randomised look of n environments; strength 0 leaves a part as it is."""

    light: np.ndarray
    """f64[n,4]: change of the key light's direction (3) and brightness (1)."""
    colours: np.ndarray
    """f64[n,5,3]: factors for table, floor, arm, cube and goal."""
    camera: np.ndarray
    """f64[n,6]: shift in metres (3) and small rotation in radians (3)."""
    distractors: np.ndarray
    """f64[n,4,6]: place on the table (3) and colour (3) of each distractor."""

    @classmethod
    def plain(cls, n: int) -> Looks:
        """Looks that change nothing."""
        return cls(np.zeros((n, 4)), np.ones((n, 5, 3)), np.zeros((n, 6)), np.zeros((n, 4, 6)))

    def take(self, ids: np.ndarray | slice) -> Looks:
        """The looks of the environments `ids`, in that order."""
        return Looks(*(value[ids] for value in vars(self).values()))

    def redraw(self, ids: np.ndarray, draw: Draw, *, light: float, colours: float, camera: float) -> None:
        """New looks for the environments `ids`, each part scaled by its strength in 0..1."""
        n = len(ids)
        self.light[ids] = light * (draw(4) - 0.5) * (1.0, 1.0, 0.4, 1.0)
        spread = np.array([0.6, 0.8, 0.3, 0.3, 0.3])[None, :, None]
        self.colours[ids] = 1.0 + colours * spread * (draw(15).reshape(n, 5, 3) - 0.5)
        self.camera[ids] = camera * (draw(6) - 0.5) * (0.10, 0.10, 0.08, 0.05, 0.05, 0.05)
        places = draw(24).reshape(n, 4, 6)
        # Distractors stand around the workspace, never in it: they are seen, not touched.
        side = np.where(places[:, :, 2] < 0.5, -1.0, 1.0)
        x = 0.30 + 0.36 * places[:, :, 0]
        y = side * (0.20 + 0.10 * places[:, :, 1])
        self.distractors[ids] = np.concatenate(
            [np.stack([x, y, np.full_like(x, 0.022)], axis=2), 0.15 + 0.75 * places[:, :, 3:]], axis=2
        )


class Painter:
    """Writes looks into a drawn model, starting from how the model was made."""

    _FIELDS = ("light_dir", "light_diffuse", "mat_rgba", "geom_rgba", "cam_pos", "cam_quat", "geom_pos")

    def __init__(self, model: Any) -> None:
        self._model = model
        self._plain = {name: getattr(model, name).copy() for name in self._FIELDS}
        names = [model.geom(geom).name for geom in range(model.ngeom)]
        self._things = [i for i, name in enumerate(names) if name in ("cube", "peg")]
        self._goals = [i for i, name in enumerate(names) if name == "goal" or name.endswith("_rim")]
        self._distractors = [i for i, name in enumerate(names) if name in DISTRACTOR_GEOMS]
        self._materials = [model.material(name).id for name in ("table", "floor", "panda")]

    def paint(self, looks: Looks, i: int) -> None:
        """Give the model the look of environment `i`."""
        model, plain, colours = self._model, self._plain, looks.colours[i]
        model.light_dir[0] = plain["light_dir"][0] + looks.light[i, :3]
        model.light_diffuse[0] = plain["light_diffuse"][0] * (1.0 + looks.light[i, 3])
        model.mat_rgba[self._materials, :3] = np.clip(plain["mat_rgba"][self._materials, :3] * colours[:3], 0, 1)
        for geoms, factor in ((self._things, colours[3]), (self._goals, colours[4])):
            model.geom_rgba[geoms, :3] = np.clip(plain["geom_rgba"][geoms, :3] * factor, 0, 1)
        strangers = looks.distractors[i, : len(self._distractors)]
        model.geom_pos[self._distractors] = strangers[:, :3]
        model.geom_rgba[self._distractors, :3] = strangers[:, 3:]
        model.cam_pos[:] = plain["cam_pos"] + looks.camera[i, :3]
        model.cam_quat[:] = _turned(plain["cam_quat"], looks.camera[i, 3:])

    def restore(self) -> None:
        """Give the model its own look back."""
        for name, value in self._plain.items():
            getattr(self._model, name)[:] = value


def _turned(quaternions: np.ndarray, rotation: np.ndarray) -> np.ndarray:
    """Quaternions f64[k,4] turned by a small rotation vector, normalised."""
    w, v = quaternions[:, :1], quaternions[:, 1:]
    half = rotation / 2
    turned = np.concatenate([w - v @ half[:, None], v + w * half + np.cross(v, half)], axis=1)
    return turned / np.linalg.norm(turned, axis=1, keepdims=True)
