"""What a reward model says while an arm holds pays nothing, ends nothing and teaches nothing, on every way it takes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.recipes.test_arm_runs import PRESET, TARGET, TWIN

from referee.config import Config, load
from referee.datasets.payload import PayloadWriter
from referee.envs.contract import StepResult, void_steps
from referee.envs.franka.env import FrankaVectorEnv
from referee.learn.asynchronous import AsyncSource
from referee.learn.batch import PolicyWeights
from referee.learn.checks import check
from referee.learn.roll_out import EvalScorer, roll_out
from referee.learn.trainer import Trainer
from referee.learn.worker import RolloutWorker
from referee.models import Artifact, Calibration, ModelSpec, Reference, build
from referee.models.artifact import embed
from referee.rewards import RewardManager, RewardOptions, Scores
from referee.rewards.classifier import ClassifierReward
from referee.rewards.windows import WindowReward
from referee.rewards.wrapper import RewardModelWrapper
from referee.rl.replay import STEP
from referee.robots.twin import Faults, Twin

STEPS, EPISODE, FREEZES = 12, 7, 3
"""Of a rollout, of an episode, and the step in which the cameras freeze; no episode begins before they are back."""
MODES = pytest.mark.parametrize(
    ("mode", "ends_by"), [("per_step", "never"), ("per_step", "model"), ("terminal", "never"), ("terminal", "model")]
)


@pytest.fixture(scope="module")
def yes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that calls everything a success, beside frames that it might have learned from."""
    torch.manual_seed(0)
    folder, images = tmp_path_factory.mktemp("yes"), np.zeros(0)
    files = {side: [str(folder / f"{side}.pt")] for side in ("train", "val")}
    for seed, (path,) in enumerate(files.values()):
        images = np.random.default_rng(seed).integers(0, 256, (16, 2, 64, 64, 3), dtype=np.uint8)
        with PayloadWriter(Path(path)) as writer:
            writer.add(images, np.arange(16) % 2)
            writer.finish({"cameras": ["wrist", "front"]})
    spec = ModelSpec(arch="resnet10", width=4, image_size=64, cameras=("wrist", "front"), hidden_dim=8)
    net = build(spec).eval()
    reference = Reference.of(embed(net, images), images).calibrated(embed(net, images))
    Artifact(net, Calibration(threshold=0.0), {"files": files}, reference).save(folder / "model")
    return folder / "model"


def options(model: Path, mode: str, ends_by: str, *more: str) -> list[str]:
    gate = [] if (mode, ends_by) == ("terminal", "never") else ["reward.gate_k=2", "reward.gate_n=3"]
    return [
        *TWIN, f"env.train.target_ee_pose={TARGET}", "env.train.obs_mode=state", "env.eval.obs_mode=state",
        "actor.model.model_type=mlp", "env.train.image_size=64", "env.eval.image_size=64",
        f"env.train.max_episode_steps={EPISODE}",
        "env.train.terminate_on_success=false", f"env.train.success_hold_steps={4 if ends_by == 'model' else 1}",
        "algorithm.settle_steps=0", "algorithm.bc_warmup.episodes=0",
        f"algorithm.rollout_steps={STEPS}", "algorithm.utd=0.1", "actor.model.hidden_dims=[16]", "actor.num_threads=1",
        "actor.global_batch_size=16", "algorithm.replay.capacity=200", "reward.use_reward_model=true",
        f"reward.model.model_path={model}", f"reward.reward_mode={mode}", f"reward.terminate_on={ends_by}",
        "reward.fail_reward=-1", "reward.alarm.enabled=false", *gate, *more,
    ]  # fmt: skip


def freeze(env: Any) -> None:
    """Let both cameras stand still in the first episode, for a second."""
    world = env.unwrapped
    step, count = world.step, [0]

    def stepped(actions: np.ndarray) -> StepResult:
        count[0] += 1
        if count[0] == FREEZES + 1:
            station = world.stations[0]
            assert isinstance(station.arm, Twin)
            station.arm.faults = Faults(frozen=("wrist", "front"), until=station.clock.now() + 1)
        result: StepResult = step(actions)
        return result

    world.step = stepped


class Here:
    """Those who act, in this process instead of one of their own, so that their cameras can be frozen."""

    workers = 1

    def __init__(self, config: Config, folder: Path) -> None:
        self._config, self._folder, self._steps = config, folder, 0

    def connect(self, policy: Any, reward: Any) -> None:
        self._spec = policy.spec

    def start(self, weights: PolicyWeights, steps: int, state: Any) -> None:
        self._weights = weights
        self.worker = RolloutWorker(self._config, self._folder, self._spec)
        freeze(self.worker.env.env)

    def get(self, timeout: float) -> Any:
        if self._steps >= STEPS:
            return None
        batch = self.worker.collect(self._steps, self._weights)
        self._steps = batch.steps
        return batch

    def publish(self, *_: Any) -> None: ...

    def swap(self, *_: Any) -> None: ...

    def waiting(self) -> int:
        return 0

    def ask_state(self) -> None: ...

    def close(self) -> None:
        self.worker.close()


def lived(run: Trainer) -> SimpleNamespace:
    """What is remembered of the rollout, in its order."""
    replay = run.learner.replay  # type: ignore[union-attr]
    slots = np.flatnonzero(replay.kind[0] == STEP)
    return SimpleNamespace(
        **{name: getattr(replay, name)[0, slots].tolist() for name in ("rewards", "held", "terminated")}
    )


def assert_nothing_was_paid(found: SimpleNamespace, mode: str, ends_by: str) -> None:
    """Every frame looks like a success, two make one, and four successes in a row end an episode."""
    assert np.flatnonzero(found.held).tolist() == [3, 4, 5, 6]
    assert np.flatnonzero(found.terminated).tolist() == ([11] if ends_by == "model" else [])
    every = [-1, 1, 1, -1, -1, -1, -1, -1, 1, 1, 1, 1]
    ends = {EPISODE - 1} | ({11} if ends_by == "model" else set())
    assert found.rewards == (every if mode == "per_step" else [every[t] if t in ends else 0 for t in range(STEPS)])


@MODES
def test_in_one_process(tmp_path: Path, yes: Path, mode: str, ends_by: str) -> None:
    config = load(PRESET, options(yes, mode, ends_by, "runner.background.enabled=false")).config
    check(config)
    run = Trainer(config, tmp_path)
    try:
        freeze(run.env)
        run.iterate()
        assert_nothing_was_paid(lived(run), mode, ends_by)
    finally:
        run.close()


@MODES
def test_side_by_side(tmp_path: Path, yes: Path, mode: str, ends_by: str) -> None:
    config = load(PRESET, options(yes, mode, ends_by)).config
    check(config)
    run = Trainer(config, tmp_path, source=AsyncSource(config, tmp_path, Here(config, tmp_path)))
    try:
        run.iterate()
        assert_nothing_was_paid(lived(run), mode, ends_by)
    finally:
        run.close()


def test_a_better_model_pays_nothing_for_it_either(tmp_path: Path, yes: Path) -> None:
    """The policy sees pictures here, so that all of them are remembered and can be judged anew."""
    pictures = [
        "env.train.obs_mode=state+rgb",
        "env.eval.obs_mode=state+rgb",
        "actor.model.model_type=cnn",
        "runner.background.enabled=false",
    ]
    config = load(PRESET, [*options(yes, "per_step", "never"), *pictures]).config
    run = Trainer(config, tmp_path)
    try:
        freeze(run.env)
        run.iterate()
        before = lived(run).rewards
        assert run.learner.rescore(run.reward) == STEPS  # type: ignore[union-attr,arg-type]
        assert lived(run).rewards == before
    finally:
        run.close()


@pytest.mark.parametrize("mode", ["per_step", "terminal"])
def test_the_wrapper_asks_nobody_while_an_arm_holds(yes: Path, mode: str) -> None:
    train = load(PRESET, options(yes, mode, "never")).config.env.train
    env = FrankaVectorEnv(train)  # type: ignore[arg-type]
    freeze(env)
    gate = {"gate": (1, 1)} if mode == "per_step" else {}
    wrapped: Any = RewardModelWrapper(env, Artifact.open(yes), mode=mode, fail_reward=-1.0, **gate)
    wrapped.reset(seed=0)
    paid, held = [], []
    for _ in range(STEPS):
        _, reward, _, _, info = wrapped.step(np.zeros((1, 3), np.float32))
        paid.append(reward[0])
        held.append(bool(np.broadcast_to(void_steps(info), 1)[0]))
    wrapped.close()
    every = [1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, 1]
    assert np.flatnonzero(held).tolist() == [3, 4, 5, 6]
    assert paid == (every if mode == "per_step" else [-1 if t == EPISODE - 1 else 0 for t in range(STEPS)])


@pytest.mark.slow
def test_the_arm_is_paid_watched_and_asked_about(tmp_path: Path, yes: Path) -> None:
    """The preset with all that looks at a learned reward: it pays and ends, an alarm looks, frames are asked about."""
    asked = [
        "reward.refine.enabled=true",
        "reward.refine.labeller=log",
        "reward.refine.interval=2",
        "reward.refine.ask=4",
    ]
    config = load(PRESET, [*options(yes, "per_step", "model"), *asked, "reward.alarm.enabled=true"]).config
    check(config)
    run = Trainer(config, tmp_path)
    seen: dict[str, float] = {}
    try:
        seen |= run.iterate()
        assert lived(run).rewards[:5] == [-1, 1, 1, 1, 1]
        while "reward/alarm_strange" not in seen:
            seen |= run.iterate()
            assert run.steps < 5000
    finally:
        run.close()
    assert seen["env/episode_length"] == 5 and seen["reward/version"] == 0  # two frames make a success, four end it
    assert run.alarm is not None and run.refinement is not None and run.refinement.refiner is not None
    assert len(run.refinement.refiner.book.store) > 0  # what waits for an answer


def test_nobody_is_asked_what_a_held_frame_shows(tmp_path: Path, yes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is true of it is not known, and the truth of that moment would be a wrong answer to an old picture."""
    asked = ["reward.refine.enabled=true", "runner.background.enabled=false"]
    run = Trainer(load(PRESET, options(yes, "per_step", "never", *asked)).config, tmp_path)
    assert run.refinement is not None and run.refinement.refiner is not None
    offered: list[int] = []
    monkeypatch.setattr(run.refinement.refiner, "watch", lambda images, *rest: offered.append(len(images)))
    try:
        freeze(run.env)
        run.iterate()
        assert offered == [STEPS - 4]
    finally:
        run.close()


def test_no_second_opinion_of_an_evaluation_that_ends_held(yes: Path) -> None:
    train = load(PRESET, options(yes, "terminal", "never")).config.env.train
    env, heard = FrankaVectorEnv(train), list[int]()  # type: ignore[arg-type]
    freeze(env)
    manager = RewardManager(Artifact.open(yes), RewardOptions())
    second = EvalScorer(manager, ("wrist", "front"), lambda pictures, truth: heard.append(len(truth)))
    still = np.zeros((1, 3), np.float32)
    outcomes = roll_out(env, lambda: still, 2, seed=0, watch=second)
    env.close()
    assert len(outcomes) == 2 and heard == [1]  # the first of them ends while its cameras are frozen


def test_a_demonstration_is_not_paid_where_its_arm_held(yes: Path) -> None:
    train = load(PRESET, options(yes, "per_step", "model")).config.env.train
    manager = RewardManager(
        Artifact.open(yes),
        RewardOptions(reward_mode="per_step", terminate_on="model", fail_reward=-1, gate_k=1, gate_n=2),
    )
    env = FrankaVectorEnv(train)  # type: ignore[arg-type]
    worker = ClassifierReward(manager, env, STEPS, hold=3)
    frames = np.zeros((9, 2, 64, 64, 3), np.uint8)
    held = np.arange(8) == 2
    paid, _ = worker.score_episode(frames, held=held)
    assert paid.tolist() == [1, 1, -1, 1, 1, 1]  # three in a row end it, and those before the hold do not count
    whole, _ = worker.score_episode(frames, whole=True, held=held)
    assert whole.tolist() == [1, 1, -1, 1, 1, 1, 1, 1]
    env.close()


def test_a_model_of_trends_pays_nothing_while_an_arm_holds() -> None:
    worker, held = object.__new__(WindowReward), np.array([[False], [True], [False]])
    scored = Scores(np.ones((3, 1), np.float32), np.ones((3, 1), bool), None, None)
    worker.manager = SimpleNamespace(score=lambda windows, shape: scored)  # type: ignore[assignment]
    worker._taken = SimpleNamespace()  # type: ignore[assignment]
    found = worker.score(SimpleNamespace(steps=3, num_envs=1, held=held))  # type: ignore[arg-type]
    assert found.rewards[:, 0].tolist() == [1, 0, 1] and found.judged[:, 0].tolist() == [True, False, True]
