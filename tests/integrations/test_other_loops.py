"""Environments and loops as other people write them: pictures in nested dicts, PPO in one file."""

import runpy
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from referee import RewardModelWrapper
from referee.cli import main
from referee.episodes import EpisodeStore
from referee.episodes.gym_recorder import GymRecorder
from referee.models import Artifact
from referee.models.contract import ModelSpec
from referee.models.registry import build

sys.path.insert(0, str(Path(__file__).parents[1] / "envs"))
import own_worlds

PIXELS = own_worlds.SIZE


class Square(own_worlds.PointReach):
    """One that draws in the size of the model."""

    def render(self) -> np.ndarray:
        return super().render()[:, ::2]


gym.register("PointSquare-v0", Square, max_episode_steps=20)


def model(*cameras: str) -> Artifact:
    """A small random one."""
    spec = ModelSpec(arch="resnet10", width=8, image_size=PIXELS, cameras=cameras, hidden_dim=None)
    made = Artifact(build(spec))
    made.calibration = type(made.calibration)(threshold=0.0)
    return made


def test_pictures_in_a_dict_within_the_observation_are_recorded_as_cameras(tmp_path: Path) -> None:
    env = GymRecorder(gym.make("PointPixels-v0", max_episode_steps=3), tmp_path / "episodes", image_size=24)
    observation, _ = env.reset(seed=0)
    for _ in range(3):
        observation, *_ = env.step(env.action_space.sample())
    env.close()
    (episode,) = EpisodeStore(tmp_path / "episodes")
    assert episode.meta.cameras == ("front", "wrist")
    np.testing.assert_allclose(episode.observations["states"][-1], observation["agent_pos"], atol=1e-6)
    sums = episode.observations["main_images"].astype(int) + episode.observations["extra_view_images"][:, 0]
    np.testing.assert_allclose(sums, 255, atol=1)


@pytest.mark.parametrize("count", [0, 3], ids=["single", "vector"])
def test_pictures_in_a_dict_within_the_observation_are_scored(count: int) -> None:
    artifact = model("wrist")
    env: gym.Env | gym.vector.VectorEnv = gym.make("PointPixels-v0", max_episode_steps=4)
    if count:
        mode = gym.vector.AutoresetMode.SAME_STEP
        env = gym.make_vec("PointPixels-v0", count, vectorization_mode="sync", max_episode_steps=4,
                           vector_kwargs={"autoreset_mode": mode})  # fmt: skip
    wrapped = RewardModelWrapper(env, artifact, mode="per_step", reward_type="continuous")
    wrapped.reset(seed=0)
    for step in range(1, 5):
        observation, reward, _, truncated, info = wrapped.step(wrapped.action_space.sample())
        assert np.all(truncated) == (step == 4)
        if step == 4 and count:
            seen = np.stack([each["pixels"]["wrist"] for each in info["final_obs"]])
        else:
            seen = observation["pixels"]["wrist"]
        expected = artifact.judge(seen if count else seen[None]).probability
        np.testing.assert_allclose(reward, expected if count else expected[0], atol=1e-6)
    wrapped.close()


@pytest.mark.slow
def test_the_one_file_ppo_trains_on_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model("render").save(tmp_path / "model")
    script = Path(__file__).parents[2] / "examples" / "wrap_cleanrl.py"
    sizes = ["--steps", "256", "--num-envs", "2", "--rollout", "64", "--epochs", "2", "--minibatches", "2"]
    words = [str(script), str(tmp_path / "model"), "--env-id", "PointSquare-v0", *sizes]
    monkeypatch.setattr("sys.argv", words)
    runpy.run_path(str(script), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["128", "256"]
    assert "the model calls 100% a success" in lines[-1]  # its threshold is 0


def test_a_run_whose_environment_cannot_draw_ends_without_a_film(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(Path(own_worlds.__file__).parent))
    sizes = ["env.train.num_envs=2", "env.train.num_processes=1", "algorithm.rollout_steps=4", "runner.max_steps=16"]
    small = ["actor.global_batch_size=8", "actor.model.hidden_dims=[8]", "runner.eval_episodes=2"]
    words = ["env.train.id=own_worlds:Undrawn-v0", f"runner.logger.log_path={tmp_path / 'run'}", *sizes, *small]
    assert main(["run", "gym_ppo_mlp", *words]) == 0
    assert "no film: own_worlds:Undrawn-v0 draws no pictures here" in capsys.readouterr().out
    assert main(["play", str(tmp_path / "run"), "--out", str(tmp_path / "film.gif")]) == 2
    line = capsys.readouterr().err
    assert line == (
        "referee: Undrawn-v0: nothing draws it (pygame is not installed), so there is no film: referee eval measures "
        "its success without a film\n"
    )
    assert (tmp_path / "run" / "result.json").exists() and not (tmp_path / "run" / "film.gif").exists()
