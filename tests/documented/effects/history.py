"""A vision-language model that scores windows: the keys of guide 004's QwenTrend block, with a tiny real Qwen3-VL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.documented.cases import Case, Tools, effect
from tests.documented.effects.reward import Rewards, rollout
from tests.documented.smaller import PPO
from tests.models.test_qwen import _adapter
from tests.models.tiny_vlm import small_vlm, window

from referee.config.vlm import VLMModelConfig
from referee.errors import ConfigError
from referee.models.vlm.judge import HistoryVLMRewardModel
from referee.models.vlm.qwen import fingerprint
from referee.models.window import Window
from referee.rewards import RewardOptions, combine
from referee.rewards.assign import pay_windows
from referee.rewards.history import History, Windows
from referee.rewards.window_model import buffers_of, check_trend, is_trend, make_window_model

BLOCK = "004_qwentrend"
WINDOW = "reward.model.history_buffers.history_window"
ALIKE = [
    f"reward.model.reward_parser_params.{name}_reward=1" for name in ("positive", "negative", "unclear", "invalid")
]
"""Whatever the tiny model answers is worth the same, so that rewards are known."""


def tiny(tools: Tools) -> Path:
    found: Path = tools.once("tiny", lambda folder: small_vlm(folder / "qwen"))
    return found


def model(case: Case, tools: Tools, *overrides: str) -> HistoryVLMRewardModel:
    """The model of the block; only its folder is another, and there is no adapter."""
    lines = [f"reward.model.model_path={tiny(tools)}", "reward.model.lora_path=null", *overrides]
    made = make_window_model(case.load(*lines).config.reward)
    assert isinstance(made, HistoryVLMRewardModel)
    return made


def windows(case: Case, *overrides: str) -> Windows:
    """Those of one episode of eight steps, which ends with the last of them."""
    config = case.load(*overrides).config.reward.model
    assert isinstance(config, VLMModelConfig)
    history = History(buffers_of(config), 1, 8)
    frame = np.zeros((1, 8, 8, 3), np.uint8)
    shown = {"main_images": frame, "extra_view_images": frame[:, None]}
    history.start(shown)
    history.begin()
    for step in range(8):
        history.add(shown, np.array([step == 7]), {name: value[: int(step == 7)] for name, value in shown.items()})
    return history.windows()


def rewarded(case: Case, tools: Tools, *overrides: str) -> Rewards:
    """A rollout of one episode of eight steps, in which every window is worth 1."""

    def collected(folder: Path) -> Rewards:
        lines = [*PPO, *ALIKE, f"reward.model.model_path={tiny(tools)}", "reward.model.lora_path=null",
                 "reward.model.max_new_tokens=1", "reward.model.gt_success_bonus=0", *overrides]  # fmt: skip
        return rollout(case.load(*lines, preset="panda_ppo_mlp").config, tools, folder, "front,side")

    found: Rewards = tools.once(f"{case.block} {overrides}", collected)
    return found


@effect("reward.use_reward_model", "reward.model.model_type", "reward.reward_mode", blocks=BLOCK)
def windows_of_the_last_frames_are_scored(case: Case, tools: Tools) -> None:
    config = case.load().config
    assert is_trend(config.reward) and config.reward.reward_mode == "history_buffer"
    check_trend(config)
    np.testing.assert_array_equal(rewarded(case, tools).learned_from, 1.0)
    other = {True: "false", "history_vlm": "vlm", "history_buffer": "per_step"}[case.value]
    if case.value is True:
        assert not is_trend(case.load(f"{case.key}={other}").config.reward)
        return
    with pytest.raises(ConfigError, match=r"does not fit reward\.reward_mode"):
        check_trend(case.load(f"{case.key}={other}").config)


@effect("reward.history_reward_assign")
def each_step_of_a_window_is_rewarded_once(case: Case, tools: Tools) -> None:
    """Windows of five frames at steps 3 to 7: a step that several of them saw gets their mean; else the last step."""
    found, worth = windows(case), np.array([1.0, 2, 3, 4, 5])
    means = [1, 1.5, 2, 2.5, 3.5, 4, 4.5, 5]
    for value, expected in ((case.value, means), (False, [0, 0, 0, 1, 2, 3, 4, 5])):
        how = case.load(f"{case.key}={value}").config.reward.history_reward_assign
        rewards, _ = pay_windows(found, worth, (8, 1), assign=how, interval_reward=0.0)
        np.testing.assert_allclose(rewards[:, 0], expected)
    ended = rewarded(case, tools, f"{case.key}=false").learned_from
    np.testing.assert_array_equal(ended, np.repeat([0.0, 1.0], [3, 5])[:, None] * np.ones(4))


@effect("reward.reward_weight", blocks=BLOCK)
def weight_of_the_models_reward(case: Case, tools: Tools) -> None:
    np.testing.assert_array_equal(rewarded(case, tools).learned_from, case.value)
    np.testing.assert_array_equal(rewarded(case, tools, f"{case.key}=0.5").learned_from, 0.5)


@effect("reward.env_reward_weight", blocks=BLOCK)
def weight_of_the_environments_reward(case: Case, tools: Tools) -> None:
    assert case.value == 0.0
    np.testing.assert_array_equal(rewarded(case, tools).learned_from, 1.0)
    both = rewarded(case, tools, f"{case.key}=0.5")
    np.testing.assert_allclose(both.learned_from, 0.5 * both.own + 1.0, rtol=1e-5)


@effect("reward.model.gt_success_bonus")
def bonus_for_a_true_success(case: Case, tools: Tools) -> None:
    reward = case.config.reward
    options = RewardOptions(**{name: getattr(reward, name) for name in RewardOptions.__dataclass_fields__
                               if name != "terminate_on"})  # fmt: skip
    found = combine(np.zeros(2), np.array([0.5, 0.5]), options, true_success=np.array([True, False]))
    np.testing.assert_allclose(found, [0.5 + case.value, 0.5])
    assert case.value == 20.0


@effect("reward.model.interval_reward")
def reward_of_steps_that_no_window_saw(case: Case, tools: Tools) -> None:
    end = "reward.history_reward_assign=false"
    for value in (case.value, 0.25):
        found = rewarded(case, tools, end, f"{case.key}={value}").learned_from
        np.testing.assert_array_equal(found[:3], value)
        np.testing.assert_array_equal(found[3:], 1.0)


@effect(f"{WINDOW}.history_size")
def frames_of_a_window(case: Case, tools: Tools) -> None:
    assert set(windows(case).lengths) == {case.value}
    assert set(windows(case, f"{case.key}=3", f"{WINDOW}.min_history_size=3").lengths) == {3}


@effect(f"{WINDOW}.min_history_size")
def frames_before_the_first_window(case: Case, tools: Tools) -> None:
    """The first frame is there before any step."""
    assert windows(case).steps.min() == case.value - 2
    early = windows(case, f"{case.key}=2")
    assert early.steps.min() == 0 and early.lengths.tolist() == [2, 3, 4, 5, 5, 5, 5, 5]


@effect(f"{WINDOW}.input_interval")
def steps_between_windows(case: Case, tools: Tools) -> None:
    assert windows(case).steps.tolist() == list(range(3, 8, case.value)) == [3, 4, 5, 6, 7]
    assert windows(case, f"{case.key}=2").steps.tolist() == [3, 5, 7]


@effect(f"{WINDOW}.history_keys")
def pictures_of_a_window(case: Case, tools: Tools) -> None:
    assert set(windows(case).window(0, "").frames) == set(case.value)
    assert set(windows(case, f"{case.key}=[main_images]").window(0, "").frames) == {"main_images"}


@effect(f"{WINDOW}.input_on_done")
def the_last_state_is_due_or_not(case: Case, tools: Tools) -> None:
    rarely = f"{WINDOW}.input_interval=3"
    assert case.value is False and windows(case, rarely).steps.tolist() == [3, 6]
    assert windows(case, rarely, f"{case.key}=true").steps.tolist() == [3, 6, 7]


# --- the model ---


@effect("reward.model.model_path", blocks=BLOCK)
def the_model_in_that_folder_answers(case: Case, tools: Tools) -> None:
    assert case.config.reward.model.model_path == case.value
    other = small_vlm(tools.here / "other", seed=7)
    found = [fingerprint(model(case, tools, f"{case.key}={path}").model.net) for path in (tiny(tools), other)]
    assert found[0] != found[1]


@effect("reward.model.lora_path")
def an_adapter_changes_the_model(case: Case, tools: Tools) -> None:
    adapter = _adapter(tiny(tools), tools.here / "lora")
    plain, adapted = model(case, tools), model(case, tools, f"{case.key}={adapter}")
    assert fingerprint(plain.model.net) != fingerprint(adapted.model.net)
    assert vars(case.config.reward.model)["lora_path"] == case.value


@effect("reward.model.precision", blocks=BLOCK)
def weights_have_that_precision(case: Case, tools: Tools) -> None:
    for name, kind in ((case.value, torch.bfloat16), ("fp32", torch.float32)):
        assert {each.dtype for each in model(case, tools, f"{case.key}={name}").model.net.parameters()} == {kind}


@effect("reward.model.input_builder_name", "reward.model.input_builder_params.default_task_description")
def what_is_asked(case: Case, tools: Tools) -> None:
    """A window without a task gets the description of the block; one with a task keeps its own."""
    description = "Pick up the red cube and place it on the green spot on the table."
    builder = model(case, tools).builder
    for task, said in (("", description), ("Push it.", "Push it.")):
        text = "".join(part for part in builder(Window(window().frames, task)).parts if isinstance(part, str))
        assert f"Task: {said}\n" in text and "Answer positive, negative or unclear." in text
    assert case.value in ("qwentrend_input_builder", description)
    if case.key.endswith("name"):
        with pytest.raises(Exception, match="qwentrend_input_builder"):
            check_trend(case.load(f"{case.key}=nobody").config)


@effect("reward.model.reward_parser_name", "reward.model.reward_parser_params.*")
def what_an_answer_is_worth(case: Case, tools: Tools) -> None:
    parser = model(case, tools).parser
    answers = {"positive": "Positive.", "negative": "negative", "unclear": "It is unclear", "invalid": "no idea"}
    worth = {name: parser(text)[1] for name, text in answers.items()}
    assert worth == {"positive": 1.0, "negative": -0.2, "unclear": 0.0, "invalid": 0.0}
    if case.key.endswith("parser_name"):
        with pytest.raises(Exception, match=str(case.value)):
            check_trend(case.load(f"{case.key}=nobody").config)
        return
    name = case.key.rpartition(".")[2].removesuffix("_reward")
    assert worth[name] == case.value
    assert model(case, tools, f"{case.key}=0.75").parser(answers[name])[1] == 0.75


def asked(case: Case, tools: Tools, count: int, *overrides: str) -> list[tuple[int, Any]]:
    """How many windows the network was asked about at once, and how it was told to answer."""
    made = model(case, tools, *overrides)
    generate, calls = made.model.net.generate, []

    def watched(**inputs: Any) -> Any:
        calls.append((len(inputs["input_ids"]), inputs["generation_config"]))
        return generate(**inputs)

    made.model.net.generate = watched
    made.judge([window(number, frames=1) for number in range(count)])
    return calls


@effect("reward.model.infer_micro_batch_size")
def windows_at_once(case: Case, tools: Tools) -> None:
    short = "reward.model.max_new_tokens=1"
    assert [size for size, _ in asked(case, tools, case.value + 3, short)] == [case.value, 3]
    assert [size for size, _ in asked(case, tools, 5, short, f"{case.key}=2")] == [2, 2, 1]


@effect("reward.model.max_new_tokens", "reward.model.do_sample", "reward.model.temperature")
def how_an_answer_is_written(case: Case, tools: Tools) -> None:
    [(_, how)] = asked(case, tools, 1)
    assert (how.max_new_tokens, how.do_sample) == (16, False)
    assert case.value in (16, False, 0.0)
    drawn = ["reward.model.do_sample=true", "reward.model.temperature=0.7", "reward.model.max_new_tokens=2"]
    [(_, other)] = asked(case, tools, 1, *drawn)
    assert (other.max_new_tokens, other.do_sample, other.temperature) == (2, True, 0.7)


@effect("reward.model.use_chat_template")
def the_models_own_chat_format(case: Case, tools: Tools) -> None:
    texts = {}
    for chat in (case.value, not case.value):
        encoder = model(case, tools, f"{case.key}={chat}").model.encoder
        ids = encoder.encode([model(case, tools).builder(window())]).inputs["input_ids"][0]
        texts[chat] = encoder.tokenizer.decode(ids)
    assert "<|im_start|>user" in texts[True] and "<|im_start|>" not in texts[False]
