"""Ray itself: imported, started, connected to and ended here, always with a token."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from referee.errors import ClusterError, MissingDependency
from referee.runtime.nodes import Node
from referee.runtime.raylet import RayletWatch

OLDEST = (2, 52)
"""The first Ray with token authentication."""
PATIENCE = 5.0
"""Seconds that a head has to take a connection."""
VISIT = 20.0
"""Seconds that a head has to say who it is; most of them go into importing Ray."""
GET_TOKEN = "copy the head's token here and set cluster.token_path or RAY_AUTH_TOKEN_PATH"
LOOPBACK = "127.0.0.1"
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_IGNORE_UNHANDLED_ERRORS": "1", "RAY_AUTH_MODE": "token"}


class HeadGone(ClusterError):
    """The head of the cluster is not there any more."""


@functools.cache
def ray() -> Any:
    """The library, or the line that installs it."""
    try:
        found = importlib.import_module("ray")
    except ImportError as error:
        raise MissingDependency(f"cluster.backend=ray needs ray: pip install 'referee-rl[ray]' ({error})") from error
    if tuple(map(int, found.__version__.split(".")[:2])) < OLDEST:
        raise MissingDependency(
            f"cluster.backend=ray needs ray 2.52 or newer, for its tokens; this is {found.__version__}: "
            "pip install -U 'referee-rl[ray]'"
        )
    return found


class Session:
    """A connection to Ray; closing it ends the processes that it started, and puts the environment back."""

    def __init__(self, address: str | None, token_path: str | None) -> None:
        self._undo = contextlib.ExitStack()
        self._head = ""
        if ray().is_initialized():
            raise ClusterError("this process is connected to a Ray already: close that cluster first")
        try:
            if address is None:
                self._start(token_path)
            else:
                self._connect(address, token_path)
        except BaseException:
            self.close()
            raise

    def _start(self, token_path: str | None) -> None:
        """A Ray of one's own, which listens on the loopback interface only."""
        if token_path is None:
            folder = tempfile.mkdtemp(prefix="referee-token-")  # only its owner can read it
            self._undo.callback(shutil.rmtree, folder, ignore_errors=True)
            token_path = str(Path(folder) / "token")
            write_token(Path(token_path))
        # What Ray does on a Mac by default: it binds to the loopback interface alone.
        settings = {**_token_settings(token_path), "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
        self._undo.enter_context(_environment(settings))
        library = ray()
        self._undo.enter_context(_alone())
        _read_token()
        self._init(library, address="local", include_dashboard=False, _node_ip_address=LOOPBACK)
        if not self._head.startswith(f"{LOOPBACK}:"):
            raise ClusterError(f"Ray listens on {self._head}, not only on this machine: cluster.backend=ray is refused")

    def _connect(self, address: str, token_path: str | None) -> None:
        if token_path is not None and not Path(token_path).is_file():
            raise ClusterError(f"cluster.token_path: there is no file {token_path}: {GET_TOKEN}")
        self._undo.enter_context(_environment(_token_settings(token_path)))
        ip = _reach(address)
        library = ray()
        _read_token()
        _knock(address)
        several_here = ip.startswith("127.") and ip != LOOPBACK  # nodes on one machine, each with its own address
        here = {"_node_ip_address": ip} if several_here else {}
        self._init(library, address=address, **here)

    def _init(self, library: Any, **options: Any) -> None:
        before = signal.getsignal(signal.SIGTERM)
        self._undo.callback(_on_sigterm, before)
        self._undo.callback(library.shutdown)
        try:
            library.init(configure_logging=False, log_to_driver=False, namespace="referee", **options)
        except (ConnectionError, RuntimeError, ValueError, library.exceptions.RayError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ClusterError(f"Ray cannot be used ({reason}): see /tmp/ray/session_latest/logs") from error
        self._head = library.get_runtime_context().gcs_address
        if hasattr(os, "pidfd_open"):
            self._undo.callback(RayletWatch(own_node(), self.check_head).close)
        # With the handler that Ray leaves, SIGTERM would crash this process and leave others behind.
        _on_sigterm(before if callable(before) else _exit)

    def check_head(self) -> None:
        """Raise if the head takes no connections any more: Ray would try for a minute, and then end this process."""
        try:
            _dial(self._head)
        except OSError as error:
            raise HeadGone(
                f"the head of the cluster at {self._head} is gone ({error}): start Ray again, and resume the run"
            ) from error

    def close(self) -> None:
        """Disconnect."""
        self._undo.close()


def pinned(node_id: str) -> Any:
    """The scheduling strategy "on this node or nowhere"."""
    strategies = importlib.import_module("ray.util.scheduling_strategies")
    return strategies.NodeAffinitySchedulingStrategy(node_id, soft=False)


def own_node() -> Any:
    """The node of Ray that this process is connected to, with the processes that were started for it."""
    return importlib.import_module("ray._private.worker").global_worker.node


def nodes() -> list[Node]:
    """The machines that are up."""
    return [
        Node(
            id=each["NodeID"],
            address=each["NodeManagerAddress"],
            head="node:__internal_head__" in each["Resources"],
            accelerators=int(each["Resources"].get("GPU", 0)),
            labels=each["Labels"],
        )
        for each in ray().nodes()
        if each["Alive"]
    ]


def write_token(path: Path) -> None:
    """256 random bits in a file that only its owner can read."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_urlsafe(32))


def _token_settings(path: str | None) -> dict[str, str | None]:
    """The environment in which Ray finds the token; without a path, where it looks by itself."""
    settings: dict[str, str | None] = {**QUIET}
    if path is not None:
        settings |= {"RAY_AUTH_TOKEN_PATH": str(Path(path).resolve()), "RAY_AUTH_TOKEN": None}
    return settings


@contextlib.contextmanager
def _environment(settings: dict[str, str | None]) -> Iterator[None]:
    """These variables, until the block ends; None = not set."""
    before = {name: os.environ.get(name) for name in settings}
    _set(settings)
    try:
        yield
    finally:
        _set(before)


def _on_sigterm(handler: Any) -> None:
    """Let SIGTERM be handled by `handler`; only a main thread may say so."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """The same for this process, where Ray has read the variable at its import."""
    constants: Any = importlib.import_module("ray._private.ray_constants")
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


def _set(settings: dict[str, str | None]) -> None:
    for name, value in settings.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _read_token() -> None:
    """Let Ray read the environment again: it remembers what it saw at its import."""
    core = importlib.import_module("ray._raylet")
    core.Config.initialize("")
    loader = core.AuthenticationTokenLoader.instance()
    loader.reset_cache()
    try:
        found = loader.has_token()
    except ray().exceptions.AuthenticationError:
        found = False
    if not found:
        raise ClusterError(f"there is no token for the cluster: {GET_TOKEN}")


def _reach(address: str) -> str:
    """The head's IP, if it takes connections; Ray itself would try for most of a minute."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ClusterError(f"cluster.address: cannot read {address!r}: write HOST:PORT, as 192.168.1.10:6379")
    try:
        return _dial(address)
    except (OSError, OverflowError) as error:
        raise ClusterError(
            f"cluster.address: no Ray answers at {address} ({error}): start it there, `ray start --head --port {port}`"
        ) from error


def _dial(address: str) -> str:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
        return str(connection.getpeername()[0])


def _knock(address: str) -> None:
    """Ask the head who it is, once with our token and once with none that it knows, as a stranger would.

    A wrong token is refused at once here; `init` would try for 20 s and not say why. In processes of their own, because
    Ray complains on stderr and does not give up in time.
    """
    stranger = {**os.environ, "RAY_AUTH_TOKEN": secrets.token_urlsafe(32)}
    visits = [_visit(address, dict(os.environ)), _visit(address, stranger)]
    ours, theirs = [_told(visit) for visit in visits]
    if ours is None and theirs is None:
        raise ClusterError(
            f"cluster.address: {address} asks for no token, so anybody can run anything there: "
            "start Ray on each machine with RAY_AUTH_MODE=token"
        )
    if ours is not None and "AuthenticationError" in ours:
        raise ClusterError(f"cluster.address: {address} refuses our token: {GET_TOKEN}")
    if ours is not None:
        raise ClusterError(f"cluster.address: what answers at {address} is no Ray head: name the port of the head")


def _visit(address: str, variables: dict[str, str]) -> subprocess.Popen[str]:
    code = "import sys; from ray._raylet import GcsClient; GcsClient(address=sys.argv[1])"
    command = [sys.executable, "-c", code, address]
    return subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True)


def _told(visit: subprocess.Popen[str]) -> str | None:
    """Why a visit did not succeed; None if it did."""
    try:
        _, said = visit.communicate(timeout=VISIT)
    except subprocess.TimeoutExpired:
        visit.kill()
        _, said = visit.communicate()
        return said
    return said if visit.returncode else None
