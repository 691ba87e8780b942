"""Going to and fro: +1 for a rise and -0.2 for a fall, as RLinf's guide has it, rewards it; +1 and -1 does not."""

import logging
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.models.tiny_vlm import small_vlm

from referee.config import PandaEnvConfig, load
from referee.config.datasets import WindowConfig
from referee.config.vlm import VLMModelConfig, values
from referee.datasets.windows import NEGATIVE, POSITIVE, trends, windows
from referee.envs.panda.env import PandaVectorEnv
from referee.envs.panda.experts import Expert
from referee.learn.checks import check
from referee.learn.trainer import Trainer
from referee.models.vlm import make_reward_parser, register_reward_parser

SIZE, STEPS = 5, 200
GUIDE = {"positive_reward": 1.0, "negative_reward": -0.2}
SYMMETRIC = {"positive_reward": 1.0, "negative_reward": -1.0}
PRESETS = ("panda_ppo_mlp_qwentrend_reward", "maniskill_ppo_mlp_qwentrend_reward")


def rewards(progress: np.ndarray, params: dict[str, float]) -> np.ndarray:
    """Of each window of a path, by a judge that is never wrong."""
    _, names = trends(progress, windows(len(progress), SIZE, 1), WindowConfig().delta_threshold)
    parser = make_reward_parser(params=params)
    return np.array([parser(name)[1] for name in names])


@given(st.lists(st.floats(0, 1), min_size=SIZE, max_size=40))
def test_a_way_there_and_the_same_way_back_earns_nothing_if_rewards_are_symmetric(there: list[float]) -> None:
    """By the guide's values it earns 0.8 for each rise."""
    both = np.array(there + there[::-1])
    assert rewards(both, SYMMETRIC).sum() == pytest.approx(0)
    _, names = trends(both, windows(len(both), SIZE, 1), WindowConfig().delta_threshold)
    assert names.count(POSITIVE) == names.count(NEGATIVE)
    assert rewards(both, GUIDE).sum() == pytest.approx(0.8 * names.count(POSITIVE))


@pytest.fixture(scope="module")
def paths() -> dict[str, np.ndarray]:
    """The true progress f[T+1] of an expert that picks the cube up and holds it, and of a hand that goes to and fro."""
    found = {}
    for name in ("expert", "to and fro"):
        env = PandaVectorEnv(PandaEnvConfig(task="PickCube", num_envs=1, max_episode_steps=STEPS + 1, num_threads=1))
        env.tell_progress = True
        _, info = env.reset(seed=3)
        expert, progress = Expert(env), [info["progress"][0]]
        for step in range(STEPS):
            action = expert()
            if name == "to and fro":
                action[:, :3] *= 1 if step % 16 < 8 else -1
                action[:, 3] = 1
            _, _, _, _, info = env.step(action)
            progress.append(info["progress"][0])
        assert info["success"][0] == (name == "expert")
        found[name] = np.array(progress)
        env.close()
    return found


def test_by_the_guides_values_going_to_and_fro_earns_more_than_the_task(paths: dict[str, np.ndarray]) -> None:
    assert rewards(paths["to and fro"], GUIDE).sum() > 2 * rewards(paths["expert"], GUIDE).sum() > 0


def test_with_symmetric_rewards_the_task_earns_more(paths: dict[str, np.ndarray]) -> None:
    task, to_and_fro = (rewards(paths[name], SYMMETRIC).sum() for name in ("expert", "to and fro"))
    assert task > 10 and abs(to_and_fro) < task / 2


@pytest.mark.parametrize("preset", PRESETS)
def test_the_presets_are_symmetric(preset: str) -> None:
    model = load(preset, ["reward.model.model_path=/nowhere"]).config.reward.model
    assert isinstance(model, VLMModelConfig)
    parser = make_reward_parser(model.reward_parser_name, values(model.reward_parser_params))
    assert parser.to_and_fro == 0 and parser("positive") == ("positive", 1.0)


@pytest.mark.parametrize(("fall", "warns"), [("-0.2", True), ("-1.0", False), ("-1.5", False)])
def test_the_guides_values_work_and_a_warning_tells_what_they_do(
    fall: str, warns: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = small_vlm(tmp_path / "tiny")
    lines = [f"reward.model.model_path={model}", f"reward.model.reward_parser_params.negative_reward={fall}",
             "env.train.num_envs=2", "env.eval.num_envs=1", "env.train.max_episode_steps=6",
             "env.train.num_threads=1", "env.eval.num_threads=1", "actor.model.hidden_dims=[8]",
             "algorithm.rollout_steps=8", "actor.global_batch_size=8", "algorithm.critic_warmup=0",
             "reward.model.readout=score", "runner.film=false"]  # fmt: skip
    config = load(PRESETS[0], lines).config
    check(config)
    with caplog.at_level(logging.WARNING):
        run = Trainer(config, tmp_path)
    found = [record.getMessage() for record in caplog.records if "to and fro" in record.getMessage()]
    assert len(found) == warns
    assert not warns or ("reward_parser_params" in found[0] and "+0.8" in found[0] and "\n" not in found[0])
    numbers = run.iterate()
    assert numbers["reward/windows"] > 0
    run.close()


def test_a_parser_of_ones_own_is_looked_at_alike() -> None:
    @register_reward_parser("test_only_to_and_fro", words=("yes", "no", "maybe"))
    def read(text: str, *, reward: float = 1.0) -> tuple[str, float]:
        return {"yes": ("positive", reward), "no": ("negative", -2.0)}.get(text.strip(), ("invalid", 0.0))

    assert make_reward_parser("test_only_to_and_fro").to_and_fro == -1
    assert make_reward_parser("test_only_to_and_fro", {"reward": 3.0}).to_and_fro == 1
    assert make_reward_parser().to_and_fro == pytest.approx(0.8)
