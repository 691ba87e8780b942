"""The keys of a ManiSkill environment."""
# ruff: noqa: RUF009 -- key() makes a dataclasses.field; nothing mutable is shared

from __future__ import annotations

from dataclasses import dataclass

from referee.config.collection import DataCollectionConfig
from referee.config.declare import key

CAMERAS = ("base_camera", "front", "side", "wrist")
CONTROL_MODES = (
    "pd_joint_delta_pos", "pd_joint_target_delta_pos",
    "pd_ee_delta_pos", "pd_ee_target_delta_pos", "pd_ee_delta_pose", "pd_ee_target_delta_pose",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ManiSkillEnvConfig:
    """A task of ManiSkill 3: simulated on the GPU where there is one, else in processes on the CPU."""

    env_type: str = key("maniskill", "which world", tag=True)
    task: str = key("PickCube-v1", "id of the task, as PushCube-v1, StackCube-v1, PegInsertionSide-v1, PlugCharger-v1")
    num_envs: int = key(16, "environments stepped side by side", low=1)
    max_episode_steps: int = key(50, "steps after which an episode is cut off", low=1)
    obs_mode: str = key("state", "what the policy observes", choices=("state", "rgb", "state+rgb"))
    control_mode: str = key("pd_joint_delta_pos", "what an action moves", choices=CONTROL_MODES)
    action_scale: float = key(
        1.0,
        "share of the largest motion of control_mode that an action of 1 asks for; a gripper is not scaled",
        low=0.01,
        high=1.0,
    )
    reward_mode: str = key("normalized_dense", "the task's own reward", choices=("normalized_dense", "dense", "sparse"))
    success: str = key(
        "task",
        "what counts as success: all that the task asks for (PickCube: also a still robot), or what a frame can show",
        choices=("task", "visible"),
    )
    terminate_on_success: bool = key(False, "end an episode when it has succeeded")
    success_hold_steps: int = key(
        1, "successive successes that end an episode, where the truth or a reward model's verdict ends it", low=1
    )
    sim_backend: str = key("auto", "who simulates; auto = the GPU where CUDA is", choices=("auto", "cpu", "gpu"))
    num_workers: int = key(0, "processes that simulate and draw on the CPU; 0 = one per core", low=0)
    cameras: tuple[str, ...] = key(
        ("base_camera", "side"),
        "the cameras; the first gives main_images, the others extra_view_images; base_camera is the task's own",
        choices=CAMERAS,
        low=1,
    )
    image_size: int = key(128, "width and height of images in pixels", choices=(64, 128, 224))
    shader: str = key(
        "minimal", "how pictures are lit; unlit is many times faster on a CPU", choices=("minimal", "default", "unlit")
    )
    light_scene: bool = key(False, "a small floor and a robot of fewer triangles: faster to draw on a CPU")
    show_goal: bool = key(True, "draw the marker of the goal, which ManiSkill hides from cameras")
    encoder: str | None = key(
        None, "reward model whose frozen encoder turns images into states, once; null = images as they are"
    )
    data_collection: DataCollectionConfig = key(DataCollectionConfig, "recording of episodes")
