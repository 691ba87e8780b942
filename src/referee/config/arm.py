"""The keys of a real arm and of its twin: the driver, what it may do, what it sees, and when it must hold."""
# ruff: noqa: RUF009 -- key() makes a dataclasses.field; nothing mutable is shared

from __future__ import annotations

from dataclasses import dataclass, replace

from referee.config.collection import DataCollectionConfig
from referee.config.declare import key
from referee.config.leaves import Leaves

ROBOT_IP = "ROBOT_IP"
"""What presets say where the address of one's own arm belongs."""
TARGET_EE_POSE = "TARGET_EE_POSE"
CAMERAS = ("wrist", "front", "side")
"""In the order in which serial numbers are given to them, where nobody names cameras."""


@dataclass(frozen=True, kw_only=True)
class RobotConfig:
    """Who moves."""

    driver: str = key("franky", "a Franka through franky-control, or its simulated twin", choices=("franky", "twin"))
    robot_ip: str | None = key(
        None, "address of the arm's controller; null = that of cluster.node_groups", only_if="driver=franky"
    )
    stiffness: float = key(
        500.0, "of the hand's spring, N/m; softer is gentler and less exact", low=50, high=2000, only_if="driver=franky"
    )
    scene: str = key(
        "PegInsertion",
        "what stands on the twin's table",
        choices=("Reach", "PushCube", "PickCube", "PegInsertion"),
        only_if="driver=twin",
    )
    realtime: bool = key(True, "the twin keeps the time of the wall; false = as fast as it goes", only_if="driver=twin")
    reply_seconds: float = key(0.0, "how late the twin answers", low=0, only_if="driver=twin")
    frame_seconds: float = key(0.0, "how old the frames of its cameras are", low=0, only_if="driver=twin")


@dataclass(frozen=True, kw_only=True)
class FrankaEnvConfig:
    """A Franka with cameras on it, moved by small steps of the hand."""

    env_type: str = key("franka", "which world", tag=True)
    task: str = key("PegInsertion", "name of the task in records and checkpoints")
    description: str = key("Insert the peg into the hole.", "the task in words, for people and for models that read")
    robot: RobotConfig = key(RobotConfig, "who moves")
    num_envs: int = key(1, "arms; more than one only of twins without realtime", low=1)
    max_episode_steps: int = key(100, "steps after which an episode is cut off", low=1)
    control_hz: float = key(10.0, "steps per second", low=1, high=50)
    control_mode: str = key(
        "ee_delta", "what an action moves: the hand along x, y, z, or also about them",
        choices=("ee_delta", "ee_delta_rotation"),
    )  # fmt: skip
    no_gripper: bool = key(False, "actions leave the gripper alone, and so does a reset")
    obs_mode: str = key("state+rgb", "what the policy observes", choices=("state", "rgb", "state+rgb"))
    reward_mode: str = key("sparse", "the env's own reward: 1 for a success", choices=("sparse",))
    target_ee_pose: tuple[float, ...] | None = key(
        None, "x, y, z in metres and roll, pitch, yaw in radians where the task is done; null = success is not known "
        "by the pose",
    )  # fmt: skip
    position_tolerance: float = key(0.01, "metres from target_ee_pose that count as there", low=0.0005, high=0.2)
    rotation_tolerance: float = key(0.2, "radians from it", low=0.01, high=3.2)
    terminate_on_success: bool | None = key(
        None, "end an episode when it has succeeded; null = yes, unless a reward model pays: then its verdict does"
    )
    success_hold_steps: int = key(
        1, "successive successes that end an episode; leaving the zone begins the count anew", low=1
    )
    workspace_low: tuple[float, ...] | None = key(
        None, "corner of the box that the fingertips never leave; null = 10 cm around target_ee_pose, 3 cm below it"
    )
    workspace_high: tuple[float, ...] | None = key(None, "the other corner; null = 20 cm above target_ee_pose")
    max_step: float = key(0.02, "metres of a full action", low=0.001, high=0.05)
    max_turn: float = key(0.1, "radians of a full action", low=0.001, high=0.3)
    max_tilt: float = key(0.6, "radians that the hand may lean away from pointing down", low=0.0, high=1.5)
    reset_ee_pose: tuple[float, ...] | None = key(
        None, "where episodes begin, as target_ee_pose; null = 10 cm above that"
    )
    reset_range: float = key(0.03, "metres along x and y by which the beginning varies", low=0, high=0.2)
    reset_yaw: float = key(0.0, "radians by which it is turned at most", low=0, high=0.8)
    reset_lift: float = key(0.05, "metres straight up before the way to the beginning", low=0, high=0.3)
    reset_speed: float = key(0.15, "metres per second on that way", low=0.01, high=0.5)
    cameras: tuple[str, ...] = key(
        ("wrist", "front"),
        "the first gives main_images, the others extra_view_images; unless set, as many of wrist, front, side as there "
        "are camera_serials",
        choices=("front", "side", "wrist"),
        low=1,
    )
    camera_serials: tuple[str, ...] = key((), "their RealSense serial numbers, in the same order", single=True)
    image_size: int = key(64, "width and height of images in pixels", choices=(64, 128, 224))
    use_spacemouse: bool = key(False, "a SpaceMouse overrides whoever acts")
    teleoperator: str | None = key(
        None, "whose hand is on it (keyboard: keys of the terminal instead); null = a person's, the expert's at a twin",
        choices=("person", "keyboard", "expert"), only_if="use_spacemouse",
    )  # fmt: skip
    intervention_seconds: float = key(
        0.5, "how long a touch of the SpaceMouse overrides", low=0.05, only_if="use_spacemouse"
    )
    keyboard_reward_wrapper: str | None = key(
        None,
        "labels by keys while an episode runs; null = none",
        choices=("single_stage",),
        only_if="runner.recipe=collect_labels",
    )
    encoder: str | None = key(
        None, "reward model whose frozen encoder turns images into states, once; null = images as they are"
    )
    max_age: float = key(0.3, "seconds after which a frame or a state is too old to move on", low=0.02)
    max_ahead: float = key(
        0.05,
        "seconds that the stamp of a frame or a state may be in the future; beyond that the arm holds",
        low=0,
        high=1,
    )
    max_action_age: float = key(
        1.0, "seconds between an observation and the action on it, beyond which the arm holds instead", low=0.05
    )
    fault_seconds: float = key(2.0, "seconds of a fault after which the episode is given up", low=0)
    data_collection: DataCollectionConfig = key(DataCollectionConfig, "recording of episodes")

    def stand_in(self) -> FrankaEnvConfig:
        """The same with a twin that takes no time and nobody at its SpaceMouse: to know spaces, or to evaluate."""
        robot = replace(self.robot, driver="twin", realtime=False)
        return replace(self, robot=robot, use_spacemouse=False)


def with_serials(leaves: Leaves) -> Leaves:
    """The same, with one camera for each serial number where nobody has named the cameras."""
    found = dict(leaves)
    for side in ("train", "eval"):
        serials, cameras = leaves.get(("env", side, "camera_serials")), leaves.get(("env", side, "cameras"))
        if serials is None or cameras is None or cameras.origin.explicit or not serials.value:
            continue
        count = 1 if isinstance(serials.value, str) else len(serials.value)
        if count <= len(CAMERAS):
            found["env", side, "cameras"] = replace(cameras, value=list(CAMERAS[:count]))
    return found
