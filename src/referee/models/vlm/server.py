"""A vision-language model behind any OpenAI-compatible server."""

from __future__ import annotations

import base64
import http.client
import io
import json
import logging
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

from referee.config.history import ApiConfig
from referee.errors import RefereeError
from referee.models.vlm.answers import INVALID, Answers
from referee.models.vlm.parsers import RewardParser
from referee.models.vlm.prompts import InputBuilder, Prompt
from referee.models.window import Window

UNANSWERED = "(the server did not answer)"
"""The text of a window that nobody judged; it is invalid, whatever the parser would make of it."""
LATER = (408, 409, 425, 429)
"""Refusals that may pass; 5xx are, too."""
_log = logging.getLogger(__name__)


class NoAnswer(Exception):
    """A call failed in a way that another try may mend."""


class ServerModel:
    """A WindowModel whose answers come from a server. Calls are made side by side, each is tried again if it fails.

    Where one call has failed for good, those that wait behind it are not made: the next batch tries anew.
    """

    def __init__(self, api: ApiConfig, builder: InputBuilder, parser: RewardParser) -> None:
        self.api, self._builder, self._parser = api, builder, parser
        self._place = urlsplit(api.api_base or "")
        if self._place.scheme not in ("http", "https") or not self._place.hostname:
            raise RefereeError(f"reward.api.api_base={api.api_base} is no address: give it as http://127.0.0.1:8000/v1")
        if api.api_key_env is not None and not os.environ.get(api.api_key_env):
            raise RefereeError(f"reward.api.api_key_env names {api.api_key_env}, which is not set: export it")
        self._local = threading.local()
        self._pool = ThreadPoolExecutor(api.concurrency, thread_name_prefix="ask")
        self._batch = 0

    def judge(self, windows: Sequence[Window]) -> Answers:
        """One answer per window."""
        self._batch += 1
        pictures, down = Pictures(), threading.Event()
        reasons: list[str] = []

        def ask(window: Window) -> str:
            if down.is_set():
                return UNANSWERED
            body = self._body(self._builder(window), pictures)
            try:
                return self._ask(body, down)
            except NoAnswer as error:
                reasons.append(str(error))
                down.set()
                return UNANSWERED

        texts = list(self._pool.map(ask, windows))
        missing = texts.count(UNANSWERED)
        if missing:
            self._fall_back(missing, len(texts), reasons[0])
        return Answers.read(texts, self._read)

    def _read(self, text: str) -> tuple[str, float]:
        """As the parser says; a window without an answer is one whose answer cannot be read."""
        if text != UNANSWERED:
            return self._parser(text)
        label, reward = self._parser("")
        if label != INVALID:
            raise RefereeError("reward.model.reward_parser_name: this parser reads a label out of an empty text")
        return label, reward

    def _fall_back(self, missing: int, asked: int, reason: str) -> None:
        what = f"the server at reward.api.api_base={self.api.api_base} gave no answer ({reason})"
        if self.api.fallback == "stop":
            raise RefereeError(f"{what}: start it, or set reward.api.fallback=invalid_reward to go on without")
        _log.warning("%s: %d of %d windows are paid invalid_reward", what, missing, asked)

    # --- one call ---

    def _body(self, prompt: Prompt, pictures: Pictures) -> bytes:
        content = [
            {"type": "text", "text": part}
            if isinstance(part, str)
            else {"type": "image_url", "image_url": {"url": pictures.url(part)}}
            for part in prompt.stills
        ]
        messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
        if prompt.system:
            messages.insert(0, {"role": "system", "content": prompt.system})
        params = asdict(self.api.sampling_params)
        sampling = {name: value for name, value in params.items() if value is not None}
        return json.dumps({"model": self.api.model, "messages": messages, **sampling}).encode()

    def _ask(self, body: bytes, down: threading.Event) -> str:
        """The answer; tried again after ever longer pauses, until others have found that the server is down."""
        for attempt in range(self.api.retries + 1):
            try:
                return _content(self._post(body))
            except NoAnswer:
                self._hang_up()
                if attempt == self.api.retries or down.wait(self.api.backoff * 2**attempt):
                    raise
        raise AssertionError("unreachable")

    def _post(self, body: bytes) -> bytes:
        headers = {"Content-Type": "application/json"}
        if self.api.api_key_env is not None:
            headers["Authorization"] = f"Bearer {os.environ[self.api.api_key_env]}"
        path = self._place.path.rstrip("/") + "/chat/completions"
        try:
            connection = self._connection()
            connection.request("POST", path, body, headers)
            response = connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswer(f"{type(error).__name__}: {error}") from error
        if response.status == 200:
            return answer
        said = f"{response.status} {response.reason}: {answer[:200].decode(errors='replace')}"
        if response.status >= 500 or response.status in LATER:
            raise NoAnswer(said)
        raise RefereeError(f"reward.api.api_base={self.api.api_base} refuses the call, {said}")

    def _connection(self) -> http.client.HTTPConnection:
        """Of this thread; it stays open within a batch, since servers close what was idle for long."""
        if getattr(self._local, "batch", None) != self._batch:
            self._hang_up()
            kind = http.client.HTTPSConnection if self._place.scheme == "https" else http.client.HTTPConnection
            assert self._place.hostname is not None  # `__init__` saw to it
            self._local.connection = kind(self._place.hostname, self._place.port, timeout=self.api.timeout)
            self._local.batch = self._batch
        return self._local.connection

    def _hang_up(self) -> None:
        if getattr(self._local, "batch", None) is not None:
            self._local.connection.close()
            self._local.batch = None


class Pictures:
    """Frames as data URLs; one that several windows show is encoded once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[np.ndarray, str]] = {}

    def url(self, image: np.ndarray) -> str:
        """data:image/png;base64,… of uint8[H,W,3]"""
        place = (image.__array_interface__["data"][0], image.shape, image.strides)
        if place not in self._known:
            file = io.BytesIO()
            Image.fromarray(np.ascontiguousarray(image)).save(file, "PNG", compress_level=1)
            text = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
            self._known[place] = image, text  # the frame is held, so that no other one comes to lie in its place
        return self._known[place][1]


def _content(answer: bytes) -> str:
    """The text of a chat completion."""
    try:
        found = json.loads(answer)["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError) as error:
        raise NoAnswer(f"it answers {answer[:80]!r}, which is no chat completion") from error
    return found if isinstance(found, str) else ""
