"""Pictures of the Pandas, drawn only when asked: states in, uint8 images out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

from referee.sim import gl
from referee.sim.assets import Detail
from referee.sim.engine import LazyMujoco
from referee.sim.layers import LayeredRenderer
from referee.sim.looks import Looks, Painter
from referee.sim.scene import SHADOW_GEOMS, Scene, visual_xml
from referee.sim.studio import Order, Studio, Work

if TYPE_CHECKING:
    import mujoco
else:
    mujoco = LazyMujoco()

CAMERAS = ("front", "side", "wrist")
_SHADOW_HEIGHT = 0.0025


class Camera:
    """Draws one scene from fixed cameras at one size, `pixels` × `pixels`.

    The OpenGL context is made at the first picture, so a run that never looks never needs one. It lives in a thread
    of its own, so a camera may be used from any thread. Many pictures are shared with processes that draw the same
    bits: `num_threads` in all, 0 for one per core, 1 for none.
    """

    def __init__(
        self,
        scene: Scene,
        cameras: Sequence[str],
        pixels: int,
        *,
        detail: Detail = "fast",
        distractors: int = 0,
        num_threads: int = 0,
    ) -> None:
        self.cameras = tuple(cameras)
        self.pixels = pixels
        self._order = Order(scene, self.cameras, pixels, detail, distractors)
        self._studio = Studio(self._order, num_threads)
        self._easel: tuple[ThreadPoolExecutor, Easel] | None = None
        self._lock = threading.Lock()

    def render(
        self, qpos: np.ndarray, goal: np.ndarray, looks: Looks | None = None, cameras: Sequence[str] | None = None
    ) -> np.ndarray:
        """Images uint8[n,C,H,W,3] of states `qpos` f64[n,nq] with goals f64[n,3], and looks of the same length.

        With `cameras`, from some of the cameras only.
        """
        chosen = [self.cameras.index(name) for name in (self.cameras if cameras is None else cameras)]
        images = np.empty((len(qpos), len(chosen), self.pixels, self.pixels, 3), np.uint8)
        thread, easel = self._open()
        work = Work(qpos, goal, looks, chosen)

        def draw(part: slice) -> None:
            thread.submit(easel.draw, *work.part(part), images[part]).result()

        self._studio.draw(work, images, draw, easel.backend)
        return images

    def segment(self, qpos: np.ndarray, goal: np.ndarray, *, hidden: Sequence[str] = ()) -> np.ndarray:
        """Which geom is seen where: geom ids int[n,C,H,W] (−1: sky), as if the geoms `hidden` were not there."""
        thread, easel = self._open()
        return thread.submit(easel.segment, qpos, goal, hidden).result()

    def geom_id(self, name: str) -> int:
        """Number of a geom in what `segment` returns."""
        thread, easel = self._open()
        return thread.submit(easel.geom_id, name).result()

    def close(self) -> None:
        """Give the OpenGL context back and end the processes that helped."""
        self._studio.close()
        with self._lock:
            opened, self._easel = self._easel, None
        if opened:
            thread, easel = opened
            thread.submit(easel.close).result()
            thread.shutdown()

    def __enter__(self) -> Camera:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> tuple[ThreadPoolExecutor, Easel]:
        with self._lock:
            if self._easel is None:
                thread = ThreadPoolExecutor(1, thread_name_prefix="camera")
                self._easel = thread, thread.submit(Easel, **vars(self._order)).result()
            return self._easel


class Easel:
    """One OpenGL context with a model to draw; made, used and closed in one and the same thread."""

    def __init__(
        self, scene: Scene, cameras: tuple[str, ...], pixels: int, *, detail: Detail, distractors: int
    ) -> None:
        self.cameras = cameras
        self.pixels = pixels
        xml = visual_xml(scene, pixels=pixels, detail=detail, distractors=distractors)
        self._model = mujoco.MjModel.from_xml_string(xml)
        self._data = mujoco.MjData(self._model)
        self.nq = int(self._model.nq)
        self._painter = Painter(self._model)
        self._context, self._gl = gl.open_context(self._model, self.pixels)
        self.backend = type(self._context).__module__.removeprefix("mujoco.")
        self._view = mujoco.MjvScene(self._model, maxgeom=self._model.ngeom + 20)
        self._view.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = detail == "film"
        self._view.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = False
        self._option = mujoco.MjvOption()
        self._option.sitegroup[:] = 0
        self._rectangle = mujoco.MjrRect(0, 0, self.pixels, self.pixels)
        self._cameras = [self._fixed_camera(name) for name in self.cameras]
        # Views are taken once: MuJoCo makes a new one at every access.
        self._qpos, self._goal = self._data.qpos, self._data.mocap_pos
        self._geom_pos, self._geom_rgba = self._data.geom_xpos, self._model.geom_rgba
        self._casters = [self._data.site_xpos[0], self._data.qpos[9:12]]
        self._shadows = [i for i in range(self._model.ngeom) if self._model.geom(i).name in SHADOW_GEOMS]
        self._layers = LayeredRenderer.open(self._model, self._data, self.pixels) if detail == "fast" else None

    def segment(self, qpos: np.ndarray, goal: np.ndarray, hidden: Sequence[str]) -> np.ndarray:
        """See `Camera.segment`."""
        flags = (mujoco.mjtRndFlag.mjRND_SEGMENT, mujoco.mjtRndFlag.mjRND_IDCOLOR)
        self._context.make_current()
        groups = [self._model.geom(name).id for name in hidden]
        self._model.geom_group[groups] = 5
        for flag in flags:
            self._view.flags[flag] = True
        self._painter.restore()
        images = np.empty((len(qpos), len(self._cameras), self.pixels, self.pixels, 3), np.uint8)
        try:
            self._draw_singly(lambda i: self._pose(qpos[i], goal[i]), self._cameras, images)
            shown = {self._view.geoms[i].segid + 1: self._view.geoms[i].objid for i in range(self._view.ngeom)}
        finally:
            self._model.geom_group[groups] = 0
            for flag in flags:
                self._view.flags[flag] = False
        colours = images.astype(np.int64)
        codes = colours[..., 0] + 256 * colours[..., 1] + 65536 * colours[..., 2]
        table = np.full(max(shown, default=0) + 1, -1)
        for code, geom in shown.items():
            table[code] = geom
        return table[codes]

    def geom_id(self, name: str) -> int:
        """See `Camera.geom_id`."""
        return int(self._model.geom(name).id)

    def close(self) -> None:
        """Give the OpenGL context back."""
        self._context.make_current()
        self._gl.free()
        self._context.free()

    def _fixed_camera(self, name: str) -> mujoco.MjvCamera:
        camera = mujoco.MjvCamera()
        camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        camera.fixedcamid = self._model.camera(name).id
        return camera

    def draw(
        self,
        qpos: np.ndarray,
        goal: np.ndarray,
        looks: Looks | None,
        chosen: Sequence[int] | None = None,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        """See `Camera.render`; the images are written into `out` where it is given."""
        self._context.make_current()
        cameras = self._cameras if chosen is None else [self._cameras[i] for i in chosen]
        shape = (len(qpos), len(cameras), self.pixels, self.pixels, 3)
        images = np.empty(shape, np.uint8) if out is None else out
        if looks is None:
            self._painter.restore()

        def pose(i: int) -> None:
            if looks is not None:
                self._painter.paint(looks, i)
            self._pose(qpos[i], goal[i])

        if self._layers is None:
            self._draw_singly(pose, cameras, images)
        else:
            self._layers.draw(pose, [camera.fixedcamid for camera in cameras], images, plain=looks is None)
        return images

    def _draw_singly(
        self, pose: Callable[[int], None], cameras: Sequence[mujoco.MjvCamera], images: np.ndarray
    ) -> None:
        """Fill images uint8[n,C,H,W,3] with MuJoCo's renderer, after each `pose(i)`."""
        model, data, view = self._model, self._data, self._view
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._gl)
        flipped = np.empty((self.pixels, self.pixels, 3), np.uint8)
        for i in range(len(images)):
            pose(i)
            for c, camera in enumerate(cameras):
                mujoco.mjv_updateScene(model, data, self._option, None, camera, mujoco.mjtCatBit.mjCAT_ALL.value, view)
                mujoco.mjr_render(self._rectangle, view, self._gl)
                mujoco.mjr_readPixels(flipped, None, self._rectangle, self._gl)
                images[i, c] = flipped[::-1]

    def _pose(self, qpos: np.ndarray, goal: np.ndarray) -> None:
        self._qpos[:] = qpos
        self._goal[0] = goal
        mujoco.mj_kinematics(self._model, self._data)
        mujoco.mj_camlight(self._model, self._data)
        self._cast_shadows()

    def _cast_shadows(self) -> None:
        """A dark disc under the hand and the cube, fainter with height: depth at the cost of two draw calls."""
        for geom, point in zip(self._shadows, self._casters, strict=False):
            x, y, z = point.tolist()
            self._geom_pos[geom] = x, y, _SHADOW_HEIGHT
            self._geom_rgba[geom, 3] = 0.5 * min(max(1.0 - z / 0.3, 0.2), 1.0)
