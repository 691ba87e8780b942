"""Tiny artifacts, and a client that speaks plain http.client."""

from __future__ import annotations

import base64
import http.client
import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image

from referee.models import Artifact, Calibration, ModelSpec, build
from referee.serving import ScoringServer

PIXELS = 24
TOKEN = "a-token-for-the-tests"


def make_artifact(cameras: tuple[str, ...] = ("front",), **calibration: Any) -> Artifact:
    torch.manual_seed(0)
    spec = ModelSpec(arch="resnet10", width=8, hidden_dim=8, image_size=PIXELS, cameras=cameras)
    model = build(spec).eval()
    found = Artifact(model, Calibration(temperature=0.5))
    threshold = float(np.median(found.judge(frames(64, len(cameras))).probability))
    return Artifact(model, Calibration(**{"temperature": 0.5, "threshold": threshold, **calibration}))


def frames(count: int, cameras: int = 1, seed: int = 0, pixels: int = PIXELS) -> np.ndarray:
    """uint8[n,H,W,3], or uint8[n,V,H,W,3] of several cameras; smooth, so that JPEG keeps them nearly as they are."""
    random = np.random.default_rng(seed)
    corners = random.integers(0, 256, (count, cameras, 2, 2, 3))
    across = np.linspace(0, 1, pixels)
    rows = corners[:, :, :1] * (1 - across)[:, None, None] + corners[:, :, 1:] * across[:, None, None]
    whole = rows[..., :1, :] * (1 - across)[:, None] + rows[..., 1:, :] * across[:, None]
    return (whole[:, 0] if cameras == 1 else whole).astype(np.uint8)


def picture(frame: np.ndarray, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, kind, **options)
    return buffer.getvalue()


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def as_json(images: Mapping[str, Any]) -> bytes:
    def coded(value: Any) -> Any:
        return [coded(each) for each in value] if isinstance(value, list) else base64.b64encode(value).decode()

    return json.dumps({"images": {camera: coded(value) for camera, value in images.items()}}).encode()


class Client:
    """One connection, kept open as long as the server keeps it."""

    def __init__(self, server: ScoringServer, token: str | None = TOKEN) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        self.headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def ask(
        self, method: str, path: str, body: bytes | None = None, content_type: str | None = None, **headers: str
    ) -> tuple[int, Any]:
        """Status and answer, as JSON where it is."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        kind = {} if content_type is None else {"Content-Type": content_type}
        self.connection.request(method, path, body, {**self.headers, **kind, **named})
        self.response = self.connection.getresponse()
        answer = self.response.read()
        is_json = self.response.headers["Content-Type"] == "application/json"
        return self.response.status, json.loads(answer) if is_json and answer else answer

    def score(self, body: bytes, content_type: str, query: str = "") -> tuple[int, Any]:
        return self.ask("POST", f"/v1/score{query}", body, content_type)

    def close(self) -> None:
        self.connection.close()
