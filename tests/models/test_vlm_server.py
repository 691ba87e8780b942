"""A model behind a server says what it would say here; a server that fails is tried again, and never a success."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.models.served import TOKEN, serving

from referee.config.history import ApiConfig, SamplingConfig
from referee.errors import RefereeError
from referee.models.vlm import Prompt, make_input_builder, make_reward_parser
from referee.models.vlm.server import UNANSWERED, ServerModel
from referee.models.window import Window


def windows(count: int, *, size: int = 64, seed: int = 0) -> list[Window]:
    """Overlapping windows of three frames of two views."""
    frames = np.random.default_rng(seed).integers(0, 256, (count + 2, 2, size, size, 3), dtype=np.uint8)
    return [
        Window({"main_images": frames[i : i + 3, 0], "extra_view_images": frames[i : i + 3, 1:]}, "lift the cube")
        for i in range(count)
    ]


def model(base: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> ServerModel:
    monkeypatch.setenv("THE_KEY", TOKEN)
    given: dict[str, Any] = {"timeout": 5.0, "backoff": 0.01, "api_key_env": "THE_KEY", **options}
    parser = make_reward_parser(params={"invalid_reward": -0.125})
    return ServerModel(ApiConfig(api_base=base, model="tiny", **given), make_input_builder(), parser)


def test_what_is_asked_and_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures arrive pixel by pixel; answers come back in the order of the windows, whoever is first."""
    heard: list[dict[str, Any]] = []
    lot = windows(9, size=16)
    order = {window.frames["main_images"].tobytes(): place for place, window in enumerate(lot)}
    words = ["positive", "negative", "unclear", "blah", "Positive."]

    def reply(prompt: Prompt, body: dict[str, Any]) -> str:
        heard.append(body)
        place = order[np.stack(prompt.images[:3]).tobytes()]
        np.testing.assert_array_equal(np.stack(prompt.images[3:]), lot[place].frames["extra_view_images"][:, 0])
        assert "lift the cube" in prompt.text
        time.sleep(0.01 * (9 - place))
        return words[place % 5]

    with serving(reply) as base:
        asked = model(base, monkeypatch, concurrency=4, sampling_params=SamplingConfig(max_tokens=7, temperature=0.5))
        answers = asked.judge(lot)
        assert answers.label == ("positive", "negative", "unclear", "invalid", "positive") * 1 + (
            "positive", "negative", "unclear", "invalid")  # fmt: skip
        assert answers.reward.tolist() == pytest.approx([1, -0.2, 0, -0.125, 1, 1, -0.2, 0, -0.125])
        assert answers.probabilities is None
        assert asked.judge([]).label == ()
    assert {(each["model"], each["max_tokens"], each["temperature"]) for each in heard} == {("tiny", 7, 0.5)}


def test_a_call_that_fails_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: dict[bytes, int] = {}
    lock = threading.Lock()

    def reply(prompt: Prompt, body: dict[str, Any]) -> str | int:
        with lock:
            known = prompt.images[0].tobytes()
            tries[known] = tries.get(known, 0) + 1
            return "positive" if tries[known] > 2 else 503 if tries[known] == 1 else 429

    with serving(reply) as base:
        answers = model(base, monkeypatch, concurrency=2).judge(windows(3, size=16))
    assert answers.label == ("positive",) * 3 and sorted(tries.values()) == [3, 3, 3]


def test_a_server_that_is_down(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Stop by default; with the other fallback, invalid_reward, counted: also where a parser would love any text."""
    with serving(lambda prompt, body: "positive") as base:
        pass  # it is gone now
    with pytest.raises(RefereeError, match=r"gave no answer \(ConnectionRefusedError.*fallback=invalid_reward"):
        model(base, monkeypatch).judge(windows(2, size=16))
    patient = model(base, monkeypatch, fallback="invalid_reward", concurrency=2)
    answers = patient.judge(windows(40, size=16))
    assert answers.label == ("invalid",) * 40 and set(answers.text) == {UNANSWERED}
    assert answers.reward.tolist() == [-0.125] * 40
    assert "40 of 40 windows are paid invalid_reward" in caplog.text
    assert make_reward_parser()(UNANSWERED)[0] == "invalid"


@pytest.mark.alone
def test_a_server_that_hangs_is_not_waited_for_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a call has failed for good, the others behind it are given up at once."""
    free = threading.Event()

    def reply(prompt: Prompt, body: dict[str, Any]) -> str:
        free.wait(10)
        return "positive"

    with serving(reply) as base:
        slow = model(base, monkeypatch, fallback="invalid_reward", concurrency=2, timeout=0.2, retries=1)
        began = time.monotonic()
        assert slow.judge(windows(50, size=16)).label == ("invalid",) * 50
        assert time.monotonic() - began < 5
        free.set()
        assert slow.judge(windows(2, size=16)).label == ("positive",) * 2  # the next batch tries anew


@pytest.mark.parametrize(
    ("options", "said", "line"),
    [
        ({"api_key_env": None}, "positive", r"refuses the call, 401 Unauthorized: .*the token is wrong"),
        ({}, 400, r"refuses the call, 400 Bad Request"),
        ({"retries": 0}, 500, r"gave no answer \(500"),
    ],
)
def test_refusals_are_told(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], said: str | int, line: str
) -> None:
    with serving(lambda prompt, body: said) as base, pytest.raises(RefereeError, match=line):
        model(base, monkeypatch, **options).judge(windows(3, size=16))


def test_what_cannot_be_an_address_or_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RefereeError, match="is no address"):
        ServerModel(ApiConfig(api_base="127.0.0.1:8000", model="x"), make_input_builder(), make_reward_parser())
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    api = ApiConfig(api_base="http://127.0.0.1:8000/v1", model="x", api_key_env="NO_SUCH_KEY")
    with pytest.raises(RefereeError, match="names NO_SUCH_KEY, which is not set"):
        ServerModel(api, make_input_builder(), make_reward_parser())


@pytest.mark.slow
def test_the_tiny_model_says_the_same_behind_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from referee.models.vlm.judge import HistoryVLMRewardModel, ReadOut, generate
    from referee.models.vlm.qwen import QwenOptions, load
    from referee.models.vlm.tiny import TinyOptions, tiny_init

    tiny_init(tmp_path / "tiny", TinyOptions(hidden=64, layers=2, vision_hidden=64, vision_depth=2))
    tiny = load(QwenOptions(model_path=tmp_path / "tiny"))
    how, lock = ReadOut(max_new_tokens=4, infer_micro_batch_size=1), threading.Lock()

    def reply(prompt: Prompt, body: dict[str, Any]) -> str:
        with lock:
            return generate(tiny, tiny.encoder.encode([prompt]), ReadOut(max_new_tokens=body["max_tokens"]))[0]

    asked: Sequence[Window] = windows(4)
    here = HistoryVLMRewardModel(tiny, make_input_builder(), make_reward_parser(), how).judge(asked)
    with serving(reply) as base:
        there = model(base, monkeypatch, sampling_params=SamplingConfig(max_tokens=4)).judge(asked)
    assert there.text == here.text and there.label == here.label
