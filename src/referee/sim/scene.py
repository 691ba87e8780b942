"""The world as MJCF text: a light model for physics and a pretty one for cameras, with the same joints."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from typing import Literal

from referee.sim.assets import Detail, face_budget, panda_xml, visual_meshes

CUBE_HALF = 0.02
CUBE_MASS = 0.05
GRAVITY = 9.81
PEG_HALF = 0.008
PEG_LENGTH = 0.075
"""How far the peg reaches below the fingertips."""
PEG_GAP = 0.0025
"""Free space between peg and hole on every side."""
SOCKET_HEIGHT = 0.05
SOCKET_WALL = 0.022
TCP_OFFSET = 0.1034
"""From the hand's frame to the point between the fingertips."""

TIMESTEP = 0.005
SUBSTEPS = 10
CONTROL_HZ = round(1 / (TIMESTEP * SUBSTEPS))

# Whom a geom touches: gripper–object, gripper–table and object–table, nothing else.
_GRIPPER = 'contype="2" conaffinity="0"'
_OBJECT = 'contype="1" conaffinity="2"'
_TABLE = 'contype="0" conaffinity="3"'
_VISUAL = 'contype="0" conaffinity="0"'

# The fingers have a motor each with one target: no constraint couples them, which a solver would pay for.
# Every joint answers alike (critically damped, 50 rad/s, by its inertia at home), so the hand moves straight; the
# armature keeps a 5 ms step free of jitter, which would shake what is held out of the fingers.
_ARMATURE = 0.3
_INERTIA = (1.40, 1.92, 1.37, 1.33, 0.33, 0.35, 0.31)
_STIFFNESS = 50.0
_TORQUE = (300, 300, 300, 300, 100, 100, 100)
"""Before damping takes its part; what is left stays near the real arm's limits."""

_CUBE_RGBA = "0.92 0.12 0.12 1"
_PEG_RGBA = "0.95 0.55 0.12 1"
_GOAL_RGB = "0.16 0.74 0.32"

DISTRACTORS = 4
DISTRACTOR_GEOMS = [f"distractor{i}" for i in range(DISTRACTORS)]
SHADOW_GEOMS = ["hand_shadow", "cube_shadow"]


@dataclass(frozen=True)
class Scene:
    """What stands on the table besides the arm."""

    cube: bool = False
    peg: bool = False
    goal: Literal["ball", "disc", "socket"] = "ball"
    goal_radius: float = 0.045


def physics_xml(scene: Scene) -> str:
    """The model that is stepped: primitive collision shapes only, the fewest that behave like the real ones.

    The arm compensates its own weight, so gravity is left out and `PandaBatch` pulls at the cube instead: the same
    motion, without compensating eleven bodies at each step.
    """
    robot = _robot(scene, visual=False)
    socket = f'<body name="goal" mocap="true">{_socket(_TABLE)}</body>' if scene.goal == "socket" else ""
    actuators = "".join(
        f'<position joint="joint{i}" kp="{inertia * _STIFFNESS**2:.0f}" forcerange="-{torque} {torque}"/>'
        for i, (inertia, torque) in enumerate(zip(_INERTIA, _TORQUE, strict=True), start=1)
    )
    return f"""<mujoco model="referee">
  <compiler angle="radian" autolimits="true"/>
  <option timestep="{TIMESTEP}" gravity="0 0 0" integrator="Euler" cone="pyramidal" iterations="12" ls_iterations="12"
          tolerance="1e-6"/>
  <size memory="2M"/>
  <default>
    <joint armature="{_ARMATURE}" axis="0 0 1"/>
    <geom condim="3" solimp="0.98 0.99 0.001" solref="0.01 1" friction="1 0.005 0.0001"/>
    <default class="finger">
      <joint axis="0 1 0" type="slide" range="0 0.04" armature="0.1" damping="15"/>
    </default>
  </default>
  <worldbody>
    <geom name="table" type="plane" size="2 2 0.1" {_TABLE}/>
    {robot}
    {_cube_body(f'mass="{CUBE_MASS}" {_OBJECT} friction="1 0.005 0.0001"') if scene.cube else ""}
    {socket}
  </worldbody>
  <actuator>
    {actuators}
    <position joint="finger_joint1" kp="500" forcerange="-40 40"/>
    <position joint="finger_joint2" kp="500" forcerange="-40 40"/>
  </actuator>
</mujoco>"""


def visual_xml(scene: Scene, *, pixels: int, detail: Detail = "fast", distractors: int = 0) -> str:
    """The model that is drawn: `fast` for what models look at, `film` (smooth, real shadows) for people."""
    film = detail == "film"
    meshes = visual_meshes(face_budget(detail, pixels))
    mesh_assets = "".join(f'<mesh name="{body}" file="{path}"/>' for body, path in meshes.files.items())
    kinds = ("box", "cylinder", "sphere", "box")
    strangers = "".join(
        f'<geom name="{name}" type="{kind}" size="0.022 0.022 0.022" pos="0 0 -1" rgba="0.3 0.4 0.8 1" {_VISUAL}/>'
        for name, kind in zip(DISTRACTOR_GEOMS[:distractors], kinds, strict=False)
    )
    blobs = "".join(
        f'<geom name="{name}" type="mesh" mesh="spot" pos="0 0 -1" rgba="0.1 0.08 0.06 0.4" {_VISUAL}/>'
        for name in ([] if film else SHADOW_GEOMS[: 1 + scene.cube])
    )
    return f"""<mujoco model="referee-visual">
  <compiler angle="radian" autolimits="true"/>
  <statistic extent="1" center="0.5 0 0.1"/>
  <visual>
    <global offwidth="{pixels}" offheight="{pixels}" fovy="40"/>
    <quality offsamples="{4 if film else 0}" shadowsize="{1024 if film else 0}" {
        "" if film else 'numslices="14" numstacks="8" numquads="1"'
    }/>
    <headlight ambient="0.34 0.34 0.36" diffuse="0.20 0.20 0.20" specular="0.05 0.05 0.05"/>
    <map znear="0.015" zfar="30"/>
  </visual>
  <default>
    <geom group="0"/>
    <joint axis="0 0 1"/>
    <default class="finger"><joint axis="0 1 0" type="slide" range="0 0.04"/></default>
  </default>
  <asset>
    <texture name="sky" type="skybox" builtin="gradient" rgb1="0.80 0.87 0.93" rgb2="0.55 0.64 0.73" width="64"
             height="384"/>
    <material name="table" rgba="0.87 0.80 0.70 1" specular="0.1" shininess="0.1"/>
    <material name="floor" rgba="0.50 0.55 0.60 1" specular="0" shininess="0"/>
    <texture name="palette" type="2d" file="{meshes.palette}"/>
    <material name="panda" texture="palette" specular="0.3" shininess="0.4"/>
    {mesh_assets}{_disc("spot", 0.03, 12)}{_disc("disc", scene.goal_radius, 32)}
  </asset>
  <worldbody>
    <light name="key" pos="0.9 -0.7 1.8" dir="-0.28 0.45 -1" directional="true" diffuse="0.50 0.49 0.46"
           specular="0.15 0.15 0.15" castshadow="{str(film).lower()}"/>
    <light name="fill" pos="0.6 1.2 1.4" dir="-0.1 -0.8 -0.9" directional="true" diffuse="0.16 0.17 0.20"
           specular="0 0 0" castshadow="false"/>
    <camera name="front" pos="1.30 0.48 0.60" xyaxes="{_look((1.30, 0.48, 0.60), (0.48, 0.0, 0.145))}" fovy="26"/>
    <camera name="side" pos="0.56 -1.02 0.38" xyaxes="{_look((0.56, -1.02, 0.38), (0.49, 0.0, 0.15))}" fovy="26"/>
    <camera name="film" pos="1.50 -0.85 0.80" xyaxes="{_look((1.5, -0.85, 0.8), (0.36, 0.0, 0.24))}" fovy="36"/>
    <geom name="floor" type="box" size="8 8 0.01" pos="0 0 -0.76" material="floor" {_VISUAL}/>
    <geom name="table" type="box" size="0.60 0.62 0.02" pos="0.36 0 -0.02" material="table" {_VISUAL}/>
    {_robot(scene, visual=True)}
    {_cube_body(_VISUAL) if scene.cube else ""}
    <body name="goal" mocap="true">{_goal(scene)}</body>
    {blobs}{strangers}
  </worldbody>
</mujoco>"""


def _robot(scene: Scene, *, visual: bool) -> str:
    """The Panda's links and joints from its description, dressed with our geoms."""
    root = panda_xml().find("worldbody/body[@name='link0']")
    assert root is not None
    root.attrib.pop("childclass", None)
    for body in root.iter("body"):
        name = body.get("name", "")
        for child in list(body):
            if child.tag in ("geom", "site"):
                body.remove(child)
        for geom in _dress(name, scene, visual=visual):
            body.append(geom)
    for joint in root.iter("joint"):
        joint.attrib.pop("damping", None)
        if joint.get("class") != "finger":
            joint.attrib.setdefault("range", "-2.8973 2.8973")
            # Damping of the joint, not of the motor, is what the Euler integrator takes implicitly.
            inertia = _INERTIA[int(joint.get("name", "")[-1]) - 1]
            joint.set("damping", f"{2 * inertia * _STIFFNESS:.1f}")
    return ET.tostring(root, encoding="unicode")


def _dress(body: str, scene: Scene, *, visual: bool) -> list[ET.Element]:
    mesh = f'<geom name="{body}" type="mesh" mesh="{body}" material="panda" {_VISUAL}/>'
    parts = mesh if visual else _collision_parts(body)
    if body == "hand":
        parts += f'<site name="tcp" pos="0 0 {TCP_OFFSET}"/>'
        if visual:
            parts += '<camera name="wrist" pos="0.07 0 0.0" xyaxes="0 -1 0 -0.94 0 -0.34" fovy="75"/>'
        if scene.peg:
            centre = TCP_OFFSET + (PEG_LENGTH - 0.02) / 2
            attributes = f'rgba="{_PEG_RGBA}" {_VISUAL}' if visual else f'mass="0.03" friction="0.2" {_GRIPPER}'
            parts += (
                f'<geom name="peg" type="box" size="{PEG_HALF} {PEG_HALF} {(PEG_LENGTH + 0.02) / 2}" '
                f'pos="0 0 {centre}" {attributes}/>'
            )
    return list(ET.fromstring(f"<parts>{parts}</parts>"))


def _collision_parts(body: str) -> str:
    if body == "hand":
        return f'<geom name="hand" type="box" size="0.03 0.10 0.03" pos="0 0 0.03" {_GRIPPER}/>'
    if body.endswith("finger"):
        # The finger's lower half is a rubber pad; its inner face lies at y = 0 of the finger.
        return (
            f'<geom name="{body}_pad" type="box" size="0.0105 0.0075 0.0180" pos="0 0.0075 0.0356" '
            f'friction="2 0.01 0.0001" {_GRIPPER}/>'
        )
    return ""


def _cube_body(attributes: str) -> str:
    return (
        f'<body name="cube" pos="0.5 0 {CUBE_HALF}"><freejoint name="cube"/>'
        f'<geom name="cube" type="box" size="{CUBE_HALF} {CUBE_HALF} {CUBE_HALF}" rgba="{_CUBE_RGBA}" {attributes}/>'
        "</body>"
    )


def _goal(scene: Scene) -> str:
    if scene.goal == "ball":
        return f'<geom name="goal" type="sphere" size="{scene.goal_radius}" rgba="{_GOAL_RGB} 0.28" {_VISUAL}/>'
    if scene.goal == "disc":
        return f'<geom name="goal" type="mesh" mesh="disc" rgba="{_GOAL_RGB} 1" {_VISUAL}/>'
    return _socket(_VISUAL)


def _socket(attributes: str) -> str:
    """A block with a square hole, its origin on the table under the hole; the rim is green."""
    hole, wall, half = PEG_HALF + PEG_GAP, SOCKET_WALL / 2, SOCKET_HEIGHT / 2
    walls = []
    for axis, sign in (("x", 1), ("x", -1), ("y", 1), ("y", -1)):
        # The x walls span the corners, the y walls fit between them.
        size = (wall, hole + 2 * wall) if axis == "x" else (hole, wall)
        offset = sign * (hole + wall)
        centre = (offset, 0.0) if axis == "x" else (0.0, offset)
        name = f"socket_{axis}{'p' if sign > 0 else 'n'}"
        walls.append(
            f'<geom name="{name}" type="box" size="{size[0]} {size[1]} {half}" pos="{centre[0]} {centre[1]} {half}" '
            f'rgba="0.33 0.38 0.46 1" friction="0.2" {attributes}/>'
        )
        if attributes == _VISUAL:
            walls.append(
                f'<geom name="{name}_rim" type="box" size="{size[0]} {size[1]} 0.003" '
                f'pos="{centre[0]} {centre[1]} {SOCKET_HEIGHT}" rgba="{_GOAL_RGB} 1" {_VISUAL}/>'
            )
    return "".join(walls)


def _disc(name: str, radius: float, corners: int) -> str:
    """A flat disc that faces up: a few triangles, where a cylinder is drawn with hundreds."""
    angles = [2 * math.pi * i / corners for i in range(corners)]
    rim = [f"{radius * math.cos(angle):.5f} {radius * math.sin(angle):.5f} 0" for angle in angles]
    fan = " ".join(f"0 {i} {i % corners + 1}" for i in range(1, corners + 1))
    return f'<mesh name="{name}" inertia="shell" vertex="0 0 0 {" ".join(rim)}" face="{fan}"/>'


def _look(eye: tuple[float, float, float], at: tuple[float, float, float]) -> str:
    """The camera axes that look from `eye` to `at` with the horizon level."""
    forward = [a - e for a, e in zip(at, eye, strict=True)]
    right = (forward[1], -forward[0], 0.0)
    up = (
        right[1] * forward[2] - right[2] * forward[1],
        right[2] * forward[0] - right[0] * forward[2],
        right[0] * forward[1] - right[1] * forward[0],
    )
    return " ".join(f"{value:.6f}" for value in (*right, *up))
