"""Renders many pictures at once: each is a layer of one texture, and each geom is one draw call for all of them.

MuJoCo's own renderer makes a pass for each picture, and at 64 px most of its time is the fixed cost of a pass. Lighting
is the same here: directional lights and a headlight, computed at the corners of triangles.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from referee.errors import RefereeError
from referee.sim.shapes import CORNER_FLOATS, Shape, dome, shape

_log = logging.getLogger(__name__)
NEEDED = (
    "GL_ARB_shader_viewport_layer_array", "GL_ARB_base_instance", "GL_ARB_clip_control", "GL_ARB_copy_image",
    "GL_ARB_multi_draw_indirect",
)  # fmt: skip
STATES = 64
"""That are posed before the first is rendered."""
PASS_PIXELS = 1 << 16
"""Rendered in one pass: their colours and depths stay in a core's cache from geom to geom."""
_ROWS = 8
"""Of four numbers each: what `_VERTEX` reads for one geom in one picture."""

# The lights are constants, so that the compiler drops a term that is zero.
_VERTEX = """#version 330
#extension GL_ARB_shader_viewport_layer_array : require
layout(location = 0) in vec3 corner;
layout(location = 1) in vec3 normal;
layout(location = 2) in vec3 paint;
layout(location = 3) in vec2 gloss;   // specular strength and exponent
layout(location = 4) in vec4 clip_x;  // rows of the matrix from the geom's frame to clip space
layout(location = 5) in vec4 clip_y;
layout(location = 6) in vec4 clip_z;
layout(location = 7) in vec4 clip_w;
layout(location = 8) in vec4 key;     // direction to the light in the geom's frame, and its relative brightness
layout(location = 9) in vec4 fill;
layout(location = 10) in vec4 eye;    // the camera in the geom's frame, and the layer
layout(location = 11) in vec4 tint;
const vec3 ambient = AMBIENT;
const vec3 diffuse[3] = vec3[3](DIFFUSE);
const vec3 specular[3] = vec3[3](SPECULAR);
out vec4 colour;

vec3 lit(int light, vec3 towards, float brightness, vec3 view) {
    float facing = dot(normal, towards);
    float glint = gloss.x * pow(max(dot(normal, normalize(towards + view)), 1e-6), gloss.y);
    return facing > 0.0 ? brightness * facing * tint.rgb * diffuse[light] + glint * specular[light] : vec3(0.0);
}

void main() {
    vec4 point = vec4(corner, 1.0);
    gl_Position = vec4(dot(clip_x, point), dot(clip_y, point), dot(clip_z, point), dot(clip_w, point));
    gl_Layer = int(eye.w);
    vec3 view = normalize(eye.xyz - corner);
    vec3 light = tint.rgb * ambient + lit(0, -clip_w.xyz, 1.0, view) + lit(1, key.xyz, key.w, view)
        + lit(2, fill.xyz, fill.w, view);
    colour = vec4(min(light, 1.0) * paint, tint.a);
}
"""
_FRAGMENT = """#version 330
in vec4 colour;
out vec4 pixel;
void main() { pixel = colour; }
"""


@dataclass(frozen=True)
class Canvas:
    """A framebuffer with textures for colour and depth, whose layers are the pictures of a pass."""

    framebuffer: int
    colour: int
    depth: int


class LayeredRenderer:
    """Renders one model in the OpenGL context that is current when it is made and whenever it is used."""

    def __init__(self, model: Any, data: Any, pixels: int) -> None:
        from OpenGL import GL
        from OpenGL.GL.ARB.clip_control import glClipControl
        from OpenGL.GL.ARB.copy_image import glCopyImageSubData

        self._gl: Any = GL
        self._clip_control: Any = glClipControl  # OSMesa has it under this name only
        self._copy_image: Any = glCopyImageSubData
        self._pixels = pixels
        self._layers = min(STATES, max(model.ncam, PASS_PIXELS // pixels**2))
        # Views are taken once: MuJoCo makes a new one at every access.
        self._sources = (
            data.geom_xpos, data.geom_xmat, model.geom_rgba, model.mat_rgba, data.cam_xpos, data.cam_xmat,
            data.light_xdir, model.light_diffuse,
        )  # fmt: skip
        self._brightness = model.light_diffuse[:, 0].astype(np.float32)
        self._material = model.geom_matid.copy()
        floor = model.geom("floor").id
        self._floor = model.geom_pos[floor].copy(), model.geom_size[floor].copy()
        self._focal = (1 / np.tan(np.radians(model.cam_fovy) / 2)).astype(np.float32)
        self._near, self._far = model.vis.map.znear * model.stat.extent, model.vis.map.zfar * model.stat.extent

        shapes = [shape(model, geom) for geom in range(model.ngeom)] + [dome(model)]
        self._radius = np.array([np.linalg.norm(corners[:, :3], axis=1).max() for corners, _ in shapes], np.float32)
        transparent = np.append((model.geom_rgba[:, 3] < 1) & (self._material < 0), False)
        self._order = np.argsort(transparent, kind="stable")
        self._opaque = int((~transparent).sum())
        fixed = (model.body_weldid == 0) & (model.body_mocapid < 0)
        self._fixed_shapes = np.append(fixed[model.geom_bodyid], True) & ~transparent
        self._fixed_cameras = fixed[model.cam_bodyid]
        self._program = self._build_program(model)
        self._vertices, self._instances = self._build_vertices(shapes)
        self._commands = GL.glGenBuffers(1)
        self._canvas = self._build_canvas()
        self._backgrounds: dict[tuple[int, ...], Canvas] = {}

    @classmethod
    def open(cls, model: Any, data: Any, pixels: int) -> LayeredRenderer | None:
        """A renderer in the current context; None where the driver cannot, or says that it can and refuses."""
        from OpenGL.error import Error

        if not cls.supported():
            return None
        try:
            return cls(model, data, pixels)
        except (Error, RefereeError) as error:
            _log.warning(
                "the OpenGL driver refuses to render in layers (%s): pictures take about three times as long", error
            )
            return None

    @staticmethod
    def supported() -> bool:
        """Whether the current context can render into the layer that a vertex chooses."""
        from OpenGL import GL
        from OpenGL.GL.ARB.clip_control import glClipControl
        from OpenGL.GL.ARB.copy_image import glCopyImageSubData

        names = {GL.glGetStringi(GL.GL_EXTENSIONS, i) for i in range(GL.glGetIntegerv(GL.GL_NUM_EXTENSIONS))}
        calls = (glClipControl, glCopyImageSubData, GL.glMultiDrawElementsIndirect, GL.glFramebufferTexture)
        return all(name.encode() in names for name in NEEDED) and all(map(bool, calls))

    def draw(
        self, pose: Callable[[int], None], cameras: Sequence[int], images: np.ndarray, *, plain: bool = False
    ) -> None:
        """Fill images uint8[n,C,H,W,3] with what each of the cameras sees after each `pose(i)`.

        plain: all states have the model's own look, so what never moves is rendered once and copied.
        """
        if not images.size:
            return
        cameras = list(cameras)
        for start in range(0, len(images), STATES):
            part = images[start : start + STATES]
            states = [np.empty((len(part), *source.shape), np.float32) for source in self._sources]
            for i in range(len(part)):
                pose(start + i)
                for state, source in zip(states, self._sources, strict=True):
                    state[i] = source
            moving = np.ones((len(self._order), 1, len(cameras)), bool)
            background = None
            if plain:
                moving = ~(self._fixed_shapes[:, None, None] & self._fixed_cameras[cameras])
                background = self._background(states, cameras, ~moving)
            instances = self._instances_of(states, cameras, moving)
            self._render(*instances, part.reshape(-1, *images.shape[2:]), len(cameras), background)

    def _background(self, states: Sequence[np.ndarray], cameras: list[int], fixed: np.ndarray) -> Canvas:
        """What never moves, as the cameras that never move see it, in the layers of a pass."""
        if tuple(cameras) not in self._backgrounds:
            canvas = self._build_canvas()
            one_pass = [np.repeat(state[:1], self._layers // len(cameras), axis=0) for state in states]
            self._bind(*self._instances_of(one_pass, cameras, fixed), canvas)
            self._clear()
            self._draw_shapes(0, self._opaque)
            self._backgrounds[tuple(cameras)] = canvas
        return self._backgrounds[tuple(cameras)]

    def _instances_of(
        self, states: Sequence[np.ndarray], cameras: list[int], included: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The instances to draw, by pass and shape: f32[k,8,4], the rows that `_VERTEX` reads, and int[passes,shapes],
        how many there are. `included` bool[shapes,1,C]: which shapes a camera is to draw.
        """
        position, matrix, rgba, materials, eye, axes, light, diffuse = states
        n, geoms = position.shape[:2]
        eye, axes = eye[:, cameras], axes[:, cameras].reshape(n, len(cameras), 3, 3)
        # The last shape is the sky, which is centred at the camera.
        away = np.zeros((geoms + 1, n, len(cameras), 3), np.float32)
        away[:geoms] = position.swapaxes(0, 1)[:, :, None] - eye
        # In the camera's frame: right, up, back.
        offset = (
            away[..., 0, None] * axes[..., 0, :]
            + away[..., 1, None] * axes[..., 1, :]
            + away[..., 2, None] * axes[..., 2, :]
        )
        reach = 1 / self._focal[cameras]
        room = self._radius[:, None, None] * np.sqrt(1 + reach**2)
        aside = np.maximum(np.abs(offset[..., 0]), np.abs(offset[..., 1]))
        visible = (aside < room - reach * offset[..., 2]) & (offset[..., 2] < room)
        visible[geoms] = self._sees_sky(eye, axes, reach)
        visible = (visible & included)[self._order]
        place, state, camera = visible.nonzero()
        pass_number, layer = np.divmod(state * len(cameras) + camera, self._pass_layers(len(cameras)))
        by_pass = np.argsort(pass_number, kind="stable")
        place, state, camera, layer = place[by_pass], state[by_pass], camera[by_pass], layer[by_pass]
        geom = self._order[place]

        turn = np.concatenate(
            [matrix.reshape(n, geoms, 3, 3), np.tile(np.eye(3, dtype=np.float32), (n, 1, 1, 1))], axis=1
        )[state, geom]
        world = np.concatenate(
            [axes[state, camera].swapaxes(1, 2), light[state], away[geom, state, camera][:, None]], axis=1
        )
        own = world @ turn
        seen = np.concatenate([own[:, :3], offset[geom, state, camera][..., None]], axis=-1)
        focal, scale = self._focal[cameras][camera, None], self._near / (self._far - self._near)
        rows = np.empty((len(geom), _ROWS, 4), np.float32)
        rows[:, 0] = focal * seen[:, 0]
        rows[:, 1] = -focal * seen[:, 1]  # the first row of a picture is its top
        rows[:, 2] = scale * seen[:, 2]
        rows[:, 2, 3] += scale * self._far  # 1 at the near plane, 0 at the far one
        rows[:, 3] = -seen[:, 2]
        rows[:, 4:6, :3] = -own[:, 3:5]
        rows[:, 4:6, 3] = (diffuse[..., 0] / self._brightness)[state]
        rows[:, 6, :3] = -own[:, 5]
        rows[:, 6, 3] = layer
        colours = np.where((self._material >= 0)[:, None], materials[:, self._material], rgba)
        # MuJoCo renders transparent geoms twice. The sky is lit beyond white, so that only its paint is seen.
        colours[..., 3] = 1.0 - (1.0 - colours[..., 3]) ** 2
        rows[:, 7] = np.concatenate([colours, np.full((n, 1, 4), 10.0, np.float32)], axis=1)[state, geom]
        passes = -(-n * len(cameras) // self._pass_layers(len(cameras)))
        counts = np.bincount(pass_number[by_pass] * (geoms + 1) + place, minlength=passes * (geoms + 1))
        return rows, counts.reshape(passes, geoms + 1)

    def _sees_sky(self, eye: np.ndarray, axes: np.ndarray, reach: np.ndarray) -> np.ndarray:
        """bool[n,C]: false where all four corners of a picture show the floor, which hides the sky then."""
        corners = (
            np.array([[x, y, -1.0] for x in (-1, 1) for y in (-1, 1)])
            * np.stack([reach, reach, np.ones_like(reach)], axis=-1)[:, None]
        )
        rays = (axes[:, :, None] * corners[:, :, None]).sum(axis=-1)
        position, size = self._floor
        with np.errstate(divide="ignore", invalid="ignore"):
            distance = (position[2] + size[2] - eye[:, :, None, 2]) / rays[..., 2]
            aside = np.abs(eye[:, :, None, :2] + distance[..., None] * rays[..., :2] - position[:2])
        hits = (distance > 0) & (aside < size[:2]).all(axis=-1)
        return np.asarray(~hits.all(axis=-1))

    def _pass_layers(self, cameras: int) -> int:
        """Pictures in a pass: of whole states, so that a layer always belongs to the same camera."""
        return self._layers // cameras * cameras

    def _render(
        self, rows: np.ndarray, counts: np.ndarray, images: np.ndarray, cameras: int, background: Canvas | None
    ) -> None:
        gl, step, shapes = self._gl, self._pass_layers(cameras), counts.shape[1]
        self._bind(rows, counts, self._canvas)
        gl.glBindTexture(gl.GL_TEXTURE_2D_ARRAY, self._canvas.colour)
        gl.glPixelStorei(gl.GL_PACK_ALIGNMENT, 1)
        pixels = np.empty((self._layers, self._pixels, self._pixels, 3), np.uint8)
        for number, start in enumerate(range(0, len(images), step)):
            part = images[start : start + step]
            if background is None:
                self._clear()
            else:
                self._copy(background, len(part))
            gl.glDepthMask(True)
            gl.glDisable(gl.GL_BLEND)
            self._draw_shapes(number * shapes, self._opaque)
            gl.glDepthMask(False)
            gl.glEnable(gl.GL_BLEND)
            self._draw_shapes(number * shapes + self._opaque, shapes - self._opaque)
            gl.glGetTexImage(gl.GL_TEXTURE_2D_ARRAY, 0, gl.GL_RGB, gl.GL_UNSIGNED_BYTE, pixels)
            part[:] = pixels[: len(part)]
        gl.glBindVertexArray(0)
        gl.glUseProgram(0)

    def _bind(self, rows: np.ndarray, counts: np.ndarray, canvas: Canvas) -> None:
        """Make everything ready to draw these instances into a canvas, whatever was drawn in this context before."""
        gl = self._gl
        commands = np.zeros((*counts.shape, 5), np.uint32)
        commands[..., 0], commands[..., 2] = self._lengths[self._order], self._starts[self._order]
        commands[..., 1] = counts
        commands[..., 4] = (np.cumsum(counts) - counts.ravel()).reshape(counts.shape)
        gl.glBindFramebuffer(gl.GL_FRAMEBUFFER, canvas.framebuffer)
        gl.glUseProgram(self._program)
        gl.glBindVertexArray(self._vertices)
        gl.glBindBuffer(gl.GL_ARRAY_BUFFER, self._instances)
        gl.glBufferData(gl.GL_ARRAY_BUFFER, rows.nbytes, rows, gl.GL_STREAM_DRAW)
        gl.glBindBuffer(gl.GL_DRAW_INDIRECT_BUFFER, self._commands)
        gl.glBufferData(gl.GL_DRAW_INDIRECT_BUFFER, commands.nbytes, commands, gl.GL_STREAM_DRAW)
        gl.glViewport(0, 0, self._pixels, self._pixels)
        for off in (gl.GL_BLEND, gl.GL_SCISSOR_TEST, gl.GL_MULTISAMPLE):
            gl.glDisable(off)
        for on in (gl.GL_DEPTH_TEST, gl.GL_CULL_FACE):
            gl.glEnable(on)
        self._clip_control(gl.GL_LOWER_LEFT, gl.GL_ZERO_TO_ONE)
        gl.glDepthFunc(gl.GL_GEQUAL)
        gl.glFrontFace(gl.GL_CW)  # the pictures are upside down
        gl.glBlendFunc(gl.GL_SRC_ALPHA, gl.GL_ONE_MINUS_SRC_ALPHA)

    def _clear(self) -> None:
        gl = self._gl
        gl.glDepthMask(True)
        gl.glClearColor(0, 0, 0, 0)
        gl.glClearDepth(0)
        gl.glClear(gl.GL_COLOR_BUFFER_BIT | gl.GL_DEPTH_BUFFER_BIT)

    def _copy(self, background: Canvas, layers: int) -> None:
        kind, size = self._gl.GL_TEXTURE_2D_ARRAY, (self._pixels, self._pixels, layers)
        for source, target in (
            (background.colour, self._canvas.colour),
            (background.depth, self._canvas.depth),
        ):
            self._copy_image(source, kind, 0, 0, 0, 0, target, kind, 0, 0, 0, 0, *size)

    def _draw_shapes(self, first: int, count: int) -> None:
        gl = self._gl
        if count:
            gl.glMultiDrawElementsIndirect(gl.GL_TRIANGLES, gl.GL_UNSIGNED_INT, ctypes.c_void_p(20 * first), count, 20)

    def _build_canvas(self) -> Canvas:
        gl = self._gl
        canvas = gl.glGenFramebuffers(1)
        gl.glBindFramebuffer(gl.GL_FRAMEBUFFER, canvas)
        colour, depth = gl.glGenTextures(2)
        size = (self._pixels, self._pixels, self._layers)
        for texture, inner, outer, kind, place in (
            (colour, gl.GL_RGBA8, gl.GL_RGBA, gl.GL_UNSIGNED_BYTE, gl.GL_COLOR_ATTACHMENT0),
            (depth, gl.GL_DEPTH_COMPONENT32F, gl.GL_DEPTH_COMPONENT, gl.GL_FLOAT, gl.GL_DEPTH_ATTACHMENT),
        ):
            gl.glBindTexture(gl.GL_TEXTURE_2D_ARRAY, texture)
            gl.glTexImage3D(gl.GL_TEXTURE_2D_ARRAY, 0, inner, *size, 0, outer, kind, None)
            gl.glTexParameteri(gl.GL_TEXTURE_2D_ARRAY, gl.GL_TEXTURE_MAX_LEVEL, 0)
            gl.glFramebufferTexture(gl.GL_FRAMEBUFFER, place, texture, 0)
        return Canvas(int(canvas), int(colour), int(depth))

    def _build_program(self, model: Any) -> int:
        gl, headlight = self._gl, model.vis.headlight
        program = gl.glCreateProgram()
        text = (
            _VERTEX.replace("AMBIENT", _vectors([headlight.ambient + model.light_ambient.sum(axis=0)]))
            .replace("DIFFUSE", _vectors([headlight.diffuse, *model.light_diffuse]))
            .replace("SPECULAR", _vectors([headlight.specular, *model.light_specular]))
        )
        for kind, source in ((gl.GL_VERTEX_SHADER, text), (gl.GL_FRAGMENT_SHADER, _FRAGMENT)):
            part = gl.glCreateShader(kind)
            gl.glShaderSource(part, source)
            gl.glCompileShader(part)
            gl.glAttachShader(program, part)
        gl.glLinkProgram(program)
        if not gl.glGetProgramiv(program, gl.GL_LINK_STATUS):
            raise RefereeError(f"shaders do not link: {gl.glGetProgramInfoLog(program)!r:.200}")
        return int(program)

    def _build_vertices(self, shapes: Sequence[Shape]) -> tuple[int, int]:
        """The vertex array with all shapes in it, and the buffer for the rows of instances."""
        gl = self._gl
        corners = np.concatenate([corners for corners, _ in shapes])
        starts = np.cumsum([0, *(len(corners) for corners, _ in shapes)])
        faces = np.concatenate([faces + start for (_, faces), start in zip(shapes, starts, strict=False)])
        self._lengths = np.array([faces.size for _, faces in shapes])
        self._starts = np.cumsum(self._lengths) - self._lengths
        faces = faces.astype(np.uint32)
        array = gl.glGenVertexArrays(1)
        gl.glBindVertexArray(array)
        fixed, indices, instances = gl.glGenBuffers(3)
        gl.glBindBuffer(gl.GL_ELEMENT_ARRAY_BUFFER, indices)
        gl.glBufferData(gl.GL_ELEMENT_ARRAY_BUFFER, faces.nbytes, faces, gl.GL_STATIC_DRAW)
        gl.glBindBuffer(gl.GL_ARRAY_BUFFER, fixed)
        gl.glBufferData(gl.GL_ARRAY_BUFFER, corners.nbytes, corners, gl.GL_STATIC_DRAW)
        for place, (width, start) in enumerate(((3, 0), (3, 3), (3, 6), (2, 9))):
            gl.glVertexAttribPointer(place, width, gl.GL_FLOAT, False, 4 * CORNER_FLOATS, ctypes.c_void_p(4 * start))
            gl.glEnableVertexAttribArray(place)
        gl.glBindBuffer(gl.GL_ARRAY_BUFFER, instances)
        for row in range(_ROWS):
            gl.glVertexAttribPointer(4 + row, 4, gl.GL_FLOAT, False, 16 * _ROWS, ctypes.c_void_p(16 * row))
            gl.glEnableVertexAttribArray(4 + row)
            gl.glVertexAttribDivisor(4 + row, 1)
        gl.glBindVertexArray(0)
        return int(array), int(instances)


def _vectors(values: Iterable[np.ndarray]) -> str:
    return ", ".join(f"vec3({x:.6f}, {y:.6f}, {z:.6f})" for x, y, z in values)
