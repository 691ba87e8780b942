"""The keys of rewards that look back: history buffers, a model behind a server, and rules for text answers."""
# ruff: noqa: RUF009 -- key() makes a dataclasses.field; nothing mutable is shared

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from referee.config.declare import Checked, key


@dataclass(frozen=True, kw_only=True)
class HistoryBufferConfig:
    """When the last frames of an environment are judged, and how many of them."""

    history_size: int = key(5, "frames of a window, at most", low=1)
    min_history_size: int = key(5, "frames of an episode before its first window", low=1)
    input_interval: int = key(1, "steps from one window to the next", low=1)
    history_keys: tuple[str, ...] = key(
        ("main_images", "extra_view_images"), "the pictures that are kept",
        choices=("main_images", "extra_view_images"), low=1,
    )  # fmt: skip
    input_on_done: bool = key(False, "an episode's last state is due, too, whatever the interval")


Buffers = Mapping[str, HistoryBufferConfig] | None


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How a server draws its answers."""

    max_tokens: int = key(16, "longest answer", low=1)
    temperature: float = key(0.0, "0 = the likeliest answer", low=0)
    top_p: float = key(1.0, "share of the likeliest words that are drawn from", low=0, high=1)
    seed: int | None = key(None, "of what is drawn; null = the server's own")


@dataclass(frozen=True, kw_only=True)
class ApiConfig(Checked):
    """A model behind an OpenAI-compatible server, in place of one in this process."""

    api_base: str | None = key(None, "its address, as http://127.0.0.1:8000/v1; null = the model computes here")
    model: str | None = key(None, "its name there; null = reward.model.model_path", only_if="api_base")
    api_key_env: str | None = key(
        None, "environment variable that holds the key of the server; null = none", only_if="api_base"
    )
    sampling_params: SamplingConfig = key(SamplingConfig, "how answers are drawn", only_if="api_base")
    timeout: float = key(30.0, "seconds to wait for an answer", low=0.01, only_if="api_base")
    retries: int = key(2, "times that a failed call is made again", low=0, only_if="api_base")
    backoff: float = key(0.5, "seconds before the first of them, doubled each time", low=0, only_if="api_base")
    concurrency: int = key(8, "calls under way at once", low=1, only_if="api_base")
    fallback: str = key(
        "stop", "when the server does not answer: end the run, or pay invalid_reward",
        choices=("stop", "invalid_reward"), only_if="api_base",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TextRewardConfig(Checked):
    """Rules that pay for text answers."""

    rule: str = key(
        "exact", "when an answer is right", choices=("exact", "numeric", "regex", "math"),
    )  # fmt: skip
    success_reward: float = key(1.0, "paid for a right answer")
    fail_reward: float = key(0.0, "paid for any other")
    tolerance: float = key(1e-6, "largest relative error of a number", low=0, only_if="rule=numeric")
