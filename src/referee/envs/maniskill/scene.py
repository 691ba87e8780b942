"""Making ManiSkill's tasks: with cameras of ours where somebody draws, and without any drawing where nobody does."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import fast_simplification
import mani_skill.envs.sapien_env as sapien_env  # which registers the tasks, too
import numpy as np
import sapien
import sapien.render
import torch
from mani_skill.render.shaders import PREBUILT_SHADER_CONFIGS, ShaderConfig
from mani_skill.sensors.camera import CameraConfig
from mani_skill.utils import sapien_utils
from mani_skill.utils.registration import REGISTERED_ENVS

from referee.config.maniskill import ManiSkillEnvConfig
from referee.envs.maniskill.vulkan import INSTALL_LINE, render_device
from referee.errors import RefereeError

VIEWS = {"front": ((0.75, 0.0, 0.5), (0.02, 0.0, 0.08)), "side": ((0.06, 0.7, 0.3), (0.06, 0.0, 0.1))}
"""Eye and target of our own cameras, in metres; they look closer at the middle of the table than a task's own."""
FIELD = 0.9
WRIST = ("panda_hand", (0.07, 0.0, 0.03), (0.70710678, 0.0, -0.70710678, 0.0), 1.4)
"""Link, place, turn and field of view of the camera on the hand."""
FLOOR = 3.0
"""Metres around the middle that a light scene keeps of the floor, which stock is 100 m wide: 20,000 triangles."""
FACES = 300
"""Triangles that a light scene keeps of each part of the robot."""
SHADERS = {"minimal": "minimal", "default": "default", "unlit": "trivial"}


def task_class(task: str) -> Any:
    """The class of a registered task."""
    if task in REGISTERED_ENVS:
        return REGISTERED_ENVS[task].cls
    near = difflib.get_close_matches(task, REGISTERED_ENVS, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "`python -c 'import mani_skill.envs'` registers them"
    raise RefereeError(f"ManiSkill has no task {task!r} (env.*.task): {hint}")


def build(config: ManiSkillEnvConfig, num_envs: int = 1, *, gpu: bool = False, draws: bool = False) -> Any:
    """ManiSkill's own environment, which gives states; with `draws`, also with the cameras of the configuration."""
    task = task_class(config.task)
    made: Any = _with_cameras(task, config) if draws else task
    if config.reward_mode not in made.SUPPORTED_REWARD_MODES:
        raise RefereeError(
            f"{config.task} has no {config.reward_mode} reward: set env.*.reward_mode to one of "
            f"{', '.join(mode for mode in made.SUPPORTED_REWARD_MODES if mode != 'none')}"
        )
    with _any_render_device(render_device(gpu=gpu) if draws else None, "sapien_cuda" if gpu else "sapien_cpu"):
        try:
            env = made(
                num_envs=num_envs,
                obs_mode="state",
                reward_mode=config.reward_mode,
                control_mode=config.control_mode,
                sim_backend="physx_cuda" if gpu else "physx_cpu",
                render_backend="none",
            )
        except RuntimeError as error:
            if "rendering device" not in str(error):
                raise
            raise RefereeError(
                f"ManiSkill finds no Vulkan driver, which even states need: without a GPU, run `{INSTALL_LINE}` once; "
                "`referee doctor` shows the state of Vulkan"
            ) from error
        except KeyError as error:
            if config.control_mode not in str(error):
                raise
            raise RefereeError(f"the robot of {config.task} has no control mode {config.control_mode}") from error
    box = env.single_action_space
    if not (np.allclose(box.low, -1) and np.allclose(box.high, 1)):
        raise RefereeError(
            f"actions of {config.control_mode} in {config.task} are not in -1..1: choose another env.*.control_mode"
        )
    return env


@contextmanager
def _any_render_device(name: str | None, kind: str) -> Iterator[None]:
    """Let ManiSkill draw with any device of SAPIEN: its own option knows no `pci:0`, where software drivers are."""
    original = sapien_env.parse_sim_and_render_backend

    def parse(sim_backend: str, render_backend: str) -> Any:
        backend = original(sim_backend, render_backend)
        if name is not None:
            backend.render_device, backend.render_backend = sapien.Device(name), kind
        return backend

    sapien_env.parse_sim_and_render_backend = parse
    try:
        yield
    finally:
        sapien_env.parse_sim_and_render_backend = original


def _with_cameras(task: Any, config: ManiSkillEnvConfig) -> type:
    """The task with our cameras instead of its own, and with a lighter scene if that is wanted."""
    PREBUILT_SHADER_CONFIGS.setdefault("trivial", _UNLIT)

    def cameras(self: Any) -> list[CameraConfig]:
        return [_camera(self, task, name, config) for name in config.cameras]

    def load_agent(self: Any, *args: Any, **kwargs: Any) -> None:
        task._load_agent(self, *args, **kwargs)
        self.agent.__class__ = _without_sensors(type(self.agent))
        if config.light_scene:
            for link in self.agent.robot.links:
                for part in link._objs:
                    _lighten(part.entity, _fewer_faces)

    def load_scene(self: Any, options: dict[str, Any]) -> None:
        task._load_scene(self, options)
        if config.light_scene and "ground" in self.scene.actors:
            for entity in self.scene.actors["ground"]._objs:
                _lighten(entity, _middle)

    changes = {
        "_default_sensor_configs": property(cameras),
        "_default_human_render_camera_configs": property(lambda self: []),
        "_load_agent": load_agent,
        "_load_scene": load_scene,
    }
    return type(f"Drawn{task.__name__}", (task,), changes)


def _without_sensors(agent: Any) -> type:
    """The robot without cameras of its own, which nobody looks through."""
    return type(agent.__name__, (agent,), {"_sensor_configs": property(lambda self: [])})


def _camera(env: Any, task: Any, name: str, config: ManiSkillEnvConfig) -> CameraConfig:
    pixels, shader = config.image_size, SHADERS[config.shader]
    if name == "base_camera":
        own = task._default_sensor_configs.fget(env)
        own = list(own.values()) if isinstance(own, dict) else own if isinstance(own, (list, tuple)) else [own]
        if not own:
            raise RefereeError(f"{config.task} has no camera of its own: set env.*.cameras to [front, side]")
        pose, field, mount = own[0].pose, own[0].fov or np.pi / 2, own[0].mount
    elif name == "wrist":
        link, place, turn, field = WRIST
        if link not in env.agent.robot.links_map:
            raise RefereeError(f"the robot of {config.task} has no {link} for the camera wrist: leave it out")
        pose, mount = sapien.Pose(place, turn), env.agent.robot.links_map[link]
    else:
        pose, field, mount = sapien_utils.look_at(*VIEWS[name]), FIELD, None
    return CameraConfig(name, pose, pixels, pixels, field, 0.01, 100, mount=mount, shader_pack=shader)


_UNLIT = ShaderConfig(
    shader_pack="trivial",
    texture_names={"Color": ["rgb"]},
    texture_transforms={"Color": lambda data: {"rgb": (data[..., :3].clip(0, 1) * 255).to(torch.uint8)}},
)


def _lighten(entity: Any, change: Any) -> None:
    """Draw an entity by other meshes than it was made with."""
    body = entity.find_component_by_type(sapien.render.RenderBodyComponent)
    if body is None:
        return
    lighter = sapien.render.RenderBodyComponent()
    for shape in body.render_shapes:
        for mesh in change(shape):
            lighter.attach(mesh)
    entity.remove_component(body)
    entity.add_component(lighter)


def _fewer_faces(shape: Any) -> Iterator[Any]:
    """The parts of a mesh, each with at most FACES triangles."""
    for part in getattr(shape, "parts", ()):
        points = np.asarray(part.vertices, np.float32) * np.asarray(getattr(shape, "scale", (1, 1, 1)), np.float32)
        faces = np.asarray(part.triangles)
        if len(faces) > FACES:
            points, faces = _simplified(points, faces)
        corners = points[faces]
        normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
        normals /= np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-12)
        yield _mesh(shape, corners.reshape(-1, 3), np.repeat(normals, 3, axis=0), part.material)


def _simplified(points: np.ndarray, faces: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """FACES triangles instead of many; remembered, since some tasks make their scene anew for each episode."""
    known = (len(points), len(faces), points[::97].tobytes())
    if known not in _simple:
        # A vertex that stands once for each of its triangles holds no surface together: those at one place become one.
        places, same = np.unique(points.round(5), axis=0, return_inverse=True)
        welded = same.reshape(-1)[faces]
        whole = welded[(welded != np.roll(welded, 1, axis=1)).all(axis=1)]
        _simple[known] = fast_simplification.simplify(places, whole, target_count=FACES)
    return _simple[known]


_simple: dict[tuple[int, int, bytes], tuple[np.ndarray, np.ndarray]] = {}


def _middle(shape: Any) -> Iterator[Any]:
    """The triangles near the middle of the world."""
    for part in getattr(shape, "parts", ()):
        points, faces = np.asarray(part.vertices), np.asarray(part.triangles)
        near = (np.abs(points[:, :2]) <= FLOOR).all(axis=1)[faces].all(axis=1)
        chosen = faces[near].reshape(-1)
        yield _mesh(shape, points[chosen], np.asarray(part.get_vertex_normal())[chosen], part.material,
                    np.asarray(part.get_vertex_uv())[chosen])  # fmt: skip


def _mesh(shape: Any, points: np.ndarray, normals: np.ndarray, material: Any, uvs: np.ndarray | None = None) -> Any:
    mesh = sapien.render.RenderShapeTriangleMesh(
        points.astype(np.float32),
        np.arange(len(points), dtype=np.uint32).reshape(-1, 3),
        normals.astype(np.float32),
        np.zeros((len(points), 2), np.float32) if uvs is None else uvs.astype(np.float32),
        material,
    )
    mesh.local_pose = shape.local_pose
    return mesh
