"""Rewards by models that judge trends: how one is made, what fits it, and how it pays in a run."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import Console

from referee.config import Config
from referee.config.history import HistoryBufferConfig
from referee.config.schema import RewardConfig
from referee.config.vlm import VLMModelConfig, values
from referee.envs import RefereeVectorEnv
from referee.errors import ConfigError, RefereeError
from referee.models.vlm import WindowModel, make_input_builder, make_reward_parser
from referee.models.vlm.server import ServerModel, ServerOptions
from referee.rewards import RewardOptions, Scored
from referee.rewards.history import HistoryBuffer, Windows
from referee.rewards.trend import TrendManager
from referee.rl.rollout import Rollout
from referee.workers.actor import ActorWorker
from referee.workers.delivery import Delivery, Said
from referee.workers.learner import LearnerWorker
from referee.workers.trend import TrendWorker

BY_PARSER = ("reward_type", "success_reward", "fail_reward", "reward_threshold", "below_threshold", "veto_unknown",
             "hold_terminal")  # fmt: skip
"""Keys of a model that says success; what a trend pays is said by its parser."""
IN_PROCESS = ("lora_path", "precision", "attn_implementation", "readout", "score_pay", "both_ways", "max_new_tokens",
              "do_sample", "temperature", "infer_micro_batch_size")  # fmt: skip
"""Keys of a model that computes here."""
TASK_WORDS = "default_task_description"
_log = logging.getLogger(__name__)


def is_trend(config: RewardConfig) -> bool:
    """Whether the model that pays judges windows."""
    return config.use_reward_model and isinstance(config.model, VLMModelConfig)


# --- what fits ---


def check_trend(config: Config) -> None:
    """What the schema cannot see of a reward by windows, before anything is loaded."""
    reward = config.reward
    if not reward.use_reward_model:
        return
    if not isinstance(reward.model, VLMModelConfig):
        if reward.reward_mode == "history_buffer":
            raise ConfigError("reward.reward_mode=history_buffer needs reward.model.model_type=history_vlm")
        if reward.api.api_base is not None:
            raise ConfigError("reward.api.api_base is for reward.model.model_type=vlm or history_vlm: leave it out")
        return
    kind, mode = reward.model.model_type, reward.reward_mode
    if (kind == "history_vlm") != (mode == "history_buffer"):
        fits = "history_buffer" if kind == "history_vlm" else "per_step or terminal"
        raise ConfigError(f"reward.model.model_type={kind} does not fit reward.reward_mode={mode}: use {fits}")
    if reward.model.model_path is None and reward.api.api_base is None:
        raise ConfigError(
            "reward.model.model_path is not given: name a folder with a Qwen3-VL (a reward is never random), "
            "or reward.api.api_base"
        )
    if kind == "vlm" and reward.model.both_ways:
        raise ConfigError("reward.model.both_ways=true is for windows (history_vlm): one state has no direction")
    # Only to refuse wrong names and parameters now, and not behind gigabytes of weights.
    make_input_builder(reward.model.input_builder_name, values(reward.model.input_builder_params))
    make_reward_parser(reward.model.reward_parser_name, values(reward.model.reward_parser_params))
    _check_success(config)
    _check_windows(config, reward.model)
    if reward.api.api_base is not None:
        _check_server(reward, reward.model)


def _check_success(config: Config) -> None:
    """A trend is no success: refuse what would need one."""
    reward, plain = config.reward, RewardConfig()
    for wanted, key in (
        (reward.terminate_on == "model", "reward.terminate_on=model"),
        (reward.refine.enabled, "reward.refine.enabled=true"),
        (reward.alarm.stop, "reward.alarm.stop=true"),
        (config.runner.target_success is not None, f"runner.target_success={config.runner.target_success}"),
    ):
        if wanted:
            raise ConfigError(
                f"{key} needs a model that says success, but {config.reward.model.model_type} says trends: leave it out"
            )
    for name in (*BY_PARSER, "gate_k", "gate_n"):
        value = getattr(reward, name)
        if value != getattr(plain, name) and (name, value) != ("reward_type", "score"):
            raise ConfigError(
                f"reward.{name}={value} changes nothing for a model of trends, which pays as "
                "reward.model.reward_parser_params say: leave it out"
            )


def _check_windows(config: Config, model: VLMModelConfig) -> None:
    assert config.env.train is not None
    steps = config.env.train.max_episode_steps
    for name, buffer in buffers_of(model).items() if model.model_type == "history_vlm" else ():
        if steps is not None and buffer.min_history_size > steps + 1:
            raise ConfigError(
                f"reward.model.history_buffers.{name}.min_history_size={buffer.min_history_size} is longer than an "
                f"episode, which has {steps + 1} frames (env.train.max_episode_steps): lower it"
            )


def _check_server(reward: RewardConfig, model: VLMModelConfig) -> None:
    plain = VLMModelConfig()
    for name in IN_PROCESS:
        if getattr(model, name) != getattr(plain, name):
            raise ConfigError(
                f"reward.model.{name}={getattr(model, name)} changes nothing for a model behind reward.api.api_base: "
                "set it up at the server, or by reward.api.sampling_params"
            )
    if model.use_chat_template is False:
        raise ConfigError(
            "reward.model.use_chat_template=false: a server asks in the model's chat format; leave it out"
        )
    if reward.api.model is None and model.model_path is None:
        raise ConfigError("reward.api.model is not given: name the model as the server does")


# --- how it is made ---


def buffers_of(model: VLMModelConfig) -> dict[str, HistoryBuffer]:
    """The history buffers by name; one of five frames where none is given."""
    wanted = model.history_buffers or {"history_window": HistoryBufferConfig()}
    return {name: _buffer(name, each) for name, each in wanted.items()}


def _buffer(name: str, wanted: HistoryBufferConfig) -> HistoryBuffer:
    try:
        return HistoryBuffer(**asdict(wanted))
    except RefereeError as error:
        raise ConfigError(f"reward.model.history_buffers.{name}: {error}") from error


def make_window_model(config: RewardConfig) -> WindowModel:
    """What judges: behind a server where one is named, else in this process."""
    model = config.model
    assert isinstance(model, VLMModelConfig)
    asked = values(model.input_builder_params)
    parser = make_reward_parser(model.reward_parser_name, values(model.reward_parser_params))
    api = config.api
    if api.api_base is not None:
        sampling = {name: value for name, value in asdict(api.sampling_params).items() if value is not None}
        options = ServerOptions(
            api_base=api.api_base, model=api.model or str(model.model_path), api_key_env=api.api_key_env,
            sampling=sampling, timeout=api.timeout, retries=api.retries, backoff=api.backoff,
            concurrency=api.concurrency, fallback=api.fallback,
        )  # fmt: skip
        return ServerModel(options, make_input_builder(model.input_builder_name, asked), parser)
    from referee.models.vlm.judge import HistoryVLMRewardModel, ReadOut
    from referee.models.vlm.qwen import QwenOptions, load, read_note, taught_both_ways

    assert model.model_path is not None  # `check_trend` saw to it
    note = read_note(model.lora_path or model.model_path)
    _warn_of_other_prompts(note, model)
    chat = chat_as_taught(note, model.use_chat_template)
    loaded = load(
        QwenOptions(
            model_path=model.model_path, lora_path=model.lora_path, precision=model.precision,
            attn_implementation=model.attn_implementation, use_chat_template=chat,
        )
    )  # fmt: skip
    taught = model.readout == "score" and taught_both_ways(loaded.note)
    how = ReadOut(
        readout=model.readout, score_pay=model.score_pay,
        both_ways=taught if model.both_ways is None else model.both_ways, max_new_tokens=model.max_new_tokens,
        infer_micro_batch_size=model.infer_micro_batch_size, do_sample=model.do_sample, temperature=model.temperature,
    )  # fmt: skip
    builder = make_input_builder(*input_as_taught(loaded.note, model.input_builder_name, asked)[0])
    return HistoryVLMRewardModel(loaded, builder, parser, how)


def input_as_taught(
    note: Mapping[str, Any], name: str, params: dict[str, Any]
) -> tuple[tuple[str, dict[str, Any]], tuple[str, dict[str, Any]] | None]:
    """The input builder: the one that the model was fine-tuned with, unless another is asked for; then that one, too.

    note: beside its weights. A description of the task for windows without one changes nothing that was learned.
    """
    taught = note.get("input_builder_name", name), dict(note.get("input_builder_params", {}))
    words = {TASK_WORDS: params[TASK_WORDS]} if TASK_WORDS in params else {}
    if (name, {**params, **words}) == (taught[0], {**taught[1], **words}) or not note:
        return (name, params), None
    if name == VLMModelConfig().input_builder_name and params == words:
        return (taught[0], {**taught[1], **words}), None
    return (name, params), taught


def chat_as_taught(note: Mapping[str, Any], wanted: bool | None) -> bool:
    """Whether the model is asked in its chat format: as it was fine-tuned, unless another way is asked for."""
    return bool(note.get("use_chat_template", True)) if wanted is None else wanted


def _warn_of_other_prompts(note: Mapping[str, Any], model: VLMModelConfig) -> None:
    """Say where a fine-tuned model is asked in another way than it was taught."""
    if not note:
        return
    _, taught = input_as_taught(note, model.input_builder_name, values(model.input_builder_params))
    if taught is not None:
        _log.warning(
            "this model was fine-tuned with input_builder_name=%s, input_builder_params=%s, but is asked otherwise "
            "here", *taught,
        )  # fmt: skip
    chat = chat_as_taught(note, None)
    if model.use_chat_template not in (None, chat):
        _log.warning(
            "this model was fine-tuned with use_chat_template=%s, but is asked otherwise here", str(chat).lower()
        )


def make_trend_worker(
    config: RewardConfig, env: RefereeVectorEnv, steps: int, *, model: WindowModel | None
) -> TrendWorker:
    """The worker for rollouts of so many steps. model: None where it only keeps frames for others."""
    wanted = config.model
    assert isinstance(wanted, VLMModelConfig)
    given = {name: getattr(config, name) for name in RewardOptions.__dataclass_fields__}
    looks_back = config.reward_mode == "history_buffer"
    manager = TrendManager(
        model, RewardOptions(**{**given, "reward_type": "score"}), task=env.task_description,
        assign=config.history_reward_assign if looks_back else "end",
        interval_reward=wanted.interval_reward if looks_back else 0.0,
    )  # fmt: skip
    return TrendWorker(manager, env, steps, buffers=buffers_of(wanted) if looks_back else None)


def make_trend_payment(config: Config, env: RefereeVectorEnv, *, crews: int) -> TrendPayment:
    """The reward of a run by a model of trends. crews: how many act, each in its share of the environments."""
    reward, steps = config.reward, config.algorithm.rollout_steps
    if reward.reward_mode == "history_buffer" and reward.history_reward_assign != "end":
        _log.warning(
            "reward.history_reward_assign=%s also pays steps before the one that ends a window, for what came after "
            "them: no policy of ours learned from that; end is better", reward.history_reward_assign,
        )  # fmt: skip
    assert isinstance(reward.model, VLMModelConfig)
    parser = make_reward_parser(reward.model.reward_parser_name, values(reward.model.reward_parser_params))
    if reward.reward_mode == "history_buffer" and parser.to_and_fro > 0:
        _log.warning(
            "reward.model.reward_parser_params: a rise and a fall together are rewarded with %+g, so a policy can earn "
            "by going to and fro; with negative_reward = -positive_reward it cannot", parser.to_and_fro,
        )  # fmt: skip
    if reward.alarm.enabled:
        _log.warning("no alarm watches this reward: it knows frames of image classifiers, not windows")
    worker = make_trend_worker(reward, env, steps, model=make_window_model(reward))
    workers = [worker] if crews == 1 else [worker.share(env.num_envs // crews) for _ in range(crews)]
    return TrendPayment(workers)


# --- how it pays ---


class TrendPayment:
    """Takes the place of `Payment` where a model of trends pays: nothing watches it, and nothing refines it."""

    alarm = None
    refiner = None

    def __init__(self, rewards: Sequence[TrendWorker]) -> None:
        """rewards: a worker for each of those who act; they share a model."""
        self.rewards = tuple(rewards)
        self._paid, self._steps = 0.0, 0

    @property
    def reward(self) -> TrendWorker:
        """The worker, where one acts; the first of them."""
        return self.rewards[0]

    @property
    def manager(self) -> TrendManager:
        """What judges."""
        return self.reward.manager

    def take(self, delivery: Delivery, said: Said | None) -> None:
        """What a crew kept, to be judged here."""
        assert isinstance(delivery.drawn, Windows) and said is None
        self.rewards[delivery.who].take(delivery.drawn)

    def pay(
        self, rollout: Rollout, actor: ActorWorker | LearnerWorker, step: int, scored: Scored | None = None, *,
        who: int = 0,
    ) -> dict[str, float]:  # fmt: skip
        """Let the model say what a rollout is worth; the truth is only written down beside it.

        step: of the training, at the rollout's end. who: of those who act, made it.
        """
        reward = self.rewards[who]
        with actor.threads.all_at_work():
            scored = reward.score(rollout)
        actor.update_rewards(rollout, scored, reward.options)
        self._paid += float(scored.rewards.sum())
        self._steps += scored.rewards.size
        spent = {"time/compute_model_rewards": scored.seconds_per_step(len(self.rewards))}
        return {**spent, **reward.numbers(), **truth_beside(scored, rollout.success)}

    def lately(self) -> float | None:
        """What the model paid for a step, on average since the last time; None if it paid none."""
        paid = self._paid / self._steps if self._steps else None
        self._paid, self._steps = 0.0, 0
        return paid

    def report(self, console: Console) -> dict[str, float]:
        """Say what was asked in the run, and how much of it was answered."""
        account = self.manager.account()
        windows, invalid = int(account["windows"]), int(account["invalid"])
        share = 100 * invalid / max(1, windows)
        console.print(
            f"  {windows:,} windows judged; {invalid:,} answers ({share:.1f} %) could not be read or did not come"
        )
        return account

    def save_state(self) -> dict[str, np.ndarray]:
        """Everything that later rewards depend on."""
        state = {
            f"reward{who}.{name}": value
            for who, reward in enumerate(self.rewards)
            for name, value in reward.save_state().items()
        }
        return {**state, "payment.lately": np.array([self._paid, self._steps])}

    def restore_state(self, state: Mapping[str, np.ndarray], step: int) -> None:
        """Go on from the state that was saved at a step."""
        if "payment.lately" in state:
            paid, steps = state["payment.lately"].tolist()
            self._paid, self._steps = paid, int(steps)
        for who, reward in enumerate(self.rewards):
            prefix = f"reward{who}."
            reward.restore_state({k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)})


def truth_beside(scored: Scored, success: np.ndarray) -> dict[str, float]:
    """What is true of the steps that were judged, and what they were paid if it is a success and if not."""
    numbers = {"reward/judged": float(scored.judged.sum())}
    if scored.judged.any():
        numbers["reward/true_success"] = float(success[scored.judged].mean())
    for name, where in (("paid_success", success), ("paid_failure", ~success)):
        if (scored.judged & where).any():
            numbers[f"reward/{name}"] = float(scored.rewards[scored.judged & where].mean())
    return numbers
