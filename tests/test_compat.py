"""The names of the older documents do what the documents say."""

import json
import pickle
import pkgutil
import re
from pathlib import Path

import numpy as np
import pytest

from referee import compat
from referee.config import PandaEnvConfig
from referee.envs import make_vec
from referee.envs.policies import make_policy
from referee.errors import ConfigError, RefereeError


def test_data_collector_wrapper(tmp_path: Path) -> None:
    env = make_vec(PandaEnvConfig(task="Reach", num_envs=4, max_episode_steps=10))
    wrapper = compat.DataCollectorWrapper(env, tmp_path, target_success=3, target_failure=2)
    act = make_policy(env, "expert", noise=0.8, seed=0)
    wrapper.reset(seed=0)
    for _ in range(100):
        wrapper.step(act())
    wrapper.close()
    kept = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.pkl"))
    assert [path.parent.name for path in kept] == ["failure"] * 2 + ["success"] * 3
    assert len({path.name for path in kept}) == 5 and kept[0].name.startswith("episode_")
    content = pickle.loads((tmp_path / kept[-1]).read_bytes())
    assert content["success"] is True and content["label"] == 1
    assert set(content["frames"][0]) >= {"obs", "action", "reward", "done", "grasp", "success"}
    assert content["frames"][0]["obs"]["main_images"].shape == (64, 64, 3)


def test_reward_data_collector(tmp_path: Path) -> None:
    collector = compat.RewardDataCollector(
        tmp_path / "positive", tmp_path / "negative", max_negative_trajectories=1, image_keys=["base_camera"]
    )
    images = np.random.default_rng(0).integers(0, 256, (3, 4, 8, 8, 3), dtype=np.uint8)
    for t in range(4):
        output = {
            "obs": {"base_camera": images[:, t]},
            "success_frame": np.array([t >= 2, 0, 0]),
            "dones": np.array([t == 3, t == 3, False]),
        }
        collector.add_env_output(output, {"success_once": np.array([True, False, False])}, is_last_step=False)
    collector.add_env_output({**output, "dones": np.zeros(3)}, None, is_last_step=False)
    assert collector.save_trajectory(2) is None  # enough failures
    assert [path.name for path in (tmp_path / "negative").iterdir()] == ["000000.npy"]
    kept = np.load(tmp_path / "positive" / "000000.npy", allow_pickle=True).item()
    np.testing.assert_array_equal(kept["labels"], [0, 0, 1, 1])
    wanted = np.moveaxis(images[0], -1, 1).astype(np.float32) / 255
    np.testing.assert_array_equal(kept["images"]["base_camera"], wanted)


def test_embodied_runner(tmp_path: Path) -> None:
    lines = [
        "env.train.num_envs=4", "env.eval.num_envs=2", "env.train.task=Reach", "runner.max_steps=40",
        "algorithm.rollout_steps=10", "actor.global_batch_size=20", "actor.model.hidden_dims=[8]",
        "runner.eval_episodes=2", "runner.film=false", f"runner.logger.log_path={tmp_path / 'run'}",
    ]  # fmt: skip
    runner = compat.EmbodiedRunner("panda_ppo_mlp", lines)
    with pytest.raises(RefereeError, match="call init_workers"):
        runner.run()
    runner.init_workers()
    runner.run()
    assert json.loads((tmp_path / "run/result.json").read_text())["steps"] == 40
    with pytest.raises(ConfigError, match="reward_training trains no policy"):
        compat.EmbodiedRunner("reward_training", ["data.data_path=x"]).init_workers()
    with pytest.raises(ConfigError, match="does not divide"):
        compat.EmbodiedRunner("panda_ppo_mlp", [*lines, "actor.global_batch_size=7"]).init_workers()


def test_the_reference_names_all_of_them() -> None:
    page = (Path(__file__).parents[1] / "docs/reference/compat.md").read_text()
    table = [line for line in page.splitlines() if line.startswith("| `")]
    named = {name for line in table for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    assert named == set(compat.__all__)
    for place in re.findall(r"`(referee(?:\.\w+)+)`", page):
        pkgutil.resolve_name(place)
