"""The memories of an off-policy run: as large as the machine allows, with demonstrations that fit the task."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from referee.config import Config
from referee.config.gym import GymEnvConfig
from referee.config.learning import DemosConfig, SACConfig
from referee.config.schema import EnvConfig
from referee.datasets.source import open_source
from referee.envs.contract import RefereeVectorEnv, split_views
from referee.envs.tasks import same_task, task_key
from referee.episodes import Episode
from referee.episodes.episode import ACTION_HIGH, ACTION_LOW, HELD
from referee.errors import ConfigError, RefereeError
from referee.rewards import rules
from referee.rewards.source import RewardSource
from referee.rl.album import Album
from referee.rl.encoded import EncodedEnv
from referee.rl.policy import PolicySpec
from referee.rl.replay import Replay
from referee.rl.replay_file import ReplayFiles
from referee.rl.sac import SAC, Memory

_log = logging.getLogger(__name__)
SPARE = 0.5
"""Of the free memory that pictures may fill, where nobody says how much."""


def make_memory(
    config: Config, env: RefereeVectorEnv, spec: PolicySpec, reward: RewardSource, folder: Path, *, refines: bool
) -> Memory:
    """Replay and demonstrations for a policy in an environment; refused before anything is allocated if too large.

    refines: whether a better reward model may take over, and score all of it again.
    """
    algorithm = config.algorithm
    assert isinstance(algorithm, SACConfig)
    seen = spec.model_type == "cnn"
    cameras = env.cameras if seen else reward.cameras if refines else ()
    every = seen or (reward.learned and reward.options.reward_mode == "per_step")
    ends = algorithm.replay.capacity // env.max_episode_steps + 2 * env.num_envs
    pictures = 0 if not cameras else ends + (algorithm.replay.capacity if every else 0)
    shape = (len(cameras), env.image_size, env.image_size, 3)
    numbers = algorithm.replay.capacity * (4 * (spec.state_size + spec.action_size + 4) + 8)
    memory = _room(algorithm, numbers, pictures * int(np.prod(shape)), folder)
    album = Album(shape, memory=memory, folder=folder) if cameras else None

    def replay(rows: int, capacity: int, *, shown: bool) -> Replay:
        sizes = {"state_size": spec.state_size, "action_size": spec.action_size}
        return Replay(rows, capacity, **sizes, album=album, seen=seen, shown=shown)

    main = replay(env.num_envs, algorithm.replay.capacity, shown=False)
    demos = None
    if algorithm.demos.path is not None:
        assert config.env.train is not None
        episodes = read_demos(algorithm.demos, env, spec, config.env.train)
        total = sum(len(episode) + 1 for episode in episodes)
        room = algorithm.replay.capacity // 4  # for what people will show on the way
        demos = replay(1, total + room, shown=True)
        for episode in episodes:
            _show(demos, episode, config, env, reward, cameras, seen=seen)
    return Memory(main, demos, cameras if seen else None)


class MemoryFiles:
    """Where a run keeps what it remembers: `replay/`, and in `shown/` what was demonstrated, also on the way."""

    def __init__(self, run: Path) -> None:
        self._lived, self._shown = ReplayFiles(run / "replay"), ReplayFiles(run / "shown")

    def _pairs(self, learner: SAC) -> list[tuple[str, ReplayFiles, Replay]]:
        found = [("replay.", self._lived, learner.replay)]
        return found if learner.demos is None else [*found, ("shown.", self._shown, learner.demos)]

    def save(self, learner: SAC) -> dict[str, np.ndarray]:
        """Write what is new; returns what a checkpoint must say about it."""
        return {f"{prefix}{name}": value for prefix, files, replay in self._pairs(learner)
                for name, value in files.save(replay).items()}  # fmt: skip

    def restore(self, learner: SAC, state: Mapping[str, np.ndarray], *, goes_on: bool) -> bool:
        """Remember what a checkpoint speaks of; False where nothing was kept. goes_on: save here from now on."""
        there = True
        for prefix, files, replay in self._pairs(learner):
            marks = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
            if not marks or not files.folder.is_dir():
                there = False
            elif goes_on:
                files.restore(replay, marks)
            else:
                files.load(replay, marks)
        return there

    def prune(self, learner: SAC) -> None:
        """Remove what was forgotten."""
        for _, files, replay in self._pairs(learner):
            files.prune(replay)


def _room(algorithm: SACConfig, numbers: int, pictures: int, folder: Path) -> float:
    """Bytes of pictures that may lie in memory; an error where neither memory nor disk can hold them all."""
    free, wanted = available_memory(), algorithm.replay.memory_gb
    if numbers > free:
        most = int(algorithm.replay.capacity * free / numbers)
        raise ConfigError(
            f"algorithm.replay.capacity={algorithm.replay.capacity} needs {numbers / 1e9:.1f} GB, but "
            f"{free / 1e9:.1f} GB of memory are free: lower it to {most}"
        )
    memory = SPARE * (free - numbers) if wanted is None else 1e9 * wanted
    there = folder
    while not there.exists():
        there = there.parent
    disk = shutil.disk_usage(there).free
    if pictures > memory + disk:
        most = int(algorithm.replay.capacity * (memory + disk) / pictures)
        raise ConfigError(
            f"algorithm.replay.capacity={algorithm.replay.capacity} needs {pictures / 1e9:.1f} GB of pictures, but "
            f"{memory / 1e9:.1f} GB of memory and {disk / 1e9:.1f} GB of disk are free: lower it to {most}"
        )
    return memory


def available_memory() -> float:
    """Bytes that may still be used: of the machine, or of the container that limits us."""
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free = 1024.0 * int(lines["MemAvailable"].split()[0])
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            free = min(free, float(Path(limit).read_text()) - float(Path(used).read_text()))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return max(free, 0.0)


# --- demonstrations ---


def read_demos(config: DemosConfig, env: RefereeVectorEnv, spec: PolicySpec, world: EnvConfig) -> list[Episode]:
    """The episodes that are shown, each of this task and for this policy, with actions in −1..1."""
    assert config.path is not None
    try:
        source = open_source(Path(config.path))
        found = list(_chosen(source, config))
    except RefereeError as error:
        raise ConfigError(f"algorithm.demos.path={config.path}: {error}") from error
    if not found:
        which = " that end in success (algorithm.demos.only_success)" if config.only_success else ""
        raise ConfigError(f"algorithm.demos.path={config.path} holds no episodes{which}: record some first")
    if isinstance(world, GymEnvConfig) and (silent := [each.meta.id for each in found if not bounds_of(each)]):
        _log.warning(
            "algorithm.demos.path=%s: %d of %d episodes do not tell the bounds of their actions (%s, …), so they are "
            "taken to be in -1..1, as those of referee run; record with GymRecorder, which keeps the bounds",
            config.path, len(silent), len(found), silent[0],
        )  # fmt: skip
    return [_check(scaled_actions(episode), config, env, spec, world) for episode in found]


def bounds_of(episode: Episode) -> tuple[np.ndarray, np.ndarray] | None:
    """The bounds of the environment's own actions, f64[a] each; None where actions are in −1..1, or nobody knows."""
    bounds = [episode.meta.extra.get(name) for name in (ACTION_LOW, ACTION_HIGH)]
    if any(bound is None for bound in bounds):
        return None
    low, high = (np.asarray(bound, np.float64).reshape(-1) for bound in bounds)
    return (low, high) if len(low) == len(high) == episode.actions.shape[1] else None


def scaled_actions(episode: Episode) -> Episode:
    """The same with its actions in −1..1, where it tells the bounds that they lie in."""
    bounds = bounds_of(episode)
    if bounds is None or ((bounds[0] == -1).all() and (bounds[1] == 1).all()):
        return episode
    low, high = bounds
    width = np.where(high > low, high - low, 1.0)
    actions = np.where(high > low, 2 * (episode.actions - low) / width - 1, 0.0)
    return replace(episode, actions=actions.astype(np.float32))


def _chosen(source: object, config: DemosConfig) -> Iterator[Episode]:
    taken = 0
    for episode in source:  # type: ignore[attr-defined]
        if config.episodes is not None and taken == config.episodes:
            return
        if config.only_success and not episode.success_at_end:
            continue
        taken += 1
        yield episode


def _check(episode: Episode, config: DemosConfig, env: RefereeVectorEnv, spec: PolicySpec, world: EnvConfig) -> Episode:
    """The episode, if it fits."""
    where = f"algorithm.demos.path={config.path}: episode {episode.meta.id}"
    if episode.meta.task and not same_task(episode.meta.task, world.task):
        raise ConfigError(f"{where} is of task {episode.meta.task}, but {task_key(world)} is {world.task}")
    if episode.actions.shape[1] != spec.action_size:
        raise ConfigError(
            f"{where} has actions of {episode.actions.shape[1]} numbers, but this environment takes "
            f"{spec.action_size}: {_as_here(world)}"
        )
    if np.abs(episode.actions).max() > 1 + 1e-5:
        raise ConfigError(f"{where} has actions beyond -1..1, which this environment does not take: {_as_here(world)}")
    states = episode.observations.get("states")
    if isinstance(env, EncodedEnv):
        return episode  # what it sees is made of its pictures
    if spec.state_size and (states is None or states.shape[1] != spec.state_size):
        has = "none" if states is None else f"those of {states.shape[1]} numbers"
        raise ConfigError(f"{where} must hold states of {spec.state_size} numbers, but it has {has}")
    return episode


def _as_here(world: EnvConfig) -> str:
    """How to record demonstrations whose actions fit."""
    if isinstance(world, GymEnvConfig):
        return f"record them in {world.task} with referee run gym_collect, or with GymRecorder around it"
    return "record with the same control_mode" if hasattr(world, "control_mode") else "record them in this environment"


def _show(
    demos: Replay, episode: Episode, config: Config, env: RefereeVectorEnv, reward: RewardSource,
    cameras: tuple[str, ...], *, seen: bool,
) -> None:  # fmt: skip
    """Put a demonstration into the replay, paid as the run pays."""
    train = config.env.train
    assert train is not None
    success = episode.success
    if train.reward_mode == "sparse" and success is None:
        raise ConfigError(f"episode {episode.meta.id} says nowhere what is a success: label it first")
    true = np.zeros(len(episode), bool) if success is None else success[1:]
    own = true.astype(np.float32) if train.reward_mode == "sparse" else episode.rewards
    steps, over = len(episode), False
    goes_on = config.algorithm.bootstrap_type == "always"  # then what comes after a success shows what it is worth
    if train.terminate_on_success and not goes_on and (found := rules.first_streak(true, train.success_hold_steps)):
        steps, over = found, True
    paid, whole = own, episode.terminated | episode.truncated
    held = episode.signals.get(HELD, np.zeros(len(episode) + 1, bool))[1 : steps + 1]
    if reward.learned:
        shown = _frames(episode, reward.cameras, env)[: steps + 1]
        model, judged = reward.score_episode(shown, whole=goes_on, held=held)
        steps, over = len(model), over or len(model) < steps
        paid = rules.combine(own[:steps], model, reward.options, true_success=(true[:steps] & judged))
    terminated = episode.terminated[:steps].copy()
    terminated[-1] |= over
    frames = _frames(episode, cameras, env)[: steps + 1] if cameras else None
    observations = {"states": episode.observations["states"][: steps + 1]} if demos.states.shape[2] else {}
    if isinstance(env, EncodedEnv):
        looked = _frames(episode, env.cameras, env)[: steps + 1]
        observations = env.encode({**observations, **split_views(looked)})
    if seen:
        assert frames is not None
        observations |= split_views(frames)
    demos.add_episode(
        observations, episode.actions[:steps], paid[:steps], terminated, env_rewards=own[:steps],
        frames=None if frames is None else dict(enumerate(frames)),
        success=true[:steps], held=held[:steps], whole=bool(over or whole[steps - 1]),
    )  # fmt: skip


def _frames(episode: Episode, cameras: tuple[str, ...], env: RefereeVectorEnv) -> np.ndarray:
    """uint8[T+1,V,H,W,3]"""
    missing = [name for name in cameras if name not in episode.meta.cameras]
    if missing:
        raise ConfigError(
            f"demonstration {episode.meta.id} has no pictures of camera {missing[0]}, which is looked at: record "
            f"with env.train.data_collection.cameras=[{', '.join(cameras)}]"
        )
    frames = np.stack([episode.view(name) for name in cameras], axis=1)
    if frames.shape[2] != env.image_size:
        raise ConfigError(
            f"demonstration {episode.meta.id} has pictures of {frames.shape[2]} px, but env.train.image_size is "
            f"{env.image_size}"
        )
    return frames
