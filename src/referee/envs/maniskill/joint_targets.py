"""The joint targets of an action in `pd_joint_delta_pos` and `pd_ee_delta_pos`, in numpy. On bits, see `poses`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import sapien
from mani_skill.agents.controllers import PDEEPosController, PDJointPosController, PDJointPosMimicController
from mani_skill.agents.controllers.base_controller import CombinedController

from referee.envs.maniskill.poses import IDENTITY, compose, invert

Targets = Callable[[np.ndarray], np.ndarray]
"""From a controller's part of an action f32[k] to the targets f32[j] of its joints."""


def find_target_setter(agent: Any) -> Callable[[np.ndarray], None] | None:
    """A function that sets the targets of all joints for an action f32[a]; None if a controller is not known here."""
    combined = agent.controller
    if type(combined) is not CombinedController:
        return None
    parts = []
    for name, controller in combined.controllers.items():
        config, find = controller.config, _FINDERS.get(type(controller))
        if find is None or not controller._normalize_action or config.use_target or config.interpolate:
            return None
        targets = find(controller)
        if targets is None:
            return None
        setters = [joint._objs[0].set_drive_target for joint in controller.joints]
        parts.append((slice(*combined.action_mapping[name]), targets, setters))

    def set_targets(action: np.ndarray) -> None:
        for share, targets, setters in parts:
            for setter, target in zip(setters, targets(action[share]).tolist(), strict=True):
                setter(target)

    return set_targets


def _scale(controller: Any) -> Targets:
    """From -1..1 to the controller's range."""
    low, high = controller.action_space_low.numpy(), controller.action_space_high.numpy()
    middle, half = np.float32(0.5) * (high + low), np.float32(0.5) * (high - low)
    return lambda action: middle + half * np.clip(action, -1, 1)


def _joint_deltas(controller: Any) -> Targets | None:
    if not controller.config.use_delta:
        return None
    scale, joints = _scale(controller), controller.active_joint_indices.numpy()
    robot = controller.articulation._objs[0]
    return lambda action: robot.qpos[joints] + scale(action)


def _gripper(controller: Any) -> Targets | None:
    """One finger goes where the action says; the other one follows it."""
    leaders, followers = controller.control_joint_indices.numpy(), controller.mimic_joint_indices.numpy()
    size = len(controller.joints)
    if controller.config.use_delta or sorted((*leaders, *followers)) != list(range(size)):
        return None
    scale, followed = _scale(controller), controller.mimic_control_joint_indices.numpy()
    factor, offset = controller._multiplier.numpy(), controller._offset.numpy()

    def targets(action: np.ndarray) -> np.ndarray:
        result = np.empty(size, np.float32)
        result[leaders] = scale(action)
        result[followers] = result[followed] * factor + offset
        return result

    return targets


def _hand_deltas(controller: Any) -> Targets | None:
    """Inverse kinematics of where the hand is to be; the joints stay where it finds no solution."""
    if not controller.config.use_delta or controller.config.frame != "root_translation":
        return None
    scale, joints = _scale(controller), controller.active_joint_indices.numpy()
    robot, root, hand = (it._objs[0] for it in (controller.articulation, controller.root_link, controller.ee_link))
    solver = controller.kinematics
    inputs, outputs = solver.pmodel_active_joint_indices.numpy(), solver.pmodel_controlled_joint_indices.numpy()
    movable, link = solver.qmask.numpy().astype(np.int32), solver.end_link_idx

    def targets(action: np.ndarray) -> np.ndarray:
        qpos, base, tip = robot.qpos, root.entity_pose, hand.entity_pose
        p, q = compose(*invert(base.p, base.q), tip.p, tip.q)
        p, q = compose(scale(action), IDENTITY, p, q)
        result, success, _ = solver.pmodel.compute_inverse_kinematics(
            link, sapien.Pose(p, q), initial_qpos=qpos[inputs], active_qmask=movable, max_iterations=100
        )
        return result[outputs].astype(np.float32) if success else qpos[joints]

    return targets


_FINDERS: dict[type, Callable[[Any], Targets | None]] = {
    PDJointPosController: _joint_deltas,
    PDJointPosMimicController: _gripper,
    PDEEPosController: _hand_deltas,
}
