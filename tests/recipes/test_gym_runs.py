"""Somebody's Gymnasium environment through `referee run`: record, train a reward model, train a policy on it."""

import io
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from rich.console import Console

from referee.cli import main
from referee.config import load
from referee.episodes import EpisodeStore
from referee.episodes.episode import Meta
from referee.episodes.gym_recorder import GymRecorder
from referee.errors import ConfigError, RefereeError
from referee.learn.checks import check
from referee.learn.environments import warn_of_another_task
from referee.learn.trainer import Trainer
from referee.models import Artifact
from referee.rl import checkpoint
from referee.rl.sac import SAC
from referee.runs.ending import write_summary

WORLDS = str(Path(__file__).parents[1] / "envs")
POINT = "own_worlds:PointReach-v0"
POLICY = """
import numpy as np

def towards(observation):
    states = observation["states"]  # observation (x, y, third), achieved goal, desired goal
    return np.concatenate([np.clip((states[:, 5:7] - states[:, :2]) / 0.25, -1, 1), np.zeros((len(states), 1))], axis=1)
"""


@pytest.fixture(autouse=True)
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(WORLDS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [WORLDS, os.environ.get("PYTHONPATH", "")])))
    monkeypatch.chdir(tmp_path)
    Path("my_policy.py").write_text(POLICY)


def record(out: str, *, episodes: int, noise: float, seed: int, id: str = POINT, **more: str) -> EpisodeStore:
    extra = [f"{name}={value}" for name, value in more.items()]
    code = main(["run", "gym_collect", f"env.eval.id={id}", "runner.policy=my_policy:towards", "runner.film=false",
                 f"runner.num_episodes={episodes}", f"runner.expert_noise={noise}", f"runner.seed={seed}",
                 "env.eval.num_envs=8", "env.eval.num_processes=1", "env.eval.image_size=32",
                 f"env.eval.data_collection.save_dir={out}", f"runner.logger.log_path=log_{out}_{seed}",
                 *extra])  # fmt: skip
    assert code == 0
    return EpisodeStore(Path(out), create=False)


def test_as_many_episodes_are_recorded_as_were_asked_for() -> None:
    store = record("twenty", episodes=20, noise=0.5, seed=0)
    assert len(store) == 20
    assert json.loads(Path("log_twenty_0/result.json").read_text())["episodes"] == 20
    counts = np.bincount([episode.meta.env for episode in store], minlength=8)
    assert counts.tolist() == [3, 3, 3, 3, 2, 2, 2, 2]


def test_named_cameras_are_recorded_listed_and_trained_on(capsys: pytest.CaptureFixture[str]) -> None:
    cameras = "own_worlds:PointCameras-v0"
    record("cameras", episodes=16, noise=0.5, seed=0, id=cameras)
    record("cameras", episodes=16, noise=3.0, seed=1, id=cameras)
    assert main(["episodes", "ls", "cameras"]) == 0
    assert "top, wrist" in capsys.readouterr().out
    assert main(["train", "cameras", "--out", "reward", "data.cameras=[wrist]", "runner.max_epochs=1"]) == 0
    assert Artifact.open("reward/checkpoints/best_model").spec.cameras == ("wrist",)


def collect(id: str, *more: str) -> int:
    return main(["run", "gym_collect", f"env.eval.id=own_worlds:{id}", "runner.film=false", "runner.num_episodes=3",
                 "env.eval.num_envs=2", "env.eval.num_processes=1", "env.eval.image_size=32",
                 "env.eval.data_collection.save_dir=out", "runner.logger.log_path=log", *more])  # fmt: skip


def test_recording_what_cannot_be_drawn_is_refused_at_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    """States alone are no data of a reward model: nobody finds that out after an hour of recording."""
    assert collect("Undrawn-v0") == 2
    error = capsys.readouterr().err
    assert "draws no pictures (pygame is not installed)" in error and "env.*.images=module:function" in error
    assert error.count("\n") == 1 and not Path("out").exists()
    assert collect("Undrawn-v0", "env.eval.cameras=[]") == 0  # asked for
    assert "next: referee train" not in capsys.readouterr().out
    assert all(not episode.views() for episode in EpisodeStore(Path("out"), create=False))


@pytest.mark.parametrize("processes", [1, 2])
def test_where_nothing_tells_success_no_label_is_invented(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, processes: int
) -> None:
    assert collect("PointSilent-v0", f"env.eval.num_processes={processes}") == 0
    assert [episode.success for episode in EpisodeStore(Path("out"), create=False)] == [None] * 3
    assert "next: referee train" not in capsys.readouterr().out
    assert "its episodes have no labels: set env.*.success_key" in caplog.text
    assert collect("PointReach-v0", "env.eval.data_collection.save_dir=told", "runner.logger.log_path=other") == 0
    assert all(episode.success is not None for episode in EpisodeStore(Path("told"), create=False))
    assert "next: referee train told" in capsys.readouterr().out


def training(*more: str, id: str = POINT) -> Trainer:
    """A tiny RLPD in the point's world, made but not begun."""
    lines = [f"env.train.id={id}", "env.train.num_processes=1", "env.train.num_envs=2", "env.train.image_size=32",
             "algorithm.replay.capacity=400", "actor.model.hidden_dims=[8]", "actor.num_threads=1",
             "runner.eval_episodes=2", *more]  # fmt: skip
    return Trainer(load("gym_rlpd_mlp", lines).config, Path("run"))


def record_by_hand(out: str, like: EpisodeStore, *, bounds: bool = True) -> None:
    """What `like` holds, lived again in the environment itself, by its own actions, recorded by a `GymRecorder`."""
    env = GymRecorder(gym.make(POINT), out, images="none")
    box: Any = env.action_space
    if not bounds:  # as recorders of before
        env._meta = Meta(task=POINT)
    for number, episode in enumerate(like):
        env.reset(seed=number)
        for action in episode.actions:
            env.step((box.low + (action + 1) / 2 * (box.high - box.low)).astype(np.float32).clip(box.low, box.high))
    env.close()


def test_demonstrations_of_a_recorder_are_scaled_as_those_of_a_run() -> None:
    """GymRecorder keeps actions as the environment takes them; a policy acts in -1..1."""
    store = record("shown", episodes=3, noise=0.5, seed=0)
    record_by_hand("by_hand", store)
    raw = next(iter(EpisodeStore(Path("by_hand"), create=False)))
    assert raw.actions[:, 2].max() > 1 and raw.meta.extra["action_high"] == [0.5, 0.5, 4]
    same = "algorithm.demos.only_success=false"
    ours, theirs = (training(f"algorithm.demos.path={place}", same).learner for place in ("shown", "by_hand"))
    assert isinstance(ours, SAC) and isinstance(theirs, SAC)
    assert ours.demos is not None and theirs.demos is not None
    np.testing.assert_allclose(theirs.demos.actions, ours.demos.actions, atol=1e-5)
    assert np.abs(ours.demos.actions[..., 0]).max() > 0.5


def test_demonstrations_without_bounds_are_refused_or_their_scale_is_told(caplog: pytest.LogCaptureFixture) -> None:
    store = record("shown", episodes=3, noise=0.5, seed=0)
    record_by_hand("by_hand", store, bounds=False)
    which = "algorithm.demos.path=by_hand"
    with pytest.raises(
        ConfigError, match=r"beyond -1\.\.1, .*: record them in own_worlds:PointReach-v0 with referee run"
    ):
        training(which, "algorithm.demos.only_success=false")
    assert "do not tell the bounds of their actions" in caplog.text and "taken to be in -1..1" in caplog.text


def test_a_task_is_the_same_with_and_without_its_module(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """GymRecorder and checkpoints say PointReach-v0 where a run says own_worlds:PointReach-v0."""
    record_by_hand("by_hand", record("shown", episodes=1, noise=0.5, seed=0))
    which = ("algorithm.demos.path=by_hand", "algorithm.demos.only_success=false")
    run = training(*which)  # of task PointReach-v0
    folder = run.save()
    stored = checkpoint.load(folder)
    assert stored.meta["task"] == POINT
    assert training(*which, id="PointReach-v0").resume(folder) == 0
    with pytest.raises(ConfigError, match=r"is of task PointReach-v0, but env\.train\.id is PointCameras-v0"):
        training(*which, id="PointCameras-v0")
    with pytest.raises(RefereeError, match=f"this run is on PointCameras-v0: set env.train.id={POINT}"):
        training("algorithm.bc_warmup.episodes=0", id="PointCameras-v0").resume(folder)
    model = SimpleNamespace(provenance={"tasks": ["PointReach-v0"]})
    caplog.clear()
    warn_of_another_task(model, POINT, "Move the point.")  # type: ignore[arg-type]
    assert not caplog.text
    warn_of_another_task(model, "own_worlds:PointCameras-v0", "Move the point.")  # type: ignore[arg-type]
    assert "audit it on episodes" in caplog.text


def test_play_films_an_id_of_gymnasium(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["play", "--task", POINT, "--episodes", "2", "--out", "film.gif"]
    assert main([*words, "--policy", "my_policy:towards"]) == 0
    assert "success" in capsys.readouterr().out and Path("film.gif").exists()
    gym.make(POINT).close()  # registered by now
    assert main(["play", "--task", "PointReach-v0", "--policy", "random", "--out", "film.gif"]) == 0
    capsys.readouterr()
    assert main(words) == 2
    assert "no scripted expert: set runner.policy=random (play: --policy random)" in capsys.readouterr().err
    assert main(["play", "--task", "Undrawn-v0", "--policy", "random"]) == 2
    assert capsys.readouterr().err.startswith("referee: Undrawn-v0: nothing draws it (pygame is not installed)")


def test_advice_on_endings_can_be_followed_to_the_end() -> None:
    """gym_rlpd_mlp lets success end episodes, so a reward model beside it needs a key, not one left out."""
    lines = [f"env.train.id={POINT}", "reward.use_reward_model=true", "algorithm.demos.path=demos"]
    with pytest.raises(ConfigError, match=r"set env\.train\.terminate_on_success=false, or say"):
        check(load("gym_rlpd_mlp", lines).config)
    lines.append("env.train.terminate_on_success=false")
    with pytest.raises(ConfigError, match="set it to 1, or"):
        check(load("gym_rlpd_mlp", lines).config)
    check(load("gym_rlpd_mlp", [*lines, "env.train.success_hold_steps=1"]).config)


def test_what_is_said_at_the_end_is_not_broken_into_lines_of_80() -> None:
    run = training("runner.film=false", "algorithm.bc_warmup.episodes=0")
    run.evaluate()
    text = io.StringIO()
    write_summary(run, Console(file=text, width=30))
    lines = text.getvalue().splitlines()
    assert len(lines) == 4 and lines[0].endswith("after 0 steps") and lines[0].startswith(POINT)


TINY = [
    f"env.train.id={POINT}", "env.train.num_envs=4", "env.train.num_processes=1", "env.train.image_size=32",
    "actor.model.hidden_dims=[16]", "actor.num_threads=1", "runner.eval_episodes=4", "runner.film=false",
    "runner.eval_interval=1",
]  # fmt: skip
TINY_SAC = [
    *TINY, "actor.global_batch_size=16", "algorithm.rollout_steps=8", "algorithm.utd=0.25", "algorithm.critics=2",
    "algorithm.replay.capacity=400", "runner.save_interval=1",
]  # fmt: skip


def numbers(folder: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_sac_is_resumed_measured_and_filmed(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "gym_sac_mlp", *TINY_SAC, "algorithm.random_steps=32"]
    assert main([*words, "runner.max_steps=64", "runner.logger.log_path=sac"]) == 0
    assert "next: referee eval sac" in capsys.readouterr().out
    again = [*words, "runner.max_steps=128", "runner.logger.log_path=again", "runner.resume_dir=sac"]
    assert main(again) == 0
    assert "resuming at step 64" in capsys.readouterr().out
    assert numbers("again")[-1]["step"] == 128 and "train/critic_loss" in numbers("again")[-1]
    assert main(["eval", "again", "--episodes", "6"]) == 0
    assert "of 6" in capsys.readouterr().out
    assert main(["play", "again", "--episodes", "1", "--out", "film.gif"]) == 0
    assert Path("film.gif").stat().st_size > 1000


@pytest.mark.slow
def test_rlpd_learns_from_recorded_demonstrations(capsys: pytest.CaptureFixture[str]) -> None:
    record("shown", episodes=6, noise=0.2, seed=0)
    more = ["algorithm.demos.path=shown", "algorithm.demos.only_success=false", "algorithm.settle_steps=0"]
    words = ["run", "gym_rlpd_mlp", *TINY_SAC, *more, "runner.max_steps=96", "runner.logger.log_path=rlpd"]
    assert main(words) == 0
    last = numbers("rlpd")[-1]
    assert last["step"] == 96 and "eval/success_at_end" in last
    assert main(["eval", "rlpd/checkpoints/step_96", "--episodes", "4"]) == 0


@pytest.mark.slow
def test_a_reward_model_is_watched_and_refined_while_a_policy_learns(caplog: pytest.LogCaptureFixture) -> None:
    record("episodes", episodes=12, noise=0.3, seed=0)
    record("episodes", episodes=12, noise=4.0, seed=1)
    model = ["actor.model.arch=resnet10", "actor.model.width=8", "actor.model.hidden_dim=8", "runner.max_epochs=2"]
    assert main(["train", "episodes", "--out", "reward", *model]) == 0
    caplog.clear()
    words = [
        "run", "gym_ppo_mlp_resnet_reward", *TINY, "actor.global_batch_size=64", "algorithm.rollout_steps=32",
        "algorithm.critic_warmup=0", "reward.model.model_path=reward/checkpoints/best_model",
        "reward.reward_mode=per_step", "reward.hold_terminal=false", "reward.refine.enabled=true",
        "reward.refine.labeller=truth", "reward.refine.budget=48", "reward.refine.ask=24", "reward.refine.steps=4",
        "reward.refine.interval=1",
        "runner.max_steps=512", "runner.logger.log_path=policy",
    ]  # fmt: skip
    assert main(words) == 0
    rows = numbers("policy")
    assert max(row.get("refine/asked", 0) for row in rows) >= 24
    assert any("reward/alarm" in row for row in rows) and any("refine/version" in row for row in rows)
    assert "is to judge" not in caplog.text  # the same task, with and without its module
    assert main(["refine", "log", "policy"]) == 0
    assert json.loads(Path("policy/result.json").read_text())["refinement"]["labels"] == 48


@pytest.mark.slow
def test_from_recorded_episodes_to_a_policy_that_the_learned_reward_taught(capsys: pytest.CaptureFixture[str]) -> None:
    record("episodes", episodes=60, noise=0.5, seed=0)
    record("episodes", episodes=60, noise=4.0, seed=1)
    record("fresh", episodes=40, noise=2.0, seed=2)
    assert main(["train", "episodes", "--out", "reward"]) == 0
    assert main(["audit", "reward/checkpoints/best_model", "fresh"]) == 0
    assert main(["run", "gym_ppo_mlp_resnet_reward", f"env.train.id={POINT}", "env.train.image_size=32",
                 "reward.model.model_path=reward/checkpoints/best_model", "reward.reward_mode=per_step",
                 "env.train.num_processes=1", "runner.max_steps=40000", "runner.eval_episodes=64", "runner.film=false",
                 "runner.logger.log_path=policy"]) == 0  # fmt: skip
    lines = [json.loads(line) for line in Path("policy/metrics.jsonl").read_text().splitlines()]
    true = [line["eval/success_at_end"] for line in lines if "eval/success_at_end" in line]
    assert true[-1] > 0.8 > true[0] + 0.3
