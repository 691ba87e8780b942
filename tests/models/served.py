"""A small OpenAI-compatible server for tests: real HTTP on loopback, with a token, over any function of a prompt."""

from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
from PIL import Image

from referee.models.vlm import Prompt

TOKEN = "a-token-of-tests"
Reply = Callable[[Prompt, dict[str, Any]], str | int]
"""What is said to a prompt, given the whole request; a number is the status of a refusal."""


@contextmanager
def serving(reply: Reply) -> Iterator[str]:
    """The address of a server that runs as long as this."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                self.answer(401, {"error": "the token is wrong"})
            elif self.path != "/v1/chat/completions":
                self.answer(404, {"error": self.path})
            else:
                said = reply(prompt_of(body), body)
                if isinstance(said, int):
                    self.answer(said, {"error": "not now"})
                else:
                    self.answer(200, {"choices": [{"message": {"role": "assistant", "content": said}}]})

        def answer(self, status: int, content: dict[str, Any]) -> None:
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def prompt_of(body: dict[str, Any]) -> Prompt:
    """The prompt in a request."""
    (message,) = body["messages"]
    parts: list[str | np.ndarray] = []
    for part in message["content"]:
        if part["type"] == "text":
            parts.append(part["text"])
        else:
            kind, _, data = part["image_url"]["url"].partition(",")
            assert kind == "data:image/png;base64"
            parts.append(np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))))
    return Prompt(tuple(parts))
