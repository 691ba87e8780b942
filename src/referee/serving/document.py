"""What the server says about itself: an OpenAPI document, and a page made from it."""

from __future__ import annotations

import html
from typing import Any

from referee import __version__
from referee.models.artifact import Artifact
from referee.serving.bodies import MAX_FRAMES

SCORE, MODEL, HEALTH, OPENAPI = "/v1/score", "/v1/model", "/healthz", "/openapi.json"
STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem;color:#282c34;
background:#faf9f6}code,pre{font:14px ui-monospace,monospace}pre{background:#fff;border:1px solid #ddd;padding:.7rem;
overflow-x:auto}h2{margin-top:2rem}h2 code{font-size:1.1rem}td,th{text-align:left;padding:.15rem .8rem .15rem 0;
vertical-align:top}.open{color:#5a5e64;font-weight:normal;font-size:.9rem}"""


def openapi(artifact: Artifact, url: str) -> dict[str, Any]:
    """The OpenAPI 3.1 document of a server that scores with this artifact."""
    cameras, calibration = artifact.spec.cameras, artifact.calibration
    frame = "[n,H,W,3]" if len(cameras) == 1 else f"[n,{len(cameras)},H,W,3]"
    picture = {"type": "string", "contentEncoding": "base64", "description": "a PNG or JPEG"}
    images = {
        "type": "object",
        "properties": {camera: {"oneOf": [picture, {"type": "array", "items": picture}]} for camera in cameras},
        "required": list(cameras),
        "additionalProperties": False,
    }
    content: dict[str, Any] = {
        "application/json": {
            "schema": {"type": "object", "properties": {"images": images}, "required": ["images"]},
            "example": {"images": dict.fromkeys(cameras, "iVBORw0KGgo…")},
        },
        "application/x-npy": {
            "schema": {"type": "string", "format": "binary", "description": f"numpy.save of uint8{frame}"}
        },
    }
    if len(cameras) == 1:
        for kind in ("image/png", "image/jpeg"):
            content[kind] = {"schema": {"type": "string", "format": "binary", "description": "one frame"}}
    numbers, booleans = ({"type": "array", "items": {"type": kind}} for kind in ("number", "boolean"))
    verdict = {
        "type": "object",
        "properties": {
            "score": {**numbers, "description": "the logit"},
            "probability": {**numbers, "description": "calibrated, in 0..1"},
            "success": {**booleans, "description": f"probability ≥ {calibration.threshold:g}"},
            "gate": {
                **booleans,
                "description": f"with a session: {calibration.gate_k} of its last {calibration.gate_n} frames succeed",
            },
            "reward": {**numbers, "description": "with a session: 1 where the gate says success, else 0"},
        },
        "required": ["score", "probability", "success"],
    }
    refusals = {
        "400": "the body is broken", "401": "no token, or a wrong one", "411": "no Content-Length",
        "413": f"too large, or more than {MAX_FRAMES} frames", "415": "a type that is not read here",
        "422": "read, but it does not fit the model", "503": "too many connections, or stopping",
    }  # fmt: skip
    query = [
        _query("session", "string", "your name, for the gate over time: 1 to 64 of A-Z a-z 0-9 . _ -"),
        _query("start", "boolean", "an episode begins with the first frame of this request"),
        _query("stalled", "boolean", "an arm stalled, so these frames may be old: none of them is a success"),
    ]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Referee",
            "version": __version__,
            "summary": "Is this a success? Pictures in, scores out.",
            "description": f"The model looks at {', '.join(cameras)}, {artifact.spec.image_size} px. "
            'Every refusal is one line: {"error": "…"}.',
        },
        "servers": [{"url": url}],
        "security": [{"token": []}],
        "paths": {
            SCORE: {
                "post": {
                    "summary": "Score frames",
                    "description": f"Up to {MAX_FRAMES} frames at once; answers are in their order.",
                    "parameters": query,
                    "requestBody": {"required": True, "content": content},
                    "responses": {
                        "200": _answer("one entry per frame", verdict),
                        **{status: _answer(reason, _ERROR) for status, reason in refusals.items()},
                    },
                }
            },
            MODEL: {
                "get": {
                    "summary": "What the model is: its spec, calibration and back end",
                    "responses": {
                        "200": _answer("spec, calibration, backend", {"type": "object"}),
                        "401": _answer(refusals["401"], _ERROR),
                    },
                }
            },
            HEALTH: _open("Whether the server is there", "it is", {"type": "object"}),
            OPENAPI: _open("This document", "OpenAPI 3.1", {"type": "object"}),
        },
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def page(document: dict[str, Any]) -> str:
    """The document for people: one file, no script, nothing fetched from elsewhere."""
    info, url = document["info"], document["servers"][0]["url"]
    curl = f"curl -H 'Authorization: Bearer TOKEN' -H 'Content-Type: image/png' --data-binary @frame.png {url}{SCORE}"
    if "image/png" not in document["paths"][SCORE]["post"]["requestBody"]["content"]:
        curl = f"curl -H 'Authorization: Bearer TOKEN' -H 'Content-Type: application/json' -d @images.json {url}{SCORE}"
    parts = [
        f"<h1>{_text(info['title'])} <span class=open>{_text(info['version'])}</span></h1>",
        f"<p>{_text(info['summary'])} {_text(info['description'])}</p><pre>{_text(curl)}</pre>",
    ]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts.append(_section(path, method, operation))
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{_text(info['title'])}</title><style>{STYLE}</style>{''.join(parts)}</html>\n"
    )


def _section(path: str, method: str, operation: dict[str, Any]) -> str:
    free = " <span class=open>no token needed</span>" if operation.get("security") == [] else ""
    rows = [f"<h2><code>{method.upper()} {_text(path)}</code>{free}</h2><p>{_text(operation['summary'])}."]
    rows.append(f" {_text(operation.get('description', ''))}</p>")
    table: list[tuple[str, str]] = []
    for parameter in operation.get("parameters", []):
        table.append((f"?{parameter['name']}=", parameter["description"]))
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        schema = content["schema"]
        cameras = schema.get("properties", {}).get("images", {}).get("required", [])
        said = '{"images": {' + ", ".join(f'"{camera}": …' for camera in cameras) + "}}, base64 or a list of them"
        table.append((kind, schema.get("description", said)))
    for status, response in operation["responses"].items():
        table.append((status, response["description"]))
        schema = next(iter(response["content"].values()))["schema"]
        fields = schema.get("properties", {}).items() if status == "200" else ()
        table += [(f"· {name}", field.get("description", "")) for name, field in fields]
    body = "".join(f"<tr><th><code>{_text(left)}</code></th><td>{_text(right)}</td></tr>" for left, right in table)
    return "".join(rows) + f"<table>{body}</table>"


_ERROR = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}


def _answer(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _open(summary: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"get": {"summary": summary, "security": [], "responses": {"200": _answer(description, schema)}}}


def _query(name: str, kind: str, description: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": {"type": kind}, "description": description}


def _text(value: str) -> str:
    return html.escape(value)
