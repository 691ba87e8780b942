"""The scoring server under attack on loopback: slow headers, large bodies, bad tokens, hostile names."""

from __future__ import annotations

import contextlib
import http.client
import io
import random
import socket
import time
from pathlib import Path

import numpy as np

from campaign_parts.material import Material
from campaign_parts.processes import Child
from campaign_parts.tally import Tally

TOKEN = "a-token-for-the-campaign"
MAX_BODY = 1 << 20
SLOW = 80
"""Sockets that send their headers byte by byte, without a token."""
PATIENT = 5.0
"""Seconds within which an honest caller is answered."""
MOST = 1500
"""Requests of one attack."""
GROWTH = 200 << 20
"""Bytes that the server may grow by."""
HOSTILE = ["evil.example", "127.0.0.1.evil.example:8642", "localhost.evil.example", "", "a" * 4000]


def run(seed: int, seconds: float, folder: Path) -> list[Tally]:
    """Three rows; each attack lasts a third of `seconds`."""
    child = Child(lambda: _serve(Material(folder / "material").model), folder / "server.log")
    try:
        end = time.monotonic() + 60
        while not (told := [line for line in child.lines() if line.startswith("port ")]):
            if time.monotonic() > end or child.poll() is not None:
                raise RuntimeError(f"the server does not start: {child.lines()[-1:]}")
            time.sleep(0.05)
        attack = Attack(int(told[0].split()[1]), child.pid, random.Random(seed))
        attack.honest(Tally(""))
        began = attack.memory()
        rows = [attack.slow_headers(seconds / 3), attack.bodies(seconds / 3), attack.names(seconds / 3)]
        for row in rows:
            row.worst("MB that the server grew by", (attack.memory() - began) / 1e6)
        rows[-1].expect(attack.memory() - began < GROWTH, "the server grew by more than 200 MB", "memory")
        rows[-1].expect(child.poll() is None, "the server has died")
        if child.traceback is not None:
            rows[-1].defect("tracebacks", f"in the server's log: {child.traceback}")
        return rows
    finally:
        child.kill()


def _serve(model: Path) -> None:
    from referee.serving import ScoringServer

    with ScoringServer(model, token=TOKEN, max_body=MAX_BODY) as server:
        print("port", server.port, flush=True)
        while True:
            time.sleep(1)


class Attack:
    """A caller that has the token, and one that has not."""

    def __init__(self, port: int, pid: int, choose: random.Random) -> None:
        self.port, self._pid, self._choose = port, pid, choose
        buffer = io.BytesIO()
        np.save(buffer, np.zeros((1, 2, 64, 64, 3), np.uint8))
        self._frames = buffer.getvalue()

    def memory(self) -> int:
        """Resident bytes of the server."""
        for line in Path(f"/proc/{self._pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return 1024 * int(line.split()[1])
        return 0

    def honest(self, tally: Tally) -> None:
        """One request with the token, of which the answer must come in time."""
        tally.tried += 1
        began = time.monotonic()
        try:
            status = self.ask(self._frames, {"Authorization": f"Bearer {TOKEN}"})
            tally.expect(status == 200, f"an honest caller gets {status}", "lost")
        except OSError as error:
            tally.defect("hangs", f"an honest caller gets no answer ({error})")
        tally.worst("seconds of an honest answer, worst", time.monotonic() - began)

    def ask(self, body: bytes, headers: dict[str, str], *, declared: int | None = None) -> int:
        """POST some bytes; returns the status. declared: Content-Length, if it is a lie."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENT)
        try:
            connection.putrequest("POST", "/v1/score", skip_host="Host" in headers)
            for name, value in {"Content-Type": "application/x-npy", **headers}.items():
                connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(body) if declared is None else declared))
            connection.endheaders()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused before all of it was sent
                connection.send(body)
            return connection.getresponse().status
        finally:
            connection.close()

    def slow_headers(self, seconds: float) -> Tally:
        """Slowloris: many sockets, a byte of a header now and then; an honest caller asks all the time."""
        tally, end = Tally("server: slow headers"), time.monotonic() + seconds
        sockets: list[socket.socket] = []
        try:
            while time.monotonic() < end:
                for each in list(sockets):
                    try:
                        each.send(b"X")
                    except OSError:
                        sockets.remove(each)
                while len(sockets) < SLOW and time.monotonic() < end:
                    try:
                        each = socket.create_connection(("127.0.0.1", self.port), timeout=0.5)
                        each.send(b"POST /v1/score HTTP/1.1\r\nX-A: ")
                        sockets.append(each)
                        tally.tried += 1
                    except OSError:
                        break
                self.honest(tally)
                time.sleep(0.3)
        finally:
            for each in sockets:
                each.close()
        time.sleep(0.5)
        self.honest(tally)
        return tally

    def bodies(self, seconds: float) -> Tally:
        """Too large, too short, lying, or nothing like frames."""
        tally, end = Tally("server: bodies"), time.monotonic() + seconds
        good = {"Authorization": f"Bearer {TOKEN}"}
        large = b"\0" * (MAX_BODY + 1)
        while time.monotonic() < end and tally.tried < MOST:
            with tally.trial("bodies"):
                status = self.ask(large, good)
                tally.expect(status == 413, f"a body of {len(large)} bytes gets {status}")
            with tally.trial("bodies"):
                status = self.ask(b"", good, declared=self._choose.randrange(1 << 31, 1 << 62))
                tally.expect(status in (400, 413), f"a declared length of exabytes gets {status}")
            with tally.trial("bodies"):
                status = self.ask(self._choose.randbytes(self._choose.randrange(4000)), good)
                tally.expect(status in (400, 413, 422), f"random bytes get {status}")
            with tally.trial("bodies"):
                mutated = bytearray(self._frames)
                for _ in range(8):
                    mutated[self._choose.randrange(128)] = self._choose.randrange(256)
                status = self.ask(bytes(mutated), good)
                tally.expect(status in (200, 400, 413, 422), f"a mutated header gets {status}")
            with tally.trial("bodies"):
                status = self.ask(large, {})
                tally.expect(status in (401, 413), f"a large body without a token gets {status}")
        self.honest(tally)
        return tally

    def names(self, seconds: float) -> Tally:
        """Tokens that are not the token, and names that are not this machine's."""
        tally, end = Tally("server: tokens and names"), time.monotonic() + seconds
        while time.monotonic() < end and tally.tried < MOST:
            with tally.trial("tokens"):
                length = self._choose.choice([0, 1, len(TOKEN), 300])
                wrong = "".join(self._choose.choice("abcdef-") for _ in range(length))
                kind = self._choose.choice(["Bearer", "bearer", "Basic", "Token", ""])
                status = self.ask(self._frames, {"Authorization": f"{kind} {wrong}"})
                tally.expect(status == 401, f"a wrong token gets {status}")
            with tally.trial("names"):
                host = self._choose.choice(HOSTILE)
                status = self.ask(self._frames, {"Authorization": f"Bearer {TOKEN}", "Host": host})
                tally.expect(status in (400, 403, 431), f"Host {host[:30]!r} gets {status}")
            with tally.trial("names"):
                headers = {"Authorization": "Bearer guess", "Origin": "https://evil.example"}
                status = self.ask(self._frames, headers)
                tally.expect(status in (401, 403), f"a foreign Origin without the token gets {status}")
        self.honest(tally)
        return tally
