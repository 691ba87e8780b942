"""The learned reward is what trains the policy, and nothing else does unless a key says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from referee.config import load
from referee.envs.contract import split_views
from referee.envs.panda.env import PandaVectorEnv
from referee.errors import ConfigError, RefereeError
from referee.learn.batch import RolloutBatch
from referee.learn.trainer import Trainer
from referee.models import Artifact, Calibration, ModelSpec, Reference, build
from referee.models.artifact import embed
from referee.models.contract import probability_of
from referee.recipes.model_keys import as_scored
from referee.recipes.train_policy import check, train_policy
from referee.rewards.classifier import open_model
from referee.rewards.rules import first_streak
from referee.rl import checkpoint

SMALL = [
    "env.train.num_envs=4", "env.eval.num_envs=2", "env.train.max_episode_steps=5", "algorithm.rollout_steps=12",
    "actor.global_batch_size=24", "actor.model.hidden_dims=[8]", "algorithm.update_epochs=2", "actor.num_threads=1",
    "runner.eval_episodes=4", "env.train.num_threads=1", "env.eval.num_threads=1", "env.eval.max_episode_steps=5",
]  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model that nobody trained, with a threshold in the midst of what it says."""
    torch.manual_seed(0)
    net = build(ModelSpec(arch="resnet10", width=4, image_size=64, cameras=("front", "side"), hidden_dim=8)).eval()
    env = PandaVectorEnv(load("panda_ppo_mlp", SMALL).config.env.train)  # type: ignore[arg-type]
    env.reset(seed=3)
    said, pictures = [], []
    for step in range(8):
        env.step(np.full((4, 4), np.sin(step), np.float32))
        views = env.render_cameras()
        pictures.append(np.concatenate([views["main_images"][:, None], views["extra_view_images"]], 1))
        said.append(net.logits(pictures[-1]))
    # Its own scale is tiny; temperature stretches it so that thresholds tell frames apart.
    spread = float(np.std(said))
    threshold = float(1 / (1 + np.exp(-np.median(said) / spread)))
    folder = tmp_path_factory.mktemp("model") / "artifact"
    usual = np.concatenate(pictures)
    reference = Reference.of(embed(net, usual), usual).calibrated(embed(net, usual))
    Artifact(net, Calibration(temperature=spread, threshold=threshold, gate_k=2, gate_n=3), {}, reference).save(folder)
    return folder


def training(model: Path | None, *more: str) -> Trainer:
    lines = [] if model is None else ["reward.use_reward_model=true", f"reward.model.model_path={model}"]
    config = load("panda_ppo_mlp", [*SMALL, *lines, *more]).config
    check(config)
    run = Trainer(config)
    states = torch.from_numpy(run.source.env.observation["states"])
    assert run.policy.norm is not None
    run.policy.norm.update(states)
    return run


def weights(run: Trainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in run.policy.state_dict().items()}


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def test_the_buffer_holds_what_the_model_pays(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Terminal: the pictures of finished episodes, judged by the artifact by hand, at the steps where they ended."""
    seen: list[tuple[np.ndarray, dict[str, np.ndarray]]] = []
    draw = PandaVectorEnv.render_cameras

    def spy(self: PandaVectorEnv, env_ids: Any = None, **options: Any) -> dict[str, np.ndarray]:
        found = draw(self, env_ids, **options)
        seen.append((np.asarray(env_ids), found))
        assert options.get("final"), "terminal mode draws nothing but the ends of episodes"
        return found

    monkeypatch.setattr(PandaVectorEnv, "render_cameras", spy)
    run = training(model, "reward.success_reward=2.5", "reward.fail_reward=-0.5", "reward.reward_weight=2")
    numbers = run.iterate()
    rollout = run.rollout
    ended = rollout.terminated | rollout.truncated
    assert ended.sum() == 8 and (rollout.rewards[~ended] == 0).all()
    artifact, paid = Artifact.load(model), []
    for ids, pictures in seen:
        said = artifact.score(pictures, cameras=("front", "side"))
        assert said.success is not None and len(said.success) == len(ids)
        paid += [5.0 if success else -1.0 for success in said.success]
    assert sorted(rollout.rewards[ended].tolist()) == sorted(paid)
    assert numbers["time/compute_model_rewards"] > 0
    assert numbers["reward/judged"] == 8 and "reward/hacking_gap" in numbers


def test_per_step_pays_gated_states(model: Path) -> None:
    run = training(model, "reward.reward_mode=per_step", "reward.combine_mode=add")
    plain = training(None)
    for each in (run, plain):
        each.source.collector.collect(each.source.env, each.source.rollout, each.reward)
    assert run.reward is not None
    env_rewards = plain.rollout.rewards.copy()
    assert np.array_equal(run.rollout.rewards, env_rewards)  # nobody has paid yet
    scored = run.reward.relabel(run.source.rollout)
    assert scored.success is not None and 0 < scored.success.mean() < 1
    np.testing.assert_allclose(run.rollout.rewards, env_rewards + scored.success, atol=1e-6)
    # Two of three states: never in the first state of an episode.
    began = np.vstack([np.ones((1, 4), bool), (run.rollout.terminated | run.rollout.truncated)[:-1]])
    assert not scored.success[began].any()


@pytest.mark.parametrize("mode", ["terminal", "per_step"])
def test_the_truth_changes_nothing(model: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """Flipped success and other rewards of the environment leave the weights as they are, bit by bit."""
    lines = (f"reward.reward_mode={mode}",)
    honest = training(model, *lines)
    step = PandaVectorEnv.step

    def lie(self: PandaVectorEnv, actions: np.ndarray) -> Any:
        observation, rewards, terminated, truncated, info = step(self, actions)
        for about in (info, info.get("final_info", {})):
            if "success" in about:
                about["success"] = ~about["success"]
        return observation, 7.0 - 3.0 * rewards, terminated, truncated, info

    for _ in range(2):
        honest.iterate()
    monkeypatch.setattr(PandaVectorEnv, "step", lie)
    lied = training(model, *lines)
    leaning = training(model, *lines, "reward.env_reward_weight=0.1")
    bonus = training(model, *lines, "reward.gt_success_bonus=1")
    for _ in range(2):
        lied.iterate()
        leaning.iterate()
        bonus.iterate()
    assert equal(weights(honest), weights(lied))
    assert not equal(weights(honest), weights(leaning))
    assert not equal(weights(honest), weights(bonus))


def test_a_verdict_must_be_held_where_that_is_asked(model: Path) -> None:
    run = training(
        model, "reward.terminate_on=model", "reward.reward_threshold=0", "reward.gate_k=1", "reward.gate_n=1",
        "reward.reward_mode=per_step", "env.train.success_hold_steps=3",
    )  # fmt: skip
    run.source.collector.collect(run.source.env, run.source.rollout, run.reward)
    assert np.array_equal(run.rollout.terminated, np.tile([[False], [False], [True]], (4, 4)))
    assert run.reward is not None and (run.reward.score(run.rollout).rewards == 1).all()
    assert [first_streak(np.array(each, bool), 2) for each in ([1, 0, 1, 1, 1], [1, 0, 1, 0], [])] == [4, None, None]


@pytest.mark.parametrize("mode", ["reward.reward_mode=terminal", "reward.reward_mode=per_step"])
@pytest.mark.parametrize("ends", ["never", "model"])
def test_what_was_looked_at_is_told_frame_by_frame(model: Path, mode: str, ends: str) -> None:
    """Pictures, probabilities and truth of a sample belong together, also where a verdict ends episodes."""
    run = training(model, mode, f"reward.terminate_on={ends}", "env.train.task=Reach", "env.train.max_episode_steps=6")
    reward = run.reward
    assert reward is not None
    run.source.collector.collect(run.source.env, run.source.rollout, reward)
    scored = reward.score(run.rollout)
    features, probability = reward.looked
    truth = reward.judged_truth(scored, run.rollout)
    everything = ends == "model" or "per_step" in mode
    assert len(features) == len(probability) == len(truth) == (run.rollout.success.size if everything else len(truth))
    images, rows = reward.sample(9, np.random.default_rng(0))
    again = reward.manager.judge(split_views(images), cameras=reward.cameras)
    np.testing.assert_allclose(again.probability, probability[rows], rtol=1e-4, atol=1e-5)
    if everything:
        assert np.array_equal(truth[rows], run.rollout.success.reshape(-1)[rows])


def test_the_verdict_ends_episodes(model: Path) -> None:
    run = training(
        model, "reward.terminate_on=model", "reward.reward_threshold=0", "reward.gate_k=2", "reward.gate_n=2"
    )
    run.source.collector.collect(run.source.env, run.source.rollout, run.reward)
    rollout = run.rollout
    # Every state is a success at a threshold of 0, so the gate of 2 fires in every second step.
    assert np.array_equal(rollout.terminated, np.tile([[False], [True]], (6, 4)))
    assert not rollout.truncated.any()
    assert len(rollout.finals) == 24
    assert run.reward is not None
    scored = run.reward.score(rollout)
    assert np.array_equal(scored.rewards, rollout.terminated.astype(np.float32))
    assert run.source.env.statistics()["episode_length"] == 2
    # The next episode begins where an episode begins, not where the last one stopped.
    started = rollout.observations["states"][2]
    assert not np.allclose(started, np.stack([final.observation["states"] for final in rollout.finals[:4]]))


@pytest.mark.parametrize("mode", ["reward.reward_mode=per_step", "reward.terminate_on=model"])
def test_resuming_goes_on_bit_by_bit(model: Path, tmp_path: Path, mode: str) -> None:
    config = load(
        "panda_ppo_mlp", [*SMALL, "reward.use_reward_model=true", f"reward.model.model_path={model}", mode]
    ).config
    whole = Trainer(config, tmp_path / "whole")
    for _ in range(2):
        whole.iterate()
    saved = whole.save()
    whole.iterate()
    again = Trainer(config, tmp_path / "again")
    again.resume(saved)
    again.iterate()
    assert equal(weights(whole), weights(again))


def test_starting_from_another_policy(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    first = Trainer(load("panda_ppo_mlp", SMALL).config, tmp_path)
    first.iterate()
    saved = first.save()
    second = Trainer(load("panda_ppo_mlp", [*SMALL, f"actor.model.model_path={saved}"]).config, tmp_path / "b")
    second.warm_start(Console())
    assert equal(weights(first), weights(second)) and second.steps == 0
    assert checkpoint.find(saved) == saved
    assert "starting from" in capsys.readouterr().out


def test_a_taken_over_policy_waits_for_its_critic(tmp_path: Path) -> None:
    from rich.console import Console

    first = Trainer(load("panda_ppo_mlp", SMALL).config, tmp_path)
    saved = first.save()
    options = [*SMALL, f"actor.model.model_path={saved}", "actor.model.start_log_std=-2", "algorithm.critic_warmup=2"]
    run = Trainer(load("panda_ppo_mlp", options).config, tmp_path / "b")
    run.warm_start(Console())
    assert np.allclose(run.policy.log_std.detach().numpy(), -2)
    begun = weights(run)
    for iteration in range(3):
        run.iterate()
        moved = {name for name, value in weights(run).items() if not np.array_equal(value, begun[name])}
        assert any(name.startswith("critic.") for name in moved)
        assert any(name.startswith("actor.") for name in moved) == (iteration == 2)


@pytest.mark.parametrize("fresh", [True, False])
def test_a_policy_that_is_paid_nothing_stays_as_it_is_if_its_critic_begins_anew(tmp_path: Path, fresh: bool) -> None:
    """The old critic hopes for what the old reward paid, and is disappointed most where that was most."""
    from rich.console import Console

    first = Trainer(load("panda_ppo_mlp", SMALL).config, tmp_path)
    for _ in range(2):
        first.iterate()
    options = [*SMALL, f"actor.model.model_path={first.save()}", f"actor.model.fresh_critic={fresh}"]
    run = Trainer(load("panda_ppo_mlp", options).config, tmp_path / "b")
    run.warm_start(Console())
    relabel = run.relabel

    def unpaid(batch: RolloutBatch) -> None:
        relabel(batch)
        batch.rollout.rewards[:] = 0

    run.relabel = unpaid  # type: ignore[method-assign]
    begun = weights(run)
    for _ in range(2):
        run.iterate()
    moved = {name for name, value in weights(run).items() if not np.array_equal(value, begun[name])}
    assert any(name.startswith(("actor.", "critic.", "log_std")) for name in moved) == (not fresh)


MODES = ["reward.reward_mode=terminal", "reward.reward_mode=per_step", "reward.terminate_on=model"]


@pytest.mark.parametrize("mode", MODES)
def test_the_alarm_looks_at_what_is_judged(model: Path, mode: str) -> None:
    run = training(model, mode)
    assert run.reward is not None and run.alarm is not None
    while run.alarm.raised_at is None and run.iteration < 50:
        numbers = run.iterate()
    drawn, rows = run.reward.sample(3, np.random.default_rng(0))
    probability = probability_of(
        run.reward.manager.artifact.logits(drawn), run.reward.manager.artifact.calibration.temperature
    )
    np.testing.assert_allclose(run.reward.looked[1][rows], probability, atol=1e-5)
    assert drawn.shape == (3, 2, 64, 64, 3) and drawn.dtype == np.uint8 and np.ptp(drawn) > 50
    assert {"reward/alarm", "time/alarm"} <= numbers.keys()
    assert run.alarm.raised_at is not None and "ALARM" in run.status_line()  # it knows 32 frames of another movement
    assert not run.finished()


def test_an_alarm_ends_the_run_where_asked_for(model: Path) -> None:
    run = training(model, "reward.alarm.stop=true", "reward.alarm.frames=16")
    while not run.finished():
        run.iterate()
    assert run.steps < 2000 and run.alarm is not None and run.alarm.raised_at is not None


def test_a_run_that_an_alarm_ended_says_so(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["reward.use_reward_model=true", f"reward.model.model_path={model}", "reward.alarm.stop=true",
             "reward.alarm.frames=16", f"runner.logger.log_path={tmp_path / 'run'}", "runner.film=false",
             "runner.logger.logger_backends=[]"]  # fmt: skip
    train_policy(load("panda_ppo_mlp", [*SMALL, *lines]))
    said = " ".join(capsys.readouterr().out.split())
    assert "the alarm ended it at step" in said and "reward.alarm.stop=false" in said
    meta = checkpoint.load_meta(checkpoint.find(tmp_path / "run"))
    assert meta["control_hz"] == 20


@pytest.mark.parametrize(
    ("tasks", "warns"),
    [(["Open the drawer."], True), (["Open the drawer.", "PickCube"], False), ([], False), (None, False)],
)
def test_a_model_of_another_task_is_said_to_be_one(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, tasks: list[str] | None, warns: bool
) -> None:
    artifact = Artifact.load(model)
    artifact.provenance.update({} if tasks is None else {"tasks": tasks})
    artifact.save(tmp_path / "model")
    training(tmp_path / "model").close()
    assert ('learned "Open the drawer.", but is to judge "Pick' in caplog.text) == warns


def test_the_alarm_changes_nothing_in_training(model: Path) -> None:
    watched, alone = training(model), training(model, "reward.alarm.enabled=false")
    for _ in range(2):
        watched.iterate()
        assert "reward/alarm" not in alone.iterate()
    assert alone.alarm is None and equal(weights(watched), weights(alone))


def test_best_is_chosen_by_the_model(model: Path, tmp_path: Path) -> None:
    run = Trainer(
        load("panda_ppo_mlp", [*SMALL, "reward.use_reward_model=true", f"reward.model.model_path={model}"]).config,
        tmp_path,
    )
    run.iterate()
    numbers = run.evaluate()
    assert run.evaluation.best.success == numbers["eval/reward/model_success"]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["reward.use_reward_model=true"], "reward.model.model_path is not given"),
        (["reward.use_reward_model=true", "reward.checkpoint_path="], "reward.model.model_path is empty: name"),
        (["reward.use_reward_model=true", "reward.model.model_path=nowhere"], "nowhere is no artifact"),
        (["MODEL", "env.train.cameras=[front]"], "looks at camera 'side', but env.train.cameras are front"),
        (["MODEL", "env.train.image_size=128"], "takes 64x64 px, but env.train.image_size is 128"),
        (["MODEL", "env.train.terminate_on_success=true"], "say reward.terminate_on=truth"),
        (["MODEL", "env.train.success_hold_steps=2"], "where no success ends one"),
        (["MODEL", "reward.terminate_on=truth"], "needs env.train.terminate_on_success=true"),
        (["MODEL", "reward.gate_k=2"], "changes nothing"),
    ],
)
def test_bad_input(model: Path, lines: list[str], says: str) -> None:
    given = ["reward.use_reward_model=true", f"reward.model.model_path={model}"] if lines[0] == "MODEL" else lines[:1]
    config = load("panda_ppo_mlp", [*SMALL, *given, *lines[1:]]).config

    def start() -> None:
        check(config)
        Trainer(config)

    with pytest.raises((ConfigError, RefereeError), match=says):
        start()


def test_a_file_that_differs_is_named_once(model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The run takes what the file says, so that whoever opens it again, here or elsewhere, has nothing to say."""
    net = Artifact.load(model).model
    torch.save({"model_state_dict": net.state_dict(), "config": net.spec.to_json()}, tmp_path / "model.pt")
    lines = [f"reward.model.model_path={tmp_path / 'model.pt'}", "reward.model.arch=resnet50"]
    loaded = as_scored(load("panda_ppo_mlp_resnet_reward", lines))
    assert caplog.text.count("not resnet50: taken from the file") == 1
    open_model(loaded.config.reward.model)  # type: ignore[arg-type]
    assert caplog.text.count("not resnet50: taken from the file") == 1
