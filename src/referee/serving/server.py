"""The HTTP server: who may ask, what may be asked, and one line of JSON for every refusal."""

from __future__ import annotations

import contextlib
import http
import io
import ipaddress
import json
import logging
import signal
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

import numpy as np

from referee import __version__, cpu
from referee.errors import RefereeError
from referee.models.artifact import Artifact
from referee.rewards import RewardOptions, rules
from referee.serving import tokens
from referee.serving.batching import Batcher
from referee.serving.bodies import TYPES, Refused, read_frames
from referee.serving.connections import Connections, TimedReader
from referee.serving.document import HEALTH, MODEL, OPENAPI, SCORE, openapi, page
from referee.serving.sessions import Sessions, check_name

_log = logging.getLogger(__name__)
PORT = 8642
FLAGS = ("start", "stalled")
REWARD = RewardOptions(reward_mode="per_step")
"""What a frame of a session is worth: 1 where the gate fires, else 0."""
PATIENCE = 60.0
"""Seconds that a connection may be silent between requests, and that a whole body may take."""
HEADER_SECONDS = 10.0
"""Seconds that the line and the headers of a request may take together; who shows no token cannot be silent longer."""


def serve(
    artifact: Path | str,
    *,
    host: str = "127.0.0.1",
    port: int = PORT,
    token: str | None = None,
    token_file: Path | None = None,
    backend: str | None = None,
    int8: bool = False,
    hosts: Sequence[str] = (),
) -> None:
    """Score over HTTP until Ctrl-C or SIGTERM; see `ScoringServer`.

    token_file: where the token is; where there is no such file, a new one is written into it, for its owner only.
    """
    cpu.cap_if_needed()
    known = token if token is not None else tokens.token_in(token_file) if token_file is not None else None
    made = ScoringServer(artifact, host=host, port=port, token=known, backend=backend, int8=int8, hosts=hosts)
    with made as server, _signals() as caught:
        shown = server.token if known is None else "the one given" if token_file is None else f"in {token_file}"
        print(f"scoring with {artifact} at {server.url}: open it to read how; Ctrl-C ends it", flush=True)
        print(f"token: {shown}", flush=True)
        if not _is_loopback(host):
            print(f"note: {host} can be reached from other machines, and nothing is encrypted", flush=True)
        while not caught:  # not an Event: another thread may get the signal, and then nothing would wake this one
            time.sleep(0.2)
    print("stopped")


class ScoringServer:
    """Scores pictures over HTTP while it is open: `with ScoringServer(artifact) as server: server.url, server.token`.

    host: the address to listen on; only this machine can reach the default.
    port: 0 takes a free one; `port` says which.
    token: what callers send as `Authorization: Bearer …`; a random one unless given.
    backend, int8: see `Artifact.use`; None scores with the artifact as it is.
    hosts: names other than localhost by which callers may know this machine.
    max_body: bytes of a request.
    max_sessions: clients whose last frames are remembered for the gate over time.
    max_connections: open at once; callers without the token hold a quarter of them at most.
    patience: seconds between two requests of a connection, and for a whole body.
    header_seconds: for the line and the headers of a request together.
    """

    def __init__(
        self,
        artifact: Artifact | Path | str,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        backend: str | None = None,
        int8: bool = False,
        hosts: Sequence[str] = (),
        max_body: int = 64 << 20,
        max_sessions: int = 1024,
        max_connections: int = 64,
        patience: float = PATIENCE,
        header_seconds: float = HEADER_SECONDS,
    ) -> None:
        self.artifact = artifact if isinstance(artifact, Artifact) else Artifact.open(artifact)
        if self.artifact.doubt:
            _log.warning("the reward model %s: %s", self.artifact.folder or "given", self.artifact.doubt)
        self.token = tokens.new_token() if token is None else tokens.check_token(token)
        self.host, self.port, self.max_body, self.max_connections = host, port, max_body, max_connections
        self.patience, self.header_seconds = patience, header_seconds
        self.backend = self.artifact.use(backend, int8=int8).name if backend is not None else "torch"
        self.hosts = {name.lower() for name in ("localhost", host, *hosts)}
        if not _is_loopback(host):
            self.hosts.add(socket.gethostname().lower())
        calibration = self.artifact.calibration
        self.sessions = Sessions(calibration.gate_k, calibration.gate_n, max_sessions)

    def __enter__(self) -> Self:
        self._warm_up()
        try:
            self._http = _Listener(self)
        except (OSError, OverflowError) as error:
            raise RefereeError(f"cannot listen on {self.host}, port {self.port} ({error}): choose another") from error
        self.port = self._http.server_address[1]
        self.batcher = Batcher(self.artifact)
        self.document = openapi(self.artifact, self.url)
        self.page = page(self.document)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.1,), name="referee-http", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._http.shutdown()  # no new connections
        self._thread.join()
        self._http.connections.hang_up(within=10.0)  # requests under way are answered
        self.batcher.close()
        self._http.server_close()

    @property
    def url(self) -> str:
        """Where it can be reached from this machine."""
        name = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)
        return f"http://[{name}]:{self.port}" if ":" in name else f"http://{name}:{self.port}"

    def _warm_up(self) -> None:
        """The first pass takes longer; nobody should wait for it."""
        if self.artifact.reference is not None:
            self.artifact.judge(self.artifact.reference.frames[:1])


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Where Ctrl-C and SIGTERM arrive, instead of breaking off an answer."""
    caught: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: caught.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Listener(socketserver.ThreadingTCPServer):
    """A thread per connection, and no more connections than allowed."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, app: ScoringServer) -> None:
        self.app = app
        self.connections = Connections(app.max_connections)
        if ":" in app.host:
            self.address_family = socket.AF_INET6
        super().__init__((app.host, app.port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self.connections.add(request):
            super().process_request(request, client_address)
            return
        body = json.dumps({"error": "too many connections: close some, or try again"}).encode()
        head = f"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        request.settimeout(0.1)
        with contextlib.suppress(OSError):  # gone already
            request.sendall(f"{head}Retry-After: 1\r\nConnection: close\r\n\r\n".encode() + body)
        self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self.connections.discard(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("a connection broke off", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Listener
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.app = self.server.app
        self._unread, self._awaited, self._trusted = False, False, False
        self._incoming = TimedReader(self.connection)
        self.rfile = io.BufferedReader(self._incoming, 1 << 16)

    def handle_one_request(self) -> None:
        """One request, within its time: who shows no token is not waited for as long."""
        silence = self.app.patience if self._trusted else self.app.header_seconds
        self._incoming.allow(silence, after_first=self.app.header_seconds if self._trusted else None)
        super().handle_one_request()

    def _answer(self) -> None:
        """Every method comes here; `_route` knows which path takes which."""
        status, headers = 200, {"Content-Type": "application/json"}
        self._unread = self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers
        try:
            self._check_host()
            if self._has_token():
                self._trusted = True
                self.server.connections.trust(self.connection)
            answer = self._route()(headers)
        except Refused as refusal:
            status, answer = refusal.status, _error(refusal)
            headers |= refusal.headers
        except RefereeError as error:  # the model's
            status, answer = 422, _error(error)
        except (ConnectionError, TimeoutError):
            self.close_connection = True
            return
        except Exception:
            _log.exception("%s %s", self.command, self.path)
            status, answer = 500, b'{"error": "an error in the server: its log has it"}\n'
        self._send(status, headers, answer)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _answer

    # --- what may be asked ---

    def _route(self) -> Callable[[dict[str, str]], bytes]:
        routes: dict[str, tuple[str, bool, Callable[[dict[str, str]], bytes]]] = {
            SCORE: ("POST", True, self._score),
            MODEL: ("GET", True, self._model),
            HEALTH: ("GET", False, lambda headers: _json({"status": "ok", "version": __version__})),
            OPENAPI: ("GET", False, lambda headers: _json(self.app.document)),
            "/": ("GET", False, self._page),
        }
        try:
            path = urlsplit(self.path).path
        except ValueError as error:
            raise Refused(400, f"the path cannot be read: {error}") from error
        if path not in routes:
            raise Refused(404, f"there is nothing here: {', '.join(routes)} are")
        method, guarded, answer = routes[path]
        allowed = (method, "HEAD") if method == "GET" else (method,)
        if self.command not in allowed:
            raise Refused(405, f"{path} takes {' or '.join(allowed)}", Allow=", ".join(allowed))
        if guarded:
            self._check_token()
        return answer

    def _score(self, headers: dict[str, str]) -> bytes:
        content_type = self.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if content_type not in TYPES or self.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise Refused(415, f"send one of {', '.join(TYPES)}, not compressed further")
        session, start, stalled = self._session()
        frames = read_frames(self._body(), content_type, self.app.artifact.spec)
        verdict = self.app.batcher.score(frames)
        if not np.isfinite(verdict.score).all():
            raise Refused(500, "the model's answer is not finite: look at its weights")
        held = np.full(len(verdict.score), stalled)
        verdict = rules.withhold(verdict, held)
        answer = {name: None if value is None else value.tolist() for name, value in vars(verdict).items()}
        if session is not None:
            if verdict.success is None:
                raise Refused(422, "the model says no success, so there is no gate: leave out session")
            fires = self.app.sessions.gate(session, verdict.success, start=start, stalled=held)
            model = rules.model_rewards(replace(verdict, success=fires), REWARD, threshold=0.0)
            reward = rules.combine(np.zeros(len(fires)), model, REWARD)
            answer |= {"gate": fires.tolist(), "reward": reward.tolist()}
        return _json(answer)

    def _model(self, headers: dict[str, str]) -> bytes:
        artifact = self.app.artifact
        folder = None if artifact.folder is None else artifact.folder.name
        return _json(
            {
                "artifact": folder,
                "spec": artifact.spec.to_json(),
                "calibration": artifact.calibration.to_json(),
                "backend": self.app.backend,
            }
        )

    def _page(self, headers: dict[str, str]) -> bytes:
        headers["Content-Type"] = "text/html; charset=utf-8"
        headers["Content-Security-Policy"] = "default-src 'none'; style-src 'unsafe-inline'"
        return self.app.page.encode()

    def _session(self) -> tuple[str | None, bool, bool]:
        """The session that frames belong to, whether an episode begins, and whether an arm stalled."""
        pairs = parse_qsl(urlsplit(self.path).query, keep_blank_values=True)
        said = dict(pairs)
        if len(said) < len(pairs) or not set(said) <= {"session", *FLAGS} or ("start" in said) > ("session" in said):
            raise Refused(
                422, "after the ? only session=NAME, start=true and stalled=true can stand, once each, start with a "
                "session",
            )  # fmt: skip
        for name in FLAGS:
            if said.get(name, "false") not in ("true", "false"):
                raise Refused(422, f"{name} is true or false")
        start, stalled = (said.get(name) == "true" for name in FLAGS)
        return (check_name(said["session"]) if "session" in said else None), start, stalled

    # --- who may ask ---

    def _check_host(self) -> None:
        """A page in a browser can call us by a name of its own (DNS rebinding), but not by an address or ours."""
        given = self.headers.get_all("Host", [])
        try:
            name = (urlsplit(f"//{given[0]}").hostname or "").lower().rstrip(".") if len(given) == 1 else ""
        except ValueError:
            name = ""
        if not name:
            raise Refused(400, "one header Host is needed")
        if name not in self.app.hosts and not _is_address(name):
            raise Refused(403, "the Host of this request is not known here: call 127.0.0.1 or localhost")

    def _has_token(self) -> bool:
        scheme, _, given = self.headers.get("Authorization", "").partition(" ")
        return scheme.lower() == "bearer" and tokens.same(given.strip(), self.app.token)

    def _check_token(self) -> None:
        if not self._has_token():
            given = "Authorization" in self.headers
            reason = "the token is wrong" if given else "a token is needed: send Authorization: Bearer TOKEN"
            raise Refused(401, reason, **{"WWW-Authenticate": 'Bearer realm="referee"'})

    # --- bytes ---

    def _body(self) -> bytearray:
        lengths = self.headers.get_all("Content-Length", [])
        if "Transfer-Encoding" in self.headers or not lengths:
            raise Refused(411, "Content-Length is needed")
        text = lengths[0].strip()
        if len(lengths) > 1 or not (text.isascii() and text.isdigit()) or len(text) > 18:
            raise Refused(400, "Content-Length is no number")
        length = int(text)
        if length > self.app.max_body:
            raise Refused(413, f"the body has {length:,} bytes, more than {self.app.max_body:,}")
        if self._awaited:
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.wfile.flush()
        body = bytearray()
        self._incoming.allow(self.app.patience)
        with contextlib.suppress(TimeoutError):
            while len(body) < length and (piece := self.rfile.read1(min(length - len(body), 1 << 20))):
                body += piece
        if len(body) < length:
            raise Refused(408, f"the body broke off after {len(body)} of {length} bytes, or took too long")
        self._unread = False
        return body

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        """The whole answer in one write; a connection with an unread body is of no use any more."""
        self.close_connection |= self._unread
        self.connection.settimeout(self.app.patience)
        self.send_response_only(status)
        fixed = {"Content-Length": str(len(body)), "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
        for name, value in {**headers, **fixed}.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()
        self._awaited = False
        if self._unread:
            with contextlib.suppress(OSError):
                self._linger()

    def _linger(self) -> None:
        """Let a client finish sending what nobody reads: a connection closed before would lose the answer."""
        deadline, left = time.monotonic() + 2.0, 4 * self.app.max_body
        self.connection.shutdown(socket.SHUT_WR)
        self.connection.settimeout(0.5)
        while left > 0 and time.monotonic() < deadline:
            piece = self.connection.recv(1 << 16)
            if not piece:
                return
            left -= len(piece)

    def handle_expect_100(self) -> bool:
        """Who asks before sending gets an answer when everything but the body has been looked at."""
        self._awaited = True
        return True

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the standard library refuses, in our form."""
        self.close_connection, self.request_version = True, self.protocol_version
        reason = message or http.HTTPStatus(code).phrase
        self._send(code, {"Content-Type": "application/json"}, _error(reason))

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug(format, *args)


def _json(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False).encode() + b"\n"


def _error(reason: RefereeError | str) -> bytes:
    return _json({"error": " ".join(str(reason).split())})


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)
