"""The fitter: one of the processes that train a reward model together, wherever it was placed."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Callable
from typing import Any, Protocol

import torch

from referee.training.parallel import Group, Work, joined

LOOPBACK = "127."
SIOCGIFADDR = 0x8915
"""Linux: ask for the address of an interface."""


class Line(Protocol):
    """What leads back to those who started the training."""

    tell: Callable[[Any], None]
    stop: Callable[[], bool]


class FitWorker:
    """Knows which rank it is and where it lives; all else comes with the call."""

    def __init__(self, rank: int, world: int, address: str) -> None:
        """address: of its node, which the others can reach."""
        self._rank, self._world, self._address = rank, world, address
        self._door: socket.socket | None = None

    def listen(self) -> tuple[str, int]:
        """Open a door for the other ranks, on this node's own address alone; called on the first rank."""
        self._door = socket.create_server((self._address, 0))
        return self._address, int(self._door.getsockname()[1])

    def fit(
        self, work: Work, arguments: tuple[Any, ...], backend: str, meet: tuple[str, int], line: Line, again: bool
    ) -> None:
        """Do this rank's part; meet: where the first rank listens."""
        group = Group(backend, self._rank, self._world, again)
        tell, stop = (line.tell, line.stop) if self._rank == 0 else (_ignore, _never)
        if self._world == 1:
            work(group, tell, stop, *arguments)
            return
        interface = interface_of(self._address)
        if interface is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = interface
        with joined(group, store=self._store(*meet)):
            work(group, tell, stop, *arguments)

    def pid(self) -> int:
        """Of the process that it lives in."""
        return os.getpid()

    def _store(self, host: str, port: int) -> Any:
        store: Any = torch.distributed.TCPStore  # type: ignore[attr-defined]  # as torch's own documents import it
        door, self._door = self._door, None
        if door is None:
            return store(host, port, self._world, is_master=False)
        return store(host, port, self._world, is_master=True, wait_for_workers=False, master_listen_fd=door.detach())


def interface_of(address: str) -> str | None:
    """The network interface with this IPv4 address, or None where that cannot be told: then gloo finds one."""
    if address.startswith(LOOPBACK):
        return "lo"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asker, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has no such address, or this is no Linux
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


def _ignore(what: Any) -> None:
    pass


def _never() -> bool:
    return False
