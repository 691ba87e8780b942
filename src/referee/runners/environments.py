"""The environment of a run, recorded if its configuration says so, and the reward model that pays in it."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from referee.config import Config
from referee.config.arm import ROBOT_IP, FrankaEnvConfig
from referee.config.learning import ActorConfig
from referee.config.maniskill import ManiSkillEnvConfig
from referee.config.schema import EnvConfig, RewardConfig, RewardModelConfig
from referee.envs import RefereeVectorEnv, make_vec
from referee.envs.maniskill.tasks import unseen
from referee.envs.tasks import plain_task
from referee.episodes.collection import collecting
from referee.errors import ConfigError
from referee.models import Artifact, ModelSpec
from referee.refine.labellers import LABELLERS
from referee.refine.loop import RefineOptions, Refiner
from referee.rewards import Alarm, RewardManager, RewardOptions
from referee.rewards.guards import weakness
from referee.rl.encoded import EncodedEnv
from referee.robots.spacemouse import InputDevice
from referee.runners.model_keys import set_fields
from referee.runners.payment import Payment, refined_folder
from referee.runners.trends import TrendPayment, is_trend, make_trend_payment, make_trend_worker
from referee.workers.reward import RewardWorker
from referee.workers.trend import TrendWorker

_log = logging.getLogger(__name__)


def make_env(config: EnvConfig, folder: Path, source: str, device: InputDevice | None = None) -> RefereeVectorEnv:
    """The environment that `config` describes; episodes say that they come from `source`. device: see `make_vec`."""
    if config.data_collection.enabled:
        _warn_of_unseen(config)
    world = make_vec(config, device)
    if config.data_collection.enabled and not world.cameras and _wants_pictures(config):
        world.close()
        why = f" ({world.unwrapped.undrawn})" if world.unwrapped.undrawn else ""
        draws = "name a function that draws (env.*.images=module:function), or " if hasattr(config, "images") else ""
        raise ConfigError(
            f"{config.task} draws no pictures{why}, and a reward model learns from nothing else: {draws}record states "
            "alone with env.*.cameras=[]"
        )
    env = collecting(world, config.data_collection, folder=folder, task=config.task, source=source)
    return env if config.encoder is None else EncodedEnv(env, Artifact.open(config.encoder))


def _wants_pictures(config: EnvConfig) -> bool:
    """Whether nobody has said that states alone are recorded."""
    return getattr(config, "cameras", None) is None and config.data_collection.cameras is None


def _warn_of_unseen(config: EnvConfig) -> None:
    """Say it, where frames are labelled or judged by a success that they do not show."""
    if isinstance(config, ManiSkillEnvConfig) and (reason := unseen(config.task, config.success)):
        _log.warning("%s", reason)


def stand_in(config: EnvConfig, folder: Path, source: str) -> RefereeVectorEnv:
    """An environment that is described alike and records nothing: for whoever needs to know what it looks like.

    There is one arm, and whoever acts has it; a twin stands in.
    """
    quiet = replace(config, data_collection=replace(config.data_collection, enabled=False))
    return make_env(quiet.stand_in() if isinstance(quiet, FrankaEnvConfig) else quiet, folder, source)


def with_robot(config: Config) -> Config:
    """The same, with the address of the arm that `cluster.node_groups` names, where the environments name none."""
    groups = [group.hardware for group in config.cluster.node_groups if group.hardware is not None]
    addresses = [unit.robot_ip for hardware in groups for unit in hardware.configs if unit.robot_ip != ROBOT_IP]
    if not addresses:
        return config
    changed: dict[str, Any] = {}
    for name in ("train", "eval"):
        env = getattr(config.env, name)
        if isinstance(env, FrankaEnvConfig) and env.robot.robot_ip in (None, ROBOT_IP):
            changed[name] = replace(env, robot=replace(env.robot, robot_ip=addresses[0]))
    return replace(config, env=replace(config.env, **changed))


def make_reward(
    config: RewardConfig, env: RefereeVectorEnv, steps: int, *, hold: int = 1, again: bool = False
) -> RewardWorker | None:
    """The worker that pays in rollouts of so many steps; None where the environment's own reward does.

    hold: successive verdicts that end an episode, where they do.
    again: the model has been opened elsewhere, where all was said about it.
    """
    if not config.use_reward_model:
        return None
    assert isinstance(config.model, RewardModelConfig)
    names = RewardOptions.__dataclass_fields__
    options = RewardOptions(**{name: getattr(config, name) for name in names})
    model = open_model(config.model)
    if model.doubt and not again:
        _log.warning("the reward model %s: %s", config.model.model_path, model.doubt)
    manager = RewardManager(
        model,
        _guarded(options, model, hold=config.hold_terminal, quiet=again),
        backend=config.model.backend,
        int8=config.model.int8,
        debug_save_dir=config.model.debug_save_dir,
    )
    return RewardWorker(manager, env, steps, hold=hold)


def make_watcher(
    config: RewardConfig, env: RefereeVectorEnv, steps: int, *, hold: int = 1
) -> RewardWorker | TrendWorker | None:
    """The same for those who act while others judge: a model of trends is not loaded there."""
    if is_trend(config):
        return make_trend_worker(config, env, steps, model=None)
    return make_reward(config, env, steps, hold=hold, again=True)


def _guarded(options: RewardOptions, model: Artifact, *, hold: bool, quiet: bool) -> RewardOptions:
    """The same, or terminal mode where the model's own validation is too weak to judge every state.

    quiet: whoever judges has said it already.
    """
    say = _log.debug if quiet else _log.warning
    reason = weakness(model.calibration) if options.reward_mode == "per_step" else None
    if reason is None:
        return options
    if not hold:
        say("each state is judged, but %s: reward.hold_terminal=true would judge the last states only", reason)
        return options
    say("the last states of episodes are judged instead of each one: %s", reason)
    return replace(options, reward_mode="terminal")


def make_alarm(config: RewardConfig, reward: RewardWorker | None) -> Alarm | None:
    """What watches the reward worker; None where nobody wants it, or where weights came without an artifact."""
    if reward is None or not config.alarm.enabled:
        return None
    if reward.manager.artifact.reference is None:
        _log.warning("the reward model came without a reference of its training frames, so no alarm watches it")
        return None
    return Alarm(reward.manager.artifact)


def make_payment(
    config: Config, env: RefereeVectorEnv, folder: Path, *, crews: int = 1
) -> Payment | TrendPayment | None:
    """The learned reward of a run, with all that looks at it; None where the environment's own reward pays.

    crews: how many act, each in its share of the environments.
    """
    assert config.env.train is not None
    if config.reward.use_reward_model and not config.env.train.data_collection.enabled:
        _warn_of_unseen(config.env.train)
    if config.reward.use_reward_model and config.reward.gt_success_bonus:
        _log.warning(
            "reward.gt_success_bonus=%g: the ground truth pays beside the model, so this reward is not learned alone",
            config.reward.gt_success_bonus,
        )
    if is_trend(config.reward):
        return make_trend_payment(config, env, crews=crews)
    hold = config.env.train.success_hold_steps
    reward = make_reward(config.reward, env, config.algorithm.rollout_steps, hold=hold)
    if reward is None:
        return None
    _warn_of_another_task(reward.manager.artifact, config.env.train.task, env.task_description)
    rewards = [reward]
    if crews > 1:
        share, steps = env.num_envs // crews, config.algorithm.rollout_steps
        rewards = [RewardWorker(reward.manager, env, steps, hold=hold, num_envs=share) for _ in range(crews)]
    alarm, seed = make_alarm(config.reward, reward), config.runner.seed
    return Payment(config.reward, rewards, alarm, make_refiner(config, reward, folder), seed=seed)


def _warn_of_another_task(model: Artifact, *here: str) -> None:
    """Say where a model learned other tasks only: it may pay for anything. here: the task, by name and in words."""
    learned = model.provenance.get("tasks", [])
    if learned and not {plain_task(each) for each in learned} & {plain_task(each) for each in here}:
        _log.warning(
            'the reward model learned "%s", but is to judge "%s": audit it on episodes of that before you trust it',
            '", "'.join(learned), here[-1],
        )  # fmt: skip


def make_refiner(config: Config, reward: RewardWorker, folder: Path) -> Refiner | None:
    """What repairs the reward model of a run; None where nobody wants it."""
    wanted = config.reward.refine
    if not wanted.enabled:
        return None
    assert isinstance(config.actor, ActorConfig) and config.env.train is not None
    names = RefineOptions.__dataclass_fields__
    known = {name: value for name, value in vars(wanted).items() if name in names}
    options = RefineOptions(**known, seed=config.runner.seed, threads=config.actor.num_threads)
    return Refiner(
        reward.manager.artifact,
        refined_folder(folder),
        LABELLERS[wanted.labeller](),
        options,
        mode=reward.options.reward_mode,
        task=config.env.train.task,
        data=None if wanted.data is None else Path(wanted.data),
    )


def open_model(config: RewardModelConfig) -> Artifact:
    """The artifact, or weights alone; a warning names the other keys where they differ from what is saved."""
    if not config.model_path:
        what = "is not given" if config.model_path is None else "is empty"
        raise ConfigError(
            f"reward.model.model_path {what}: name the artifact that pays, as logs/RUN/checkpoints/best_model"
        )
    given = set_fields(config)
    return Artifact.open(config.model_path, ModelSpec(**given) if given else None, given)
