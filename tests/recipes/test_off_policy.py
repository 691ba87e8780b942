"""SAC and RLPD in the runner: what is remembered, shown, paid, paid anew, and resumed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from referee.cli import main
from referee.config import load
from referee.demo.ablation_runs import QUIET, record_experts
from referee.envs.panda.env import PandaVectorEnv
from referee.episodes import EpisodeStore
from referee.errors import ConfigError
from referee.learn import memory
from referee.learn.checks import check
from referee.learn.trainer import Trainer
from referee.recipes.trained import judge
from referee.refine.retrain import Compared
from referee.rl import checkpoint
from referee.rl.replay import END, STEP
from referee.rl.sac import SAC

SMALL = [
    "env.train.num_envs=4", "env.eval.num_envs=4", "env.train.max_episode_steps=6", "env.eval.max_episode_steps=6",
    "env.train.num_threads=1", "env.eval.num_threads=1", "actor.num_threads=1", "actor.global_batch_size=16",
    "actor.model.hidden_dims=[16]", "algorithm.rollout_steps=4", "algorithm.utd=0.5", "algorithm.critics=3",
    "algorithm.replay.capacity=160", "runner.eval_episodes=4", "runner.film=false", "env.train.task=Reach",
    "env.train.terminate_on_success=false", "env.train.success_hold_steps=1", "algorithm.settle_steps=0",
]  # fmt: skip


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some episodes of an expert, with pictures."""
    return record_experts("Reach", 4, tmp_path_factory.mktemp("demos") / "store", seed=7).root


def training(folder: Path, *more: str, preset: str = "panda_rlpd_mlp") -> Trainer:
    config = load(preset, [*SMALL, *more]).config
    check(config)
    return Trainer(config, folder)


def learner(run: Trainer) -> SAC:
    assert isinstance(run.learner, SAC)
    return run.learner


def everything(run: Trainer) -> dict[str, torch.Tensor]:
    tensors, _ = run.learner.save_state()
    return {**tensors, **{name: value.clone() for name, value in run.policy.state_dict().items()}}


def go(run: Trainer, iterations: int) -> Trainer:
    for _ in range(iterations):
        run.iterate()
    return run


@pytest.mark.parametrize("more", [(), ("env.train.terminate_on_success=true", "env.train.success_hold_steps=2")])
def test_a_resumed_run_goes_on_bit_by_bit(tmp_path: Path, shown: Path, more: tuple[str, ...]) -> None:
    lines = (f"algorithm.demos.path={shown}", "algorithm.settle_steps=80", *more)
    whole = training(tmp_path / "whole", *lines)
    first = training(tmp_path / "run", *lines)
    for run in (whole, first):
        run.warm_start(QUIET)
    go(whole, 14)
    go(first, 4).save()
    go(first, 5).save()
    saved = first.save()
    go(first, 2)  # and then it is killed: what came after the checkpoint is lost, and lived again
    again = training(tmp_path / "run", *lines)
    assert again.resume(saved) == 9 * 16
    go(again, 5)
    ours, theirs = everything(again), everything(whole)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert learner(again).replay.steps == learner(whole).replay.steps > 100


def test_a_resumed_run_without_its_memory_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = training(tmp_path / "run", "algorithm.replay.save=false", preset="panda_sac_mlp")
    saved = go(run, 2).save()
    assert not (tmp_path / "run" / "replay").exists()
    again = training(tmp_path / "run", preset="panda_sac_mlp")
    again.resume(saved)
    assert "empty replay" in caplog.text and learner(again).replay.steps == 0


def test_random_steps_come_first(tmp_path: Path) -> None:
    run = training(tmp_path, "algorithm.random_steps=30", preset="panda_sac_mlp")
    before = everything(run)
    assert "train/critic_loss" not in run.iterate()
    assert np.abs(run.rollout.actions).max() > 0.9
    assert torch.equal(before["log_temperature"], everything(run)["log_temperature"])
    assert "train/critic_loss" in run.iterate()


def test_the_first_policy_settles_before_anything_is_learned(tmp_path: Path, shown: Path) -> None:
    run = training(tmp_path, f"algorithm.demos.path={shown}", "algorithm.settle_steps=40")
    run.warm_start(QUIET)
    first, norm = everything(run), run.policy.norm
    assert norm is not None
    for _ in range(2):
        assert "train/critic_loss" not in run.iterate()
        assert all(torch.equal(value, first[name]) for name, value in everything(run).items())
    seen = float(norm.count)
    go(run, 1)  # 48 steps: it has settled
    now, worker = everything(run), learner(run)
    assert not worker.settling and float(norm.count) == seen + 48
    assert worker.updates == 24 and worker.policy_updates == 0  # the critics caught up alone
    assert not torch.equal(now["actor.0.weight"], first["actor.0.weight"])  # cloned anew
    go(run, 1)
    assert worker.policy_updates > 0 and float(norm.count) == seen + 64


def test_demonstrations_are_paid_as_the_run_pays(tmp_path: Path, shown: Path) -> None:
    episodes = list(EpisodeStore(shown))
    run = training(tmp_path, f"algorithm.demos.path={shown}", "algorithm.demos.only_success=false")
    demos = learner(run).demos
    assert demos is not None and demos.steps == sum(map(len, episodes))
    _, slots = np.nonzero(demos.kind == STEP)
    true = np.concatenate([episode.success[1:] for episode in episodes])  # type: ignore[index]
    assert demos.rewards[0, slots].tolist() == true.astype(float).tolist()
    # An episode that ends at its first success is shown up to there, unless what would have followed counts.
    ends = (f"algorithm.demos.path={shown}", "env.train.terminate_on_success=true")
    demos = learner(training(tmp_path, *ends)).demos
    assert demos is not None and demos.steps == sum(len(each) for each in episodes if each.success_at_end)
    run = training(tmp_path, *ends, "algorithm.bootstrap_type=standard")
    demos = learner(run).demos
    assert demos is not None and (demos.rewards == demos.terminated).all()
    assert demos.rewards.sum() == sum(bool(episode.success_at_end) for episode in episodes)


@pytest.mark.parametrize("mode", ["terminal", "per_step"])
def test_what_a_reward_model_says_is_remembered_and_said_anew_by_a_better_one(
    tmp_path: Path, shown: Path, refinable: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Compared, "better", property(lambda self: True))  # so that swaps happen
    lines = [
        "reward.use_reward_model=true", f"reward.model.model_path={refinable}", f"reward.reward_mode={mode}",
        "reward.reward_type=continuous", "reward.reward_threshold=0", f"algorithm.demos.path={shown}",
        "reward.refine.enabled=true", "reward.refine.interval=3", "reward.refine.ask=8", "reward.refine.steps=1",
        "reward.refine.budget=60",
    ]  # fmt: skip
    run = training(tmp_path / "run", *lines)
    rescored = [run.iterate().get("refine/rescored", 0.0) for _ in range(9)]
    assert run.refinement is not None and run.reward.manager.version > 0 and max(rescored) > 0
    actor = learner(run)
    assert actor.demos is not None
    for memory_ in (actor.replay, actor.demos):
        rows, slots = np.nonzero(memory_.kind == STEP)
        after = (slots + 1) % memory_.length
        judged = (memory_.kind[rows, after] == END) | (mode == "per_step")
        assert (memory_.version[rows, slots] == run.reward.manager.version).all()
        assert (memory_.rewards[rows[~judged], slots[~judged]] == 0).all() and memory_.album is not None
        frames = memory_.album.take(memory_.picture[rows[judged], after[judged]])
        said = run.reward.manager.artifact.score({"front": frames[:, 0], "side": frames[:, 1]})
        np.testing.assert_allclose(memory_.rewards[rows[judged], slots[judged]], said.probability, atol=1e-5)
    # Resumed, it remembers the same, in the words of the same model.
    saved = run.save()
    again = training(tmp_path / "run", *lines)
    again.resume(saved)
    ours, theirs = learner(again).replay, actor.replay
    assert ours.steps == theirs.steps
    np.testing.assert_allclose(ours.rewards[ours.kind == STEP], theirs.rewards[theirs.kind == STEP], atol=1e-6)


def test_the_truth_changes_nothing_where_a_model_pays(
    tmp_path: Path, refinable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["reward.use_reward_model=true", f"reward.model.model_path={refinable}"]
    honest = everything(go(training(tmp_path / "a", *lines, preset="panda_sac_mlp"), 12))
    step = PandaVectorEnv.step

    def lie(self: PandaVectorEnv, actions: np.ndarray) -> object:
        observation, rewards, terminated, truncated, info = step(self, actions)
        info = {**info, "success": ~info["success"]}
        if "final_info" in info:
            info["final_info"] = {**info["final_info"], "success": ~info["final_info"]["success"]}
        return observation, -rewards, terminated, truncated, info

    monkeypatch.setattr(PandaVectorEnv, "step", lie)
    fooled = everything(go(training(tmp_path / "b", *lines, preset="panda_sac_mlp"), 12))
    assert all(torch.equal(honest[name], fooled[name]) for name in honest)


def test_what_a_person_does_goes_to_both_memories(tmp_path: Path, shown: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = PandaVectorEnv.step

    def intervened(self: PandaVectorEnv, actions: np.ndarray) -> object:
        observation, rewards, terminated, truncated, info = step(self, actions)
        mine = np.full_like(actions, 0.25)
        return observation, rewards, terminated, truncated, {
            **info, "intervene_action": mine, "_intervene_action": np.arange(self.num_envs) == 1,
        }  # fmt: skip

    run = training(tmp_path, f"algorithm.demos.path={shown}")
    before = learner(run).demos.steps  # type: ignore[union-attr]
    monkeypatch.setattr(PandaVectorEnv, "step", intervened)
    go(run, 3)
    actor = learner(run)
    assert actor.demos is not None and actor.demos.steps == before + 12
    assert (actor.replay.actions[1][actor.replay.kind[1] == STEP] == 0.25).all()
    assert (actor.replay.actions[0][actor.replay.kind[0] == STEP] != 0.25).any()
    added = actor.demos.actions[0][actor.demos.kind[0] == STEP][before:]
    assert (added == 0.25).all()
    again = training(tmp_path, f"algorithm.demos.path={shown}")
    again.resume(run.save())
    demos = learner(again).demos
    assert demos is not None and demos.steps == before + 12


def test_a_policy_of_sac_is_found_again_in_its_checkpoint(tmp_path: Path) -> None:
    run = go(training(tmp_path, preset="panda_sac_mlp"), 2)
    policy, _ = checkpoint.load_policy(run.save())
    states = {"states": np.ones((2, run.policy.spec.state_size), np.float32)}
    assert np.array_equal(policy.act(states), run.policy.act(states)) and np.abs(policy.act(states)).max() < 1


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["algorithm.demos.path={empty}"], "holds no episodes"),
        (["algorithm.demos.path={nowhere}"], "nowhere"),
        (["algorithm.demos.path={shown}", "env.train.task=PushCube"], "is of task Reach"),
        (["algorithm.demos.path={shown}", "env.train.control_mode=joint_delta", "env.eval.control_mode=joint_delta"],
         "control_mode"),
        (["algorithm.replay.capacity=900000000000"], "lower it to"),
        (["algorithm.critics=1"], "cannot be drawn from 1"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(tmp_path: Path, shown: Path, lines: list[str], said: str) -> None:
    EpisodeStore(tmp_path / "empty")
    places = {"empty": tmp_path / "empty", "nowhere": tmp_path / "nowhere", "shown": shown}
    with pytest.raises(ConfigError, match=said) as caught:
        training(tmp_path / "run", *(line.format(**places) for line in lines))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_too_many_pictures_are_refused_before_they_are_allocated(
    tmp_path: Path, shown: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = ["actor.model.model_type=cnn", "env.train.obs_mode=state+rgb", "env.eval.obs_mode=state+rgb"]
    monkeypatch.setattr(memory, "available_memory", lambda: 1e9)
    monkeypatch.setattr(memory.shutil, "disk_usage", lambda place: SimpleNamespace(free=1e9))
    with pytest.raises(ConfigError, match="GB of pictures"):
        training(tmp_path / "run", *images, "algorithm.replay.capacity=6000000", "algorithm.replay.memory_gb=0")
    run = training(tmp_path / "run", *images, "algorithm.replay.memory_gb=0.001", f"algorithm.demos.path={shown}")
    go(run, 2)
    album = learner(run).replay.album
    assert album is not None and album.mapped  # beyond the limit, in a file


@pytest.mark.parametrize("frozen", [True, False])
def test_on_images(tmp_path: Path, shown: Path, refinable: Path, frozen: bool) -> None:
    """With a net that learns, or through the frozen encoder of a reward model; an evaluation finds it again."""
    lines = ["env.train.obs_mode=state+rgb", "env.eval.obs_mode=state+rgb", f"algorithm.demos.path={shown}",
             "algorithm.bc_warmup.episodes=1", "algorithm.bc_warmup.epochs=1"]  # fmt: skip
    if frozen:
        lines += [f"env.train.encoder={refinable}", f"env.eval.encoder={refinable}"]
    else:
        lines.append("actor.model.model_type=cnn")
    run = training(tmp_path, *lines)
    run.warm_start(QUIET)
    numbers = go(run, 2).iterate()
    assert numbers["train/critic_loss"] >= 0
    replay = learner(run).replay
    assert (replay.album is None) == frozen
    saved = run.save()
    assert len(judge(saved, 2)) == 2


def test_pictures_of_a_step_cost_what_one_frame_costs(tmp_path: Path) -> None:
    """Each is kept once: the next state's picture is not kept again with the step before."""
    lines = ["env.train.obs_mode=state+rgb", "env.eval.obs_mode=state+rgb", "actor.model.model_type=cnn",
             "env.train.max_episode_steps=50", "algorithm.utd=0", "algorithm.replay.capacity=3000",
             "algorithm.rollout_steps=50", "env.train.num_envs=16", "actor.model.hidden_dims=[4]"]  # fmt: skip
    run = go(training(tmp_path, *lines), 3)
    replay = learner(run).replay
    assert replay.album is not None and replay.steps == 2400
    frames = int((replay.picture >= 0).sum())
    assert frames == 2400 + 16 * 3 + 16  # each state, each end, and where each environment is now
    numbers = sum(column.nbytes for column in replay.columns().values()) / replay.kind.size
    frame = replay.album.frame_bytes
    assert (frames * frame / replay.steps + numbers) / frame < 1.1


def test_where_nothing_was_evaluated_nothing_is_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [*SMALL, "runner.eval_episodes=0", "runner.max_steps=16", f"runner.logger.log_path={tmp_path / 'run'}"]
    assert main(["run", "panda_sac_mlp", *lines]) == 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["best"] is None
    assert "best" not in capsys.readouterr().out
