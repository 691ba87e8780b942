"""A simulated arm and its cameras, behind the protocols of real ones, with faults on demand.

Units and frames are those of the driver for a real arm. Time is the clock's: with a WallClock the twin moves on while
nobody asks, as an arm does; with a SimulatedClock, whenever somebody waits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from referee.robots.arm import ArmError, ArmState
from referee.robots.cameras import CameraError, Frame
from referee.robots.clock import Clock
from referee.robots.poses import Pose
from referee.sim.batch import ARM, FINGER_OPEN, HOME, PandaBatch, SimState
from referee.sim.camera import Camera as SimCamera
from referee.sim.scene import SUBSTEPS, TIMESTEP, Scene

LONGEST = 2.0
"""Seconds that are simulated in one go; an arm that was left alone for longer has come to rest before."""
EVERYWHERE = np.full(3, -np.inf), np.full(3, np.inf)
SOLVER_STEPS = 2000
"""A hand that was tilted by a rim needs some hundreds; usual poses need a few dozen."""
CLOSE = 1e-4
"""Metres and radians within which a pose counts as reached by the solver."""


@dataclass(frozen=True)
class Faults:
    """What goes wrong: assign another one to `Twin.faults` at any time."""

    lost: bool = False
    """Nobody answers: every call is an ArmError."""
    refused: bool = False
    """Commands are refused until `recover` is called, as after a collision; states are still told."""
    reply_seconds: float = 0.0
    """Each reply comes so late; what it says is as old."""
    frozen: tuple[str, ...] = ()
    """Cameras that give their last frame again, with its old time and number."""
    dark: tuple[str, ...] = ()
    """Cameras that give nothing."""
    frame_seconds: float = 0.0
    """Frames are so old when they arrive; negative: they are stamped in the future."""
    state_seconds: float = 0.0
    """The same of the arm's states."""
    until: float = math.inf
    """When all is well again, in seconds of the clock."""


class Twin:
    """An `Arm` in a scene of its own. `arrange` is the hand that puts things on the table."""

    def __init__(
        self,
        scene: Scene,
        clock: Clock,
        *,
        fingers: tuple[float, float] = (0.0, FINGER_OPEN),
        cameras: tuple[str, ...] = (),
        image_size: int = 64,
        faults: Faults | None = None,
    ) -> None:
        self.clock, self._faults = clock, faults or Faults()
        self.sim = PandaBatch(scene, 1, num_threads=1)
        self.goal = np.zeros((1, 3))
        self.cameras = tuple(TwinCamera(self, name) for name in cameras)
        self._fingers = fingers
        self._closed = False
        self._drawer = SimCamera(scene, cameras, image_size, num_threads=1) if cameras else None
        self._target = self._pose()
        self._until = clock.now()
        self._drawn: tuple[bytes, np.ndarray] | None = None

    @property
    def faults(self) -> Faults:
        """What goes wrong now."""
        return self._faults if self.clock.now() < self._faults.until else Faults()

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._faults = faults

    # --- Arm ---

    def connect(self) -> None:
        """See Arm."""
        self._reply()

    def state(self) -> ArmState:
        """See Arm."""
        measured = self.clock.now() - self.faults.state_seconds
        self._advance()
        sim, qpos = self.sim, self.sim.qpos[0]
        now = ArmState(
            measured, self._pose(), qpos[ARM].copy(), sim.qvel[0, ARM].copy(), float(qpos[7] + qpos[8]),
        )  # fmt: skip
        self._reply()
        return now

    def move(self, target: Pose) -> None:
        """See Arm."""
        self._command()
        self._target = target

    def move_to(self, target: Pose, *, speed: float) -> None:
        """See Arm. Arrives exactly, and at rest."""
        self._command()
        way = target.position - self._pose().position
        step = speed * SUBSTEPS * TIMESTEP
        for left in np.linspace(1.0, 0.0, max(2, int(np.ceil(np.linalg.norm(way) / step)) + 1))[1:]:
            self._target = Pose(target.position - left * way, target.rotation)
            self.clock.sleep(SUBSTEPS * TIMESTEP)
            self._advance()
        self.place(self.solve(target))

    def gripper(self, *, opened: bool) -> None:
        """See Arm."""
        self._command()
        self._closed = not opened

    def stop(self) -> None:
        """See Arm."""
        self._reply()
        self._advance()
        self._target = self._pose()

    def recover(self) -> None:
        """See Arm; what a fault `refused` stands for is over then."""
        self._reply()
        self._advance()
        self._target = self._pose()
        self._faults = replace(self._faults, refused=False)

    def close(self) -> None:
        """See Arm."""
        if self._drawer is not None:
            self._drawer.close()

    # --- the hand that puts things in place, and looks ---

    def arrange(self, goal: np.ndarray, cube: np.ndarray | None = None) -> None:
        """Put the goal f64[3], and the cube f64[7] where there is one, on the table; the arm stays where it is."""
        self.goal[0] = goal
        self.place(self.sim.qpos[0, ARM].copy(), cube=cube)

    def place(self, joints: np.ndarray, *, cube: np.ndarray | None = None) -> None:
        """Put the arm at rest at these angles f64[7]."""
        qpos = self.sim.qpos[0].copy()
        if cube is None and len(qpos) > 9:
            cube = qpos[9:16]
        closed, opened = self._fingers
        self.sim.place(
            np.array([0]), joints[None], fingers=closed if self._closed else opened,
            cube=None if cube is None else cube[None], socket=self.goal,
        )  # fmt: skip
        self._target = self._pose()
        self._until = self.clock.now()

    def solve(self, target: Pose) -> np.ndarray:
        """Joint angles f64[7] that reach a pose: the same for the same pose, wherever the arm is."""
        here = self.sim.save()
        joints = HOME.copy()
        for _ in range(SOLVER_STEPS):
            self.sim.place(np.array([0]), joints[None])
            if max(self._pose().apart(target)) < CLOSE:
                break
            step = np.clip(target.position - self.sim.tcp[0], -0.05, 0.05)
            joints = self.sim.hand_target(step[None], *EVERYWHERE, target.rotation, 0.0)[0]
        else:
            self.sim.restore(here)
            raise ArmError(
                f"the arm cannot reach {np.round(target.xyzrpy, 3).tolist()}: choose a pose within its reach"
            )
        self.sim.restore(here)
        return joints

    def picture(self, camera: str) -> Callable[[], np.ndarray]:
        """What draws the present state uint8[H,W,3], whenever it is asked; all cameras are drawn at once."""
        self._advance()
        qpos, goal = self.sim.qpos.copy(), self.goal.copy()
        return lambda: self._draw(qpos, goal, camera)

    def _draw(self, qpos: np.ndarray, goal: np.ndarray, camera: str) -> np.ndarray:
        assert self._drawer is not None
        key = qpos.tobytes() + goal.tobytes()
        if self._drawn is None or self._drawn[0] != key:
            self._drawn = key, self._drawer.render(qpos, goal)[0]
        return self._drawn[1][self._drawer.cameras.index(camera)]

    def save_state(self) -> dict[str, np.ndarray]:
        """Everything that the future of this twin depends on, but for the time of day."""
        target = np.concatenate([self._target.position, self._target.rotation.ravel()])
        return {
            "simulation": self.sim.save().rows,
            "goal": self.goal.copy(),
            "target": target,
            "closed": np.array([self._closed]),
            "behind": np.array([self.clock.now() - self._until]),
        }

    def restore_state(self, state: dict[str, np.ndarray]) -> None:
        """Go back to a saved state."""
        self.sim.restore(SimState(rows=state["simulation"]))
        self.goal[:] = state["goal"]
        self._target = Pose(state["target"][:3].copy(), state["target"][3:].reshape(3, 3).copy())
        self._closed = bool(state["closed"][0])
        self._until = self.clock.now() - float(state["behind"][0])

    # --- inside ---

    def _pose(self) -> Pose:
        return Pose(self.sim.tcp[0].copy(), self.sim.hand[0].copy())

    def _advance(self) -> None:
        """Let pass in the simulation what has passed outside."""
        behind = self.clock.now() - self._until
        if behind > LONGEST:
            self._until += behind - LONGEST
            behind = LONGEST
        steps = int(behind / TIMESTEP + 0.5)
        self._until += steps * TIMESTEP
        closed, opened = self._fingers
        fingers = np.array([closed if self._closed else opened])
        while steps > 0:
            now = min(SUBSTEPS, steps)
            step = np.clip(self._target.position - self.sim.tcp[0], -0.05, 0.05)
            self.sim.step(self.sim.hand_target(step[None], *EVERYWHERE, self._target.rotation), fingers, substeps=now)
            steps -= now

    def _reply(self) -> None:
        if self.faults.lost:
            raise ArmError("the arm does not answer: check its cable, power and robot_ip")
        self.clock.sleep(self.faults.reply_seconds)

    def _command(self) -> None:
        self._reply()
        if self.faults.refused:
            raise ArmError("the arm refuses commands after an error (a collision, or the user stop): recover it")
        self._advance()


class TwinCamera:
    """A `Camera` that looks at a twin."""

    def __init__(self, twin: Twin, name: str) -> None:
        self.name = name
        self._twin = twin
        self._last: Frame | None = None
        self._number = 0

    def frame(self) -> Frame:
        """See Camera; as long as no time passes, the same frame."""
        faults, now = self._twin.faults, self._twin.clock.now()
        if self.name in faults.dark:
            raise CameraError(f"camera {self.name} gives no frames: check its USB 3 cable")
        if self.name in faults.frozen and self._last is not None:
            return self._last
        taken = now - faults.frame_seconds
        self._number += self._last is None or taken != self._last.time
        self._last = Frame(self._twin.picture(self.name), taken, self._number)
        return self._last

    def close(self) -> None:
        """See Camera; the pictures are the twin's."""
