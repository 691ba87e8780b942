"""An arm and a judge, placed on a cluster: step, ask, show.

The arm never moves on while a verdict is missing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from referee.collect.session import Pace, meta_of, open_arm, who_acts
from referee.collect.teleop_worker import LiveJudge, Look, Shown, TeleopWorker
from referee.config import Loaded
from referee.config.arm import FrankaEnvConfig
from referee.config.imports import import_modules
from referee.config.schema import EnvConfig, RewardConfig, RewardModelConfig
from referee.episodes import EpisodeStore
from referee.episodes.collection import place
from referee.episodes.live import LiveRecording
from referee.episodes.recorder import Wanted
from referee.episodes.rerun import LiveView
from referee.errors import ConfigError, RefereeError, TimedOut
from referee.files import write_json
from referee.models.packed import Packed
from referee.rewards import RewardManager, RewardOptions
from referee.rewards.classifier import cameras_for, open_model
from referee.runtime import Call, Cluster, Fallback, Group, Rank, WorkerGroup

_log = logging.getLogger(__name__)


GIVE_UP = 30.0
"""Seconds without a verdict after which the run ends."""


class Teleoperation:
    """An arm and a judge, placed; `steps` leads the one and asks the other."""

    def __init__(self, loaded: Loaded, folder: Path) -> None:
        config = loaded.config
        how = config.reward.model
        if not isinstance(how, RewardModelConfig):
            raise ConfigError(f"reward.model.model_type={how.model_type} says no success: use an image model")
        options, model = options_of(config.reward), open_model(how)
        if model.doubt:
            _log.warning("the reward model %s: %s", how.model_path, model.doubt)
        self.threshold = RewardManager(model, options).threshold
        self.account = Account()
        self._config, self._folder = config, folder
        self.cluster = Cluster(config.cluster)
        try:
            check_ranks(self.cluster)
            packed = Packed.of(model)
            backend = "torch" if how.backend == "auto" else how.backend  # one frame at a time
            self.judge = WorkerGroup(
                make_judge, config.runner.imports, packed, options, backend=backend, int8=how.int8,
                debug_save_dir=how.debug_save_dir, fallback=Fallback(retry=("look", "pid")),
            ).launch(self.cluster, "reward")  # fmt: skip
            self.arm = WorkerGroup(make_teleop, loaded, folder, options, packed).launch(self.cluster, "env")
        except BaseException:
            self.cluster.close()
            raise
        (self._cameras,) = self.arm.views().wait()

    def __enter__(self) -> Teleoperation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            (self.account.recorded,) = self.arm.finish().wait(GIVE_UP)
            write_json(self._folder / "result.json", self.account.summary())
        finally:
            self.cluster.close()

    def wake(self) -> None:
        """Let the judge look once: the first time is slow."""
        self.judge.look(self.arm.first().shared()[0], self._cameras).wait(GIVE_UP)

    def steps(self, view: LiveView | None = None) -> Iterator[tuple[Shown, float | None]]:
        """Each step with the seconds that its verdict took; None where it was late. Then the arm holds, and waits."""
        config, view = self._config, view or LiveView()
        pace = Pace(config.runner.pace)
        for _ in range(config.runner.max_steps):
            pace.wait()
            self.account.begin()
            (pictures,) = self.arm.step().shared()
            asked = time.monotonic()
            call = self.judge.spawn("look", pictures, self._cameras)
            look, latency = _answer(call, asked, config.reward.late_seconds)
            (shown,) = self.arm.take(look).wait()
            self.account.add(shown, look, latency)
            view.show(shown.number, pictures.get, self._cameras, probability=shown.probability, success=shown.success)
            yield shown, latency
            if look is None:
                hold_until(call, self.arm)


def _answer(call: Call, asked: float, late: float) -> tuple[Look | None, float | None]:
    try:
        (look,) = call.wait(late)
    except TimedOut:
        return None, None
    return look, time.monotonic() - asked


def hold_until(call: Call, arm: Group) -> None:
    """Stand still until the verdict is there; it came too late to count."""
    patience = time.monotonic() + GIVE_UP
    while time.monotonic() < patience:
        arm.hold("a verdict is missing").wait()
        try:
            call.wait(0.02)
            return
        except TimedOut:
            continue
    raise RefereeError(f"the reward worker has not answered for {GIVE_UP:.0f} s: see whether its node is up")


def check_ranks(cluster: Cluster) -> None:
    """Refuse more than one arm, or judge."""
    for component in ("env", "reward"):
        if len(cluster.plan[component]) != 1:
            raise ConfigError(
                f"cluster.component_placement.{component} has {len(cluster.plan[component])} ranks, "
                "but there is one arm and one judge: give each one slot"
            )


def options_of(config: RewardConfig) -> RewardOptions:
    """The verdict of every frame, by the gate."""
    return RewardOptions(
        reward_mode="per_step", success_reward=config.success_reward, fail_reward=config.fail_reward,
        reward_threshold=config.reward_threshold, gate_k=config.gate_k, gate_n=config.gate_n,
        veto_unknown=config.veto_unknown, terminate_on="model" if config.standalone_realworld else "never",
    )  # fmt: skip


def make_judge(rank: Rank, imports: Sequence[str], model: Packed, options: RewardOptions, **how: Any) -> LiveJudge:
    """The judge, where it lives. imports: modules that register models of one's own."""
    import_modules(imports)
    return LiveJudge(model, options, **how)


def make_teleop(rank: Rank, loaded: Loaded, folder: Path, options: RewardOptions, model: Packed) -> TeleopWorker:
    """The arm worker, where the arm is."""
    config = loaded.config
    import_modules(config.runner.imports)
    assert config.env.eval is not None
    wanted = config.env.eval
    env = open_arm(loaded, folder, own_success_ends=not config.reward.standalone_realworld)
    manager = RewardManager(model.unpacked(), options)
    recording = None
    if wanted.data_collection.enabled:
        store = EpisodeStore(place(wanted.data_collection, folder))
        some = wanted.data_collection
        recording = LiveRecording(
            env, store, meta_of(loaded, env), trust_env=knows_success(wanted),
            wanted=Wanted(some.only_success, some.target_success, some.target_failure),
        )  # fmt: skip
    return TeleopWorker(
        env, who_acts(env, loaded), gate=manager.gate(1), options=options,
        cameras=cameras_for(manager, env, "env.eval"), verdict_ends=config.reward.standalone_realworld,
        hold=wanted.success_hold_steps,
        recording=recording, seed=config.runner.seed,
    )  # fmt: skip


def knows_success(config: EnvConfig) -> bool:
    """Whether the environment can tell a success: an arm without a target pose cannot."""
    if not isinstance(config, FrankaEnvConfig):
        return True
    return config.target_ee_pose is not None or config.robot.driver == "twin"


@dataclass
class Account:
    """What a run of teleoperation came to."""

    steps: int = 0
    episodes: int = 0
    successes: int = 0
    late: int = 0
    led: int = 0
    recorded: int = 0
    latencies: list[float] = field(default_factory=list)
    scoring: list[float] = field(default_factory=list)
    periods: list[float] = field(default_factory=list)
    _began: float | None = None

    def begin(self) -> None:
        """A step begins."""
        now = time.monotonic()
        if self._began is not None:
            self.periods.append(now - self._began)
        self._began = now

    def add(self, shown: Shown, look: Look | None, latency: float | None) -> None:
        """What became of it."""
        self.steps += 1
        self.successes += shown.success
        self.episodes += shown.ended
        self.led += shown.led
        if shown.ended:
            self._began = None  # the way back to the start is no period
        if look is None or latency is None:
            self.late += 1
            return
        self.latencies.append(latency)
        self.scoring.append(look.seconds)

    def summary(self) -> dict[str, Any]:
        """Numbers in milliseconds, at the median and at 99 of 100."""
        found: dict[str, Any] = {
            "steps": self.steps, "success_steps": self.successes, "ended_episodes": self.episodes, "late": self.late,
            "led_steps": self.led, "recorded_episodes": self.recorded,
        }  # fmt: skip
        for name in ("latencies", "scoring", "periods"):
            values = np.array(getattr(self, name) or [np.nan]) * 1000
            found[f"{name}_ms"] = [round(float(np.quantile(values, q)), 2) for q in (0.5, 0.99)]
        return found

    def lines(self) -> list[str]:
        """The same for people."""
        summary = self.summary()
        middle = {name: summary[f"{name}_ms"] for name in ("latencies", "scoring", "periods")}
        return [
            f"{self.steps} steps, {self.successes} of them success, {self.episodes} episodes ended, "
            f"{self.recorded} recorded, {self.late} verdicts late",
            "ms at the median and at 99 of 100: verdict {}, {}; of it scoring {}, {}; from step to step {}, {}".format(
                *(f"{value:.1f}" for pair in middle.values() for value in pair)
            ),
        ]
