"""Callers that send a byte now and then: they cannot keep out those who have the token."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from serving_doubles import TOKEN, Client, frames, make_artifact, npy

from referee.serving import ScoringServer

SOCKETS = 80
GOOD = npy(frames(1))
HEAD = f"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: image/png\r\n"


@contextmanager
def slow_callers(port: int, begin: bytes, count: int = SOCKETS) -> Iterator[list[int]]:
    """Sockets that send `begin` and then a byte every 0.3 s, and open again as soon as they are closed."""
    stop, opened = threading.Event(), [0]

    def attack() -> None:
        sockets: dict[int, socket.socket] = {}
        while not stop.is_set():
            for number in range(count):
                try:
                    if number not in sockets:
                        sockets[number] = socket.create_connection(("127.0.0.1", port), timeout=1)
                        sockets[number].sendall(begin)
                        opened[0] += 1
                    sockets[number].sendall(b"a")
                except OSError:
                    sockets.pop(number).close() if number in sockets else None
            stop.wait(0.3)
        for each in sockets.values():
            each.close()

    thread = threading.Thread(target=attack)
    thread.start()
    try:
        deadline = time.monotonic() + 30
        while opened[0] < count:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(1.0)
        yield opened
    finally:
        stop.set()
        thread.join()


def latencies(server: ScoringServer, count: int) -> list[float]:
    """Seconds from opening a connection to the answer, which must be a score."""
    seconds = []
    for _ in range(count):
        start, client = time.perf_counter(), Client(server)
        status, answer = client.score(GOOD, "application/x-npy")
        seconds.append(time.perf_counter() - start)
        client.close()
        assert status == 200, answer
    return seconds


def test_a_burst_of_silent_callers_keeps_nobody_out() -> None:
    """All places are taken at once, and nobody has had time to be late: honest callers are let in all the same."""
    with ScoringServer(make_artifact(), token=TOKEN, port=0) as server:
        sockets = [socket.create_connection(("127.0.0.1", server.port), timeout=5) for _ in range(2 * SOCKETS)]
        try:
            assert max(latencies(server, 10)) < 2
        finally:
            for each in sockets:
                each.close()


@pytest.mark.parametrize(
    "begin",
    [
        b"GET /v1/model HTTP/1.1\r\nHost: local",
        b"",
        f"{HEAD.replace(TOKEN, 'x' * 20)}Content-Length: 1000\r\n\r\n".encode(),
    ],
    ids=["slow headers", "slow first line", "slow body with a wrong token"],
)
def test_slow_callers_without_a_token_keep_nobody_out(begin: bytes) -> None:
    with ScoringServer(make_artifact(), token=TOKEN) as server:
        before = Client(server)
        assert before.score(GOOD, "application/x-npy")[0] == 200
        usual = latencies(server, 20)
        place = before.connection.sock
        with slow_callers(server.port, begin):
            attacked = latencies(server, 20)
            assert before.score(GOOD, "application/x-npy")[0] == 200
        assert before.connection.sock is place  # the connection of a caller with a token was kept
        before.close()
    assert np.median(attacked) < np.median(usual) + 0.1 and max(attacked) < max(usual) + 0.5


def until_closed(connection: socket.socket, piece: bytes, every: float, limit: float) -> tuple[float, bytes]:
    """Send `piece` again and again; the seconds until the server has closed, and what it answered."""
    start, answer = time.monotonic(), b""
    connection.settimeout(every)
    while time.monotonic() - start < limit:
        try:
            connection.sendall(piece)
            data = connection.recv(4096)
            if not data:
                break
            answer += data
        except TimeoutError:
            continue
        except OSError:
            break
    return time.monotonic() - start, answer


@pytest.mark.parametrize(
    ("begin", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: loc", b""),
        (f"{HEAD}Content-Length: 100000\r\n\r\n".encode(), b"HTTP/1.1 408 "),
    ],
    ids=["headers", "body"],
)
def test_a_request_that_takes_too_long_as_a_whole_is_ended(begin: bytes, status: bytes) -> None:
    with (
        ScoringServer(make_artifact(), token=TOKEN, patience=1.5, header_seconds=1.5) as server,
        socket.create_connection(("127.0.0.1", server.port)) as connection,
    ):
        connection.sendall(begin)
        seconds, answer = until_closed(connection, b"a", 0.2, 20)
    assert 1.0 < seconds < 8 and answer.startswith(status)


def test_many_callers_at_once_are_all_served() -> None:
    with ScoringServer(make_artifact(), token=TOKEN) as server:
        statuses: list[int] = []

        def call() -> None:
            client = Client(server)
            statuses.append(client.score(GOOD, "application/x-npy")[0])
            client.close()

        threads = [threading.Thread(target=call) for _ in range(60)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert statuses == [200] * 60


def test_callers_with_a_token_can_take_all_connections_and_strangers_cannot() -> None:
    with ScoringServer(make_artifact(), token=TOKEN, max_connections=8) as server:
        strangers = [Client(server, token=None) for _ in range(8)]
        assert [each.ask("GET", "/healthz")[0] for each in strangers] == [200] * 8
        time.sleep(1.0)
        clients = [Client(server) for _ in range(8)]
        assert [each.ask("GET", "/healthz")[0] for each in clients] == [200] * 8
        assert [each.score(GOOD, "application/x-npy")[0] for each in clients] == [200] * 8
        late = Client(server, token=None)
        assert late.ask("GET", "/healthz")[0] == 503
        for each in (*strangers, *clients, late):
            each.close()
