"""The server over real connections: a reason for whoever is refused, and nothing else."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving_doubles import PIXELS, TOKEN, Client, as_json, frames, make_artifact, npy, picture

from referee.errors import RefereeError
from referee.serving import ScoringServer, bodies

# --- who may ask ---


@pytest.mark.parametrize("path", ["/v1/score", "/v1/model"])
@pytest.mark.parametrize(
    "given", [None, "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer", "Bearer ünsinn"]
)
def test_without_the_token_nothing_is_said(server: ScoringServer, path: str, given: str | None) -> None:
    client = Client(server, token=None)
    if given is not None:
        client.headers["Authorization"] = given
    method, body = ("POST", npy(frames(1))) if path == "/v1/score" else ("GET", None)
    status, said = client.ask(method, path, body, "application/x-npy")
    assert status == 401 and "token" in said["error"]
    assert client.response.headers["WWW-Authenticate"].startswith("Bearer")
    client.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST:80", "localhost.", "[::1]:8642"])
def test_it_answers_to_its_own_names(client: Client, host: str) -> None:
    assert client.ask("GET", "/v1/model", Host=host)[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8642", "localhost.evil.example"])
def test_a_page_of_another_name_is_refused_even_with_the_token(client: Client, host: str) -> None:
    for path in ("/v1/model", "/", "/healthz", "/openapi.json"):
        status, said = client.ask("GET", path, Host=host)
        assert status == 403 and "Host" in said["error"]


def test_a_name_can_be_allowed() -> None:
    with ScoringServer(make_artifact(), token=TOKEN, hosts=["Robot.lan"]) as server:
        client = Client(server)
        assert client.ask("GET", "/healthz", Host="robot.lan:8642")[0] == 200
        client.close()


def test_a_token_is_made_at_random_and_a_weak_one_refused() -> None:
    artifact = make_artifact()
    one, other = ScoringServer(artifact), ScoringServer(artifact)
    assert one.token != other.token and len(one.token) >= 32
    for token in ("", "short", "a token with spaces in it", "x" * 600, "new\nline-new-line-line"):
        with pytest.raises(RefereeError, match="token must be"):
            ScoringServer(artifact, token=token)


# --- what is refused ---

GOOD = npy(frames(1))


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/v1/score/", 404),
        ("POST", "/v2/score", 404),
        ("GET", "/v1/score", 405),
        ("PUT", "/v1/score", 405),
        ("POST", "/v1/model", 405),
        ("DELETE", "/", 405),
        ("OPTIONS", "/v1/score", 405),
    ],
)
def test_paths_and_methods(client: Client, method: str, path: str, status: int) -> None:
    found, said = client.ask(method, path)
    assert found == status and "\n" not in said["error"]
    assert (status == 405) == ("Allow" in client.response.headers)


PNG = picture(frames(1)[0])


@pytest.mark.parametrize(
    ("body", "content_type", "status", "reason"),
    [
        (GOOD, "text/plain", 415, "send one of application/json"),
        (GOOD, "", 415, "send one of"),
        (b"", "application/x-npy", 400, "no .npy file"),
        (b"{", "application/json", 400, "no JSON"),
        (b"[" * 100_000, "application/json", 400, "no JSON"),
        (b"\xff\xfe\x00", "application/json", 400, "no JSON"),
        (b"[]", "application/json", 422, "the body must be"),
        (b'{"images": []}', "application/json", 422, "the body must be"),
        (b'{"images": {}, "more": 1}', "application/json", 422, "the body must be"),
        (b'{"images": {}}', "application/json", 422, "no frame"),
        (b'{"images": {"front": []}}', "application/json", 422, "no frame"),
        (b'{"images": {"rear": "x"}}', "application/json", 422, "'rear', but at front"),
        (b'{"images": {"front": 5}}', "application/json", 422, "images.front[0] is no text"),
        (b'{"images": {"front": "%%%"}}', "application/json", 400, "no base64"),
        (as_json({"front": b"hello"}), "application/json", 400, "images.front[0] is no PNG or JPEG"),
        (as_json({"front": [PNG, PNG[:60]]}), "application/json", 400, "images.front[1]"),
        (as_json({"front": [PNG, picture(frames(1, pixels=32)[0])]}), "application/json", 422, "differ in size"),
        (b"no picture", "image/png", 400, "no PNG or JPEG"),
        (PNG[:-30], "image/png", 400, "images.front[0]"),
        (picture(frames(1, pixels=32)[0]), "image/png", 422, "32x32 px, but the model takes 24x24"),
        (npy(frames(1, pixels=32)), "application/x-npy", 422, "32x32 px"),
        (npy(frames(1).astype(np.float32)), "application/x-npy", 422, "float32, but uint8"),
        (npy(np.asfortranarray(frames(2))), "application/x-npy", 422, "C order"),
        (npy(frames(1)[0]), "application/x-npy", 422, "shape"),
        (npy(frames(2, cameras=2)), "application/x-npy", 422, "2 of the 1 cameras"),
        (npy(frames(1)[..., :1]), "application/x-npy", 422, "shape"),
        (GOOD[:-1], "application/x-npy", 400, "bytes follow its header"),
        (GOOD + b"x", "application/x-npy", 400, "bytes follow its header"),
        (npy(np.zeros((0, PIXELS, PIXELS, 3), np.uint8)), "application/x-npy", 400, "bytes follow"),
        (npy(np.zeros((257, 2, 2, 3), np.uint8)), "application/x-npy", 413, "257 frames are too many"),
        (as_json({"front": [PNG] * 300}), "application/json", 413, "300 frames are too many"),
        (b"\x00" * ((1 << 20) + 1), "application/x-npy", 413, "more than 1,048,576"),
    ],
)  # fmt: skip
def test_bodies_that_do_not_fit_get_a_reason(
    client: Client, body: bytes, content_type: str, status: int, reason: str
) -> None:
    found, said = client.score(body, content_type)
    assert (found, reason in said["error"]) == (status, True), said
    assert set(said) == {"error"} and "\n" not in said["error"] and "Traceback" not in said["error"]
    assert client.score(GOOD, "application/x-npy")[0] == 200  # the next request is not harmed


def test_objects_in_an_npy_are_never_unpickled(client: Client, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "ran",)

    array = np.empty(1, object)
    array[0] = Bomb()
    status, said = client.score(npy(array), "application/x-npy")
    assert status == 422 and "object" in said["error"] and not (tmp_path / "ran").exists()


def test_a_small_file_cannot_become_a_large_picture(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    large = picture(np.zeros((6000, 6000, 3), np.uint8), compress_level=9)
    assert len(large) < 200_000
    decoded: list[int] = []
    decode = bodies.decode_picture
    monkeypatch.setattr(bodies, "decode_picture", lambda data: (decoded.append(len(data)), decode(data))[1])
    assert client.score(large, "image/png")[0] == 413
    shown = picture(np.zeros((3000, 3000, 3), np.uint8), compress_level=9)
    status, said = client.score(as_json({"front": [shown] * 4}), "application/json")
    assert status == 413 and "36,000,000 pixels" in said["error"] and decoded == []


@pytest.mark.parametrize(
    "query",
    ["?session=", "?session=a/b", f"?session={'a' * 65}", "?session=a&session=b", "?start=true", "?seson=a",
     "?session=a&start=yes"],
)  # fmt: skip
def test_a_session_that_cannot_be_is_refused(client: Client, query: str) -> None:
    assert client.score(GOOD, "application/x-npy", query)[0] == 422


def raw(server: ScoringServer, *sent: bytes) -> bytes:
    """Everything that comes back for these bytes, until the server closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        for piece in sent:
            connection.sendall(piece)
        connection.shutdown(socket.SHUT_WR)
        found = b""
        while piece := connection.recv(65536):
            found += piece
        return found


HEAD = f"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: image/png\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\n\r\n", 505),
        (b"BREW / HTTP/1.1\r\nHost: localhost\r\n\r\n", 501),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET http://[broken/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", 400),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", 431),
        (f"{HEAD}\r\n".encode(), 411),
        (f"{HEAD}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n".encode(), 411),
        (f"{HEAD}Content-Length: -5\r\n\r\n".encode(), 400),
        (f"{HEAD}Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello".encode(), 400),
        (f"{HEAD}Content-Length: {'9' * 5000}\r\n\r\n".encode(), 400),
        (f"{HEAD}Content-Length: 100\r\n\r\nhello".encode(), 408),
        (f"{HEAD}Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx".encode(), 415),
    ],
)
def test_what_is_hardly_http_gets_a_line_of_json_too(server: ScoringServer, sent: bytes, status: int) -> None:
    answer = raw(server, sent)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer[:80]
    assert b'\r\n\r\n{"error": "' in answer and b"Traceback" not in answer and b"<html" not in answer


def test_who_asks_before_sending_is_told_before_sending(server: ScoringServer) -> None:
    def first_line(head: str) -> bytes:
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            connection.sendall(f"{head}Expect: 100-continue\r\n\r\n".encode())
            return connection.recv(4096).partition(b"\r\n")[0]

    assert first_line(f"{HEAD}Content-Length: {len(PNG)}\r\n") == b"HTTP/1.1 100 Continue"
    assert first_line(f"{HEAD}Content-Length: {10 << 20}\r\n").startswith(b"HTTP/1.1 413")
    assert first_line(f"{HEAD.replace(TOKEN, 'x')}Content-Length: 5\r\n").startswith(b"HTTP/1.1 401")


def test_an_error_of_ours_says_nothing_of_the_inside(caplog: pytest.LogCaptureFixture) -> None:
    artifact = make_artifact()

    def broken(images: np.ndarray) -> Any:
        raise RuntimeError("secret detail")

    artifact.judge = broken  # type: ignore[method-assign, assignment]
    with ScoringServer(artifact, token=TOKEN) as server:
        client = Client(server)
        for _ in range(2):  # the scoring thread lives on
            status, said = client.score(GOOD, "application/x-npy")
            assert status == 500 and "secret" not in said["error"]
        client.close()
    assert "secret detail" in caplog.text


def test_more_connections_than_allowed_are_told_so() -> None:
    with ScoringServer(make_artifact(), token=TOKEN, max_connections=2) as server:
        clients = [Client(server) for _ in range(3)]
        assert [client.ask("GET", "/healthz")[0] for client in clients] == [200, 200, 503]
        clients[0].close()
        deadline = time.monotonic() + 10
        while clients[2].close() or clients[2].ask("GET", "/healthz")[0] != 200:
            assert time.monotonic() < deadline
        for client in clients:
            client.close()
