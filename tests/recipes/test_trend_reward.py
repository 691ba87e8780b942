"""A model of trends pays for windows of the last frames: what it says, where it says it, and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.models.served import TOKEN, serving
from tests.models.tiny_vlm import small_vlm

from referee.config import load
from referee.envs.contract import StepResult
from referee.envs.panda.env import PandaVectorEnv
from referee.errors import ConfigError, RefereeError
from referee.learn.asynchronous import AsyncSource
from referee.learn.checks import check
from referee.learn.source import WorkerSource
from referee.learn.trainer import Trainer
from referee.models.vlm import Answers, make_reward_parser, qwen
from referee.models.window import Window
from referee.recipes.model_keys import as_scored
from referee.rewards import window_model as trends
from referee.rewards.assign import pay_windows
from referee.rewards.window_model import make_window_model
from referee.rewards.windows import WindowReward
from referee.runs.ending import write_summary

WORDS = ("positive", "negative", "unclear", "no idea")
PAYS = {"positive": 1.0, "negative": -0.5, "unclear": 0.25, "no idea": -0.125}
SMALL = [
    "env.train.num_envs=4", "env.eval.num_envs=2", "env.train.max_episode_steps=7", "env.eval.max_episode_steps=7",
    "actor.model.hidden_dims=[8]", "actor.num_threads=1", "runner.eval_episodes=2", "env.train.num_threads=1",
    "env.eval.num_threads=1", "reward.model.model_path=/nowhere", "runner.film=false",
    "reward.model.reward_parser_params.negative_reward=-0.5", "reward.model.reward_parser_params.unclear_reward=0.25",
    "reward.model.reward_parser_params.invalid_reward=-0.125",
]  # fmt: skip
PPO = [*SMALL, "algorithm.rollout_steps=12", "actor.global_batch_size=24", "algorithm.update_epochs=2",
       "algorithm.critic_warmup=0"]  # fmt: skip
WINDOW = "reward.model.history_buffers.history_window"


def word(frames: Sequence[np.ndarray]) -> str:
    """What the scripted model says: it adds up pixels of all of its frames, the later ones more often."""
    return WORDS[sum((place + 1) * int(frame.astype(np.int64).sum()) for place, frame in enumerate(frames)) % 4]


@dataclass
class Scripted:
    """Says something that is known beforehand, and remembers what it was asked."""

    config: Any
    asked: list[int] = field(default_factory=list)
    tasks: set[str] = field(default_factory=set)

    def judge(self, windows: Sequence[Window]) -> Answers:
        self.asked.append(len(windows))
        self.tasks |= {window.task for window in windows}
        parser = make_reward_parser(params=trends.values(self.config.model.reward_parser_params))
        views = [
            [np.concatenate([main[None], extra]) for main, extra in
             zip(window.frames["main_images"], window.frames["extra_view_images"], strict=True)]
            for window in windows
        ]  # fmt: skip
        return Answers.read([word(frames) for frames in views], parser)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trends, "make_window_model", Scripted)


def training(*more: str, base: Sequence[str] = PPO, preset: str = "panda_ppo_mlp_qwentrend_reward") -> Trainer:
    config = load(preset, [*base, *more]).config
    check(config)
    return Trainer(config)


class Film:
    """Watches a rollout as a reward worker would, and cuts its episodes by hand."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.before: list[list[np.ndarray]] | None = None

    def begin(self) -> None:
        if self.before is None:
            self.before = [[frame] for frame in self.pictures()]
            self.progress = [[np.nan] for _ in self.before]
        self.episodes = self.before
        self.seen: list[list[tuple[list[np.ndarray], bool]]] = []
        self.trends: dict[tuple[int, int], list[float]] = {}

    def pictures(self, ids: Any = None, *, final: bool = False) -> np.ndarray:
        views = self.env.render_cameras(ids, final=final)
        return np.concatenate([views["main_images"][:, None], views["extra_view_images"]], 1)

    def watch(self, step: int, result: StepResult) -> None:
        ended, now = result[2] | result[3], self.pictures()
        row = []
        for env, episode in enumerate(self.episodes):
            episode.append(self.pictures([env], final=True)[0] if ended[env] else now[env])
            about = result[4]["final_info"] if ended[env] else result[4]
            self.progress[env].append(float(about["progress"][env]))
            self.trends[step, env] = list(self.progress[env])
            row.append((list(episode), bool(ended[env])))
            if ended[env]:
                episode[:], self.progress[env][:] = [now[env]], [float(result[4]["progress"][env])]
        self.seen.append(row)

    def pay(self, size: int, interval: int) -> np.ndarray:
        """Windows of `size` frames, each paid to the step that ended it; nan where none ended."""
        paid = np.full((len(self.seen), len(self.episodes)), np.nan)
        for step, row in enumerate(self.seen):
            for env, (episode, _) in enumerate(row):
                steps = len(episode) - size
                if steps >= 0 and steps % interval == 0:
                    paid[step, env] = PAYS[word(episode[-size:])]
        return paid


@pytest.mark.usefixtures("scripted")
def test_ppo_is_paid_by_what_the_model_says() -> None:
    """Two rollouts of 12 steps over episodes of 7: windows of 3 frames, every second step, paid to the last one."""
    keys = [f"{WINDOW}.{name}={value}" for name, value in
            (("history_size", 3), ("min_history_size", 3), ("input_interval", 2))]  # fmt: skip
    run = training(
        *keys, "reward.history_reward_assign=end", "reward.model.interval_reward=0.0625", "reward.reward_weight=2"
    )
    other = training()
    film = Film(other.env)
    for iteration in range(2):
        other.policy.load_state_dict(run.policy.state_dict())
        other.source.collector.collect(other.source.env, other.source.rollout, film)
        numbers = run.iterate()
        assert np.array_equal(run.rollout.actions, other.rollout.actions)
        paid = film.pay(3, 2)
        expected = 2 * np.where(np.isnan(paid), 0.0625, paid)
        np.testing.assert_array_equal(run.rollout.rewards, expected.astype(np.float32))
        said = paid[~np.isnan(paid)]
        assert numbers["reward/windows"] == len(said) and numbers["reward/judged"] == len(said)
        assert numbers["reward/invalid"] == pytest.approx((said == -0.125).mean()) and numbers["reward/unanswered"] == 0
        assert numbers["reward/positive"] == pytest.approx((said == 1).mean())
        assert numbers["reward/score"] == pytest.approx(said.mean())
        change = np.array(
            [film.trends[s, e][-1] - film.trends[s, e][-3] for s, e in np.argwhere(~np.isnan(paid)).tolist()]
        )
        true = np.where(np.isnan(change), np.nan, np.select([change > 0.05, change < -0.05], [1.0, -0.5], 0.25))
        assert numbers["reward/agreement"] == pytest.approx((true == said)[~np.isnan(change)].mean())
        assert numbers["reward/truly_positive"] == pytest.approx((true == 1)[~np.isnan(change)].mean())
        assert "reward/true_success" in numbers and "reward/hacking_gap" not in numbers
        assert iteration == 0 or len(said) < paid.size / 2
    assert isinstance(run.reward, WindowReward)
    model = run.reward.manager._model
    assert isinstance(model, Scripted)
    assert len(model.asked) == 2, "all windows of a rollout are asked at once"
    assert model.tasks == {run.env.task_description}
    for each in (run, other):
        each.close()


@pytest.mark.usefixtures("scripted")
def test_each_judged_step_is_paid_once() -> None:
    """Windows of 3 frames at every step: the mean of those that judged a step, by hand."""
    keys = [f"{WINDOW}.{name}={value}" for name, value in
            (("history_size", 3), ("min_history_size", 3), ("input_interval", 1))]  # fmt: skip
    run, other = training(*keys, "reward.history_reward_assign=once"), training()
    film = Film(other.env)
    other.source.collector.collect(other.source.env, other.source.rollout, film)
    run.iterate()
    paid = film.pay(3, 1)
    for step, row in enumerate(film.seen):
        for env, (_, ended) in enumerate(row):
            own = [paid[step, env]] + ([] if ended or step == 11 else [paid[step + 1, env]])
            said = [value for value in own if not np.isnan(value)]
            assert run.rollout.rewards[step, env] == pytest.approx(np.mean(said) if said else 0.0)
    for each in (run, other):
        each.close()


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize("mode", ["per_step", "terminal"])
def test_vlm_judges_single_states(mode: str) -> None:
    lines = ("reward.model.model_type=vlm", f"reward.reward_mode={mode}")
    run, other = training(*lines, preset="panda_ppo_mlp", base=[*PPO, "reward.use_reward_model=true"]), training()
    film = Film(other.env)
    other.source.collector.collect(other.source.env, other.source.rollout, film)
    numbers = run.iterate()
    expected = [
        [PAYS[word(episode[-1:])] if ended or mode == "per_step" else 0.0 for episode, ended in row]
        for row in film.seen
    ]
    np.testing.assert_array_equal(run.rollout.rewards, np.array(expected, np.float32))
    assert numbers["reward/windows"] == (48 if mode == "per_step" else 4)
    for each in (run, other):
        each.close()


@pytest.mark.usefixtures("scripted")
def test_the_truth_changes_nothing_but_a_bonus_that_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    truth = PandaVectorEnv._truth

    def flipped(self: PandaVectorEnv, world: Any) -> dict[str, Any]:
        return {**truth(self, world), "success": ~truth(self, world)["success"]}

    honest = training()
    honest.iterate()
    assert "not learned alone" not in caplog.text
    monkeypatch.setattr(PandaVectorEnv, "_truth", flipped)
    lied, bonus = training(), training("reward.gt_success_bonus=20")
    assert "reward.gt_success_bonus=20: the ground truth pays beside the model" in caplog.text
    for each in (lied, bonus):
        each.iterate()
    assert not honest.rollout.success.any() and lied.rollout.success.all()
    for name, value in honest.policy.state_dict().items():
        assert torch.equal(value, lied.policy.state_dict()[name])
    # Paid beside the word of the model: for steps that some window judged.
    more = bonus.rollout.rewards - lied.rollout.rewards
    assert set(more.round(3).ravel().tolist()) == {0.0, 20.0} and (more == 20).sum() == (more != 0).sum()
    for each in (honest, lied, bonus):
        each.close()


@pytest.mark.usefixtures("scripted")
def test_a_resumed_run_remembers_its_frames(tmp_path: Path) -> None:
    """12 steps end within an episode of 7: the first windows of the next rollout show frames of before."""
    config = load("panda_ppo_mlp_qwentrend_reward", [*PPO, f"{WINDOW}.input_interval=1"]).config
    run = Trainer(config, tmp_path)
    run.iterate()
    saved = run.save()
    numbers = run.iterate()
    again = Trainer(config, tmp_path / "again")
    again.resume(saved)
    assert again.iterate()["reward/windows"] == numbers["reward/windows"]
    np.testing.assert_array_equal(again.rollout.rewards, run.rollout.rewards)
    assert (run.rollout.rewards[0] != 0).all()  # paid by windows that began in the last rollout
    for each in (run, again):
        each.close()


@pytest.mark.usefixtures("scripted")
def test_the_best_policy_is_chosen_by_what_was_paid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    run = Trainer(load("panda_ppo_mlp_qwentrend_reward", PPO).config, tmp_path)
    run.evaluate()
    assert not (tmp_path / "checkpoints" / "best").exists()  # nothing was paid yet
    paid = []
    for _ in range(2):
        run.iterate()
        paid.append(run.rollout.rewards.copy())
    run.evaluate()
    assert run.evaluation.best.success == pytest.approx(np.mean(paid)) and (tmp_path / "checkpoints" / "best").is_dir()
    write_summary(run, Console())
    said = capsys.readouterr().out
    assert "windows judged" in said and "best pay of a step" in said
    run.close()


@pytest.mark.slow
def test_side_by_side_pays_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SAC whose environments are in another process: that one keeps frames, this one judges them."""
    monkeypatch.setattr(trends, "make_window_model", Scripted)
    base = [*SMALL, "reward.use_reward_model=true", "reward.model.model_type=history_vlm",
            "reward.reward_mode=history_buffer", f"{WINDOW}.history_size=3", f"{WINDOW}.min_history_size=3",
            "algorithm.random_steps=100000", "algorithm.replay.save=false", "actor.global_batch_size=16"]  # fmt: skip
    config = load("panda_sac_mlp", [*base, "runner.background.enabled=true"]).config
    run = Trainer(config, tmp_path)
    assert isinstance(run.source, AsyncSource)
    plain = training(base=base, preset="panda_sac_mlp")
    try:
        while run.steps < 200:
            numbers = run.iterate()
        for _ in range(10):
            plain.iterate()
        assert numbers["reward/windows"] > 0 and numbers["async/lag_seconds_max"] > 0
        mine, theirs = run.learner.replay, plain.learner.replay  # type: ignore[union-attr]
        slots = slice(0, 50)
        np.testing.assert_array_equal(mine.rewards[:, slots], theirs.rewards[:, slots])
        assert len(set(mine.rewards[:, slots].ravel().tolist())) > 3
    finally:
        run.close()
        plain.close()


@pytest.mark.usefixtures("scripted")
def test_crews_keep_frames_and_the_run_judges(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Two crews of two environments: what their windows are worth is found at their own steps."""
    lines = [*PPO, "cluster.component_placement.env=0-1", "cluster.component_placement.reward=0",
             f"{WINDOW}.input_interval=1", "reward.history_reward_assign=end"]  # fmt: skip
    config = load("panda_ppo_mlp_qwentrend_reward", lines).config
    check(config)
    run = Trainer(config, tmp_path)
    assert isinstance(run.source, WorkerSource) and "windows are judged in the process of the run" in caplog.text
    run.iterate()
    saved = run.save()
    numbers = run.iterate()
    assert (run.rollout.rewards[0] != 0).all(), "windows that began in the last rollout"
    assert numbers["reward/windows"] > 0
    again = Trainer(config, tmp_path / "again")
    again.resume(saved)
    again.iterate()
    np.testing.assert_array_equal(again.rollout.rewards, run.rollout.rewards)
    assert len(set(run.rollout.rewards.ravel().tolist())) > 3
    for each in (run, again):
        each.close()


def test_the_document_is_accepted(tmp_path: Path) -> None:
    """The section of document 004, word by word."""
    (tmp_path / "mine.yaml").write_text(
        """
defaults: [panda_ppo_mlp, _self_]
reward:
  use_reward_model: true
  group_name: "RewardGroup"
  reward_mode: history_buffer
  history_reward_assign: true
  reward_weight: 1.0
  env_reward_weight: 0.0
  model:
    model_path: "/path/to/Qwen3-VL-4B-Instruct"
    model_type: "history_vlm"
    lora_path: "/path/to/qwen3-vl-lora-checkpoint"
    gt_success_bonus: 20.0
    precision: "bf16"
    input_builder_name: qwentrend_input_builder
    input_builder_params:
      default_task_description: "Pick up the red cube and place it on the green spot on the table."
    reward_parser_name: qwentrend_reward_parser
    reward_parser_params:
      positive_reward: 1.0
      negative_reward: -0.2
      unclear_reward: 0.0
      invalid_reward: 0.0
    history_buffers:
      history_window:
        history_size: 5
        min_history_size: 5
        input_interval: 1
        history_keys:
          - main_images
          - extra_view_images
        input_on_done: false
    interval_reward: 0.0
    infer_micro_batch_size: 64
    max_new_tokens: 16
    do_sample: false
    temperature: 0.0
    use_chat_template: true
"""
    )
    loaded = load(str(tmp_path / "mine.yaml"))
    reward = loaded.config.reward
    check(loaded.config)
    assert reward.history_reward_assign == "once" and reward.gt_success_bonus == 20.0
    assert trends.buffers_of(reward.model)["history_window"].input_interval == 1  # type: ignore[arg-type]
    assert not [line for line in loaded.notices if "no effect" in line]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["reward.terminate_on=model"], "terminate_on=model needs a model that says success"),
        (["reward.refine.enabled=true"], "refine.enabled=true needs a model that says success"),
        (["reward.alarm.stop=true"], "alarm.stop=true needs a model that says success"),
        (["runner.target_success=0.9"], "target_success=0.9 needs a model that says success"),
        (["reward.reward_type=continuous"], "reward.reward_type=continuous changes nothing"),
        (["reward.reward_mode=per_step"], "history_vlm does not fit reward.reward_mode=per_step"),
        (["reward.model.model_type=vlm"], "vlm does not fit reward.reward_mode=history_buffer"),
        (["reward.model.model_path=null"], "model_path is not given"),
        (["env.train.max_episode_steps=3"], "min_history_size=5 is longer than an episode, which has 4 frames"),
        ([f"{WINDOW}.history_size=4"], rf"{WINDOW}: min_history_size=5 is more than history_size=4"),
        (["reward.model.input_builder_name=qwentrend_input_bilder"], "did you mean qwentrend_input_builder"),
        (["reward.model.reward_parser_params.positive_rewrd=1"], "did you mean positive_reward"),
        (["runner.task_type=text"], "policies here move robots"),
        (["reward.api.api_base=http://x/v1", "reward.model.lora_path=a"], "lora_path=a changes nothing"),
        (["reward.api.api_base=http://x/v1", "reward.model.model_path=null"], "reward.api.model is not given"),
        (
            ["reward.api.api_base=http://x/v1", "reward.model.use_chat_template=false"],
            "a server asks in the model's chat",
        ),
    ],
)
def test_what_does_not_fit_is_refused(lines: list[str], says: str) -> None:
    with pytest.raises(RefereeError, match=says):
        check(load("panda_ppo_mlp_qwentrend_reward", [*PPO, *lines]).config)


def test_images_need_their_own_modes() -> None:
    base = ["reward.use_reward_model=true", "reward.model.model_path=x"]
    with pytest.raises(ConfigError, match=r"needs reward\.model\.model_type=history_vlm"):
        check(load("panda_ppo_mlp", [*base, "reward.reward_mode=history_buffer"]).config)
    with pytest.raises(ConfigError, match="api_base is for"):
        check(load("panda_ppo_mlp", [*base, "reward.api.api_base=http://x/v1"]).config)


def test_a_model_is_asked_as_it_was_taught() -> None:
    name, words = "qwentrend_input_builder", {"default_task_description": "lift"}
    note = {"input_builder_name": name, "input_builder_params": {"as_video": True}}
    assert trends.input_as_taught(note, name, {}) == ((name, {"as_video": True}), None)
    assert trends.input_as_taught(note, name, words) == ((name, {"as_video": True, **words}), None)
    assert trends.input_as_taught({}, name, {"max_frames": 2}) == ((name, {"max_frames": 2}), None)
    taught = name, {"as_video": True}
    assert trends.input_as_taught(note, name, {"max_frames": 2}) == ((name, {"max_frames": 2}), taught)


def test_a_model_that_was_taught_in_plain_text_is_asked_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = small_vlm(tmp_path / "model")
    qwen.write_note(folder, {"use_chat_template": False})
    lines = [*PPO, f"reward.model.model_path={folder}", "reward.model.precision=fp32"]

    def chat(*more: str) -> bool:
        loaded = as_scored(load("panda_ppo_mlp_qwentrend_reward", [*lines, *more]))
        asked: bool = make_window_model(loaded.config.reward).model.encoder.chat  # type: ignore[attr-defined]
        recorded = loaded.config.reward.model.use_chat_template  # type: ignore[union-attr]
        assert recorded is asked or (recorded is None and not (folder / qwen.NOTE).exists())
        return asked

    assert chat() is False and "fine-tuned" not in caplog.text
    assert chat("reward.model.use_chat_template=true") is True
    assert "was fine-tuned with use_chat_template=false" in caplog.text
    qwen.write_note(
        folder, {"input_builder_name": "qwentrend_input_builder", "input_builder_params": {"max_frames": 3}}
    )
    recorded = as_scored(load("panda_ppo_mlp_qwentrend_reward", lines)).tree()["reward"]["model"]
    assert recorded["input_builder_params"] == {"max_frames": {"value": 3}}
    caplog.clear()
    make_window_model(load("panda_ppo_mlp_qwentrend_reward", [*lines, "reward.model.input_builder_params.max_frames=2"])
                      .config.reward)  # fmt: skip
    assert "fine-tuned with input_builder_name=qwentrend_input_builder, input_builder_params={'max_frames': 3}" in (
        caplog.text
    )
    (folder / qwen.NOTE).unlink()
    assert chat() is True


@pytest.mark.usefixtures("scripted")
def test_one_camera_has_no_extra_view(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(RefereeError, match=r"env\.train\.cameras is only front"):
        training("env.train.cameras=[front]")
    assert "no alarm watches this reward" in caplog.text


def test_a_server_pays_and_its_absence_never_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", TOKEN)
    lines = ["reward.api.model=tiny", "reward.api.api_key_env=THE_KEY", "reward.api.backoff=0.01",
             "reward.api.fallback=invalid_reward", "reward.history_reward_assign=once"]  # fmt: skip
    with serving(lambda prompt, body: "positive") as base:
        run = training(*lines, f"reward.api.api_base={base}")
        numbers = run.iterate()
        assert numbers["reward/positive"] == 1 and numbers["reward/unanswered"] == 0
        assert set(run.rollout.rewards.ravel().tolist()) == {1.0}
    numbers = run.iterate()  # the server is gone
    assert numbers["reward/unanswered"] == numbers["reward/invalid"] == 1 and numbers["reward/positive"] == 0
    assert set(run.rollout.rewards.ravel().tolist()) <= {0.0, -0.125}
    assert run.reward.manager.invalid == numbers["reward/windows"]  # type: ignore[union-attr]
    run.close()
    run = training(*lines, f"reward.api.api_base={base}", "reward.api.fallback=stop")
    with pytest.raises(RefereeError, match="gave no answer"):
        run.iterate()
    run.close()


def test_a_model_is_asked_both_ways_if_it_was_taught_so(tmp_path: Path) -> None:
    from tests.models.tiny_vlm import small_vlm

    from referee.models.vlm import qwen

    def asked(*more: str) -> bool:
        config = load("panda_ppo_mlp_qwentrend_reward", [f"reward.model.model_path={folder}", *more]).config
        check(config)
        return make_window_model(config.reward).how.both_ways  # type: ignore[attr-defined,no-any-return]

    folder, by_score = small_vlm(tmp_path / "tiny"), "reward.model.readout=score"
    assert not asked(by_score) and asked(by_score, "reward.model.both_ways=true")
    qwen.write_note(folder, {"options": {"random_reverse": True}})
    assert asked(by_score) and not asked() and not asked(by_score, "reward.model.both_ways=false")
    with pytest.raises(ConfigError, match=r"one state has no direction"):
        asked(by_score, "reward.model.both_ways=true", "reward.model.model_type=vlm", "reward.reward_mode=per_step",
              "reward.model.history_buffers=null")  # fmt: skip


@pytest.mark.slow
def test_a_run_with_the_tiny_model(tmp_path: Path) -> None:
    """The real model, never trained: what it says is what is paid, and what it babbles is invalid."""
    from referee.models.vlm.tiny import TinyOptions, tiny_init

    tiny_init(tmp_path / "tiny", TinyOptions(hidden=64, layers=2, vision_hidden=64, vision_depth=2))
    lines = [f"reward.model.model_path={tmp_path / 'tiny'}", "algorithm.rollout_steps=6", "actor.global_batch_size=24"]
    run = training(*lines, "reward.model.readout=score", "reward.model.score_pay=expected")
    for _ in range(2):
        numbers = run.iterate()
    assert numbers["reward/invalid"] == 0 and numbers["reward/windows"] > 0
    assert isinstance(run.reward, WindowReward)
    windows, manager = run.reward._windows(), run.reward.manager
    said = manager.judge([windows.window(i, run.env.task_description) for i in range(len(windows))])
    assert said.probabilities is not None
    worth = said.probabilities @ [1.0, -0.5, 0.25]
    expected, _ = pay_windows(windows, worth, (6, 4), assign="end", interval_reward=0.0)
    np.testing.assert_allclose(run.rollout.rewards, expected, atol=1e-5)
    run.close()
    babble = training(*lines, "reward.model.max_new_tokens=2")
    numbers = babble.iterate()
    assert numbers["reward/invalid"] > 0.5
    assert manager.invalid == 0 and babble.reward.manager.invalid > 0  # type: ignore[union-attr]
    babble.close()
