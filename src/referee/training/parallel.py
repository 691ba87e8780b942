"""Several processes that learn as one: the same steps as a single process, up to the last bits of a sum."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, start_processes

from referee import files
from referee.errors import RefereeError

INTERFACE_KEY, INTERFACE = "GLOO_SOCKET_IFNAME", "lo"
"""Processes of one machine talk over loopback; no port is open to anybody else."""
AGREE = 8
"""Steps between two questions whether to stop, where several processes have to stop at the same one."""
LOOK = 0.2
"""Seconds between two looks whether somebody wants an end."""
REFUSAL = "refusal"
"""The file in which a rank says in one line why it cannot go on."""
logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)  # the others end: no news


@dataclass(frozen=True)
class Group:
    """The processes that train together; alone, every function here does nothing."""

    backend: str = "simple"
    rank: int = 0
    world: int = 1
    again: bool = False
    """Whether one of them died, and all are to go on from the last checkpoint."""

    def wrap(self, net: nn.Module) -> nn.Module:
        """The module to call instead of `net`, which averages gradients over the processes."""
        if self.world == 1:
            return net
        if self.backend == "ddp":
            return nn.parallel.DistributedDataParallel(net, broadcast_buffers=False)
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        net.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # it takes no other
        fully_shard(net, mesh=init_device_mesh("cpu", (self.world,)))
        return net

    @contextlib.contextmanager
    def syncing(self, module: nn.Module, on: bool) -> Iterator[None]:
        """While it is open, a backward pass averages gradients over the processes only if `on`."""
        if self.world == 1 or on:
            yield
        elif self.backend == "ddp":
            with module.no_sync():  # type: ignore[operator]
                yield
        else:
            module.set_requires_gradient_sync(False)  # type: ignore[operator]
            yield
            module.set_requires_gradient_sync(True)  # type: ignore[operator]

    def sum(self, values: np.ndarray) -> np.ndarray:
        """The sum over the processes."""
        if self.world == 1:
            return values
        total = torch.from_numpy(np.array(values))
        torch.distributed.all_reduce(total)
        return total.numpy()

    def sum_(self, tensors: list[Tensor]) -> None:
        """The same for many tensors at once, in place."""
        if self.world == 1 or not tensors:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        torch.distributed.all_reduce(flat)
        start = 0
        for tensor in tensors:
            tensor.copy_(flat[start : start + tensor.numel()].view_as(tensor))
            start += tensor.numel()

    def barrier(self) -> None:
        """Wait until every process is here."""
        if self.world > 1:
            torch.distributed.barrier()

    def agrees(self, stop: Callable[[], bool], step: int) -> bool:
        """Whether to stop at this step: one that says so is enough, and all hear it."""
        if self.world == 1:
            return stop()
        return step % AGREE == 0 and bool(self.sum(np.array([float(stop())]))[0])


def whole(value: Any) -> Any:
    """The same with every tensor that is spread over processes put together; all processes must call it."""
    if isinstance(value, dict):
        return {name: whole(each) for name, each in value.items()}
    if isinstance(value, list):
        return [whole(each) for each in value]
    if isinstance(value, Tensor):
        return (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().clone()
    return value


def spread(values: Tensor, like: Any) -> Tensor:
    """The inverse for one tensor: this process's part, as `like` is spread."""
    if not hasattr(like, "placements") or values.shape != like.shape:
        return values
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(values, like.device_mesh, like.placements)


Work = Callable[..., None]
"""What each process does: `work(group, tell, stop, *arguments)`; `tell` is heard from the first one only."""


class Launch(Protocol):
    """Runs work in several processes that learn as one, and waits for them."""

    def __call__(
        self,
        work: Work,
        arguments: tuple[Any, ...],
        *,
        backend: str,
        processes: int,
        hear: Callable[[Any], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        """hear: called here with whatever the first process tells. stop: asked here; its yes reaches all."""


def launch(
    work: Work,
    arguments: tuple[Any, ...],
    *,
    backend: str,
    processes: int,
    hear: Callable[[Any], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> None:
    """See Launch: processes of this machine. If one fails, or on Ctrl-C, all of them end."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    stopping = context.Event()
    with tempfile.TemporaryDirectory(prefix="referee-group-") as folder, _loopback():
        shared = (work, backend, processes, Path(folder), sender, stopping, arguments)
        ranks: Any = start_processes(  # type: ignore[no-untyped-call]
            _rank, shared, processes, join=False, daemon=True, start_method="spawn"
        )
        sender.close()
        try:
            while not ranks.join(timeout=0):
                if stop is not None and stop():
                    stopping.set()
                _hear(receiver, hear or _ignore, LOOK)
        except (ProcessExitedException, ProcessRaisedException) as error:
            refusal = Path(folder) / REFUSAL
            if refusal.exists():
                raise RefereeError(refusal.read_text()) from None
            if isinstance(error, ProcessExitedException):
                code = error.exit_code
                raise RefereeError(
                    f"process {error.error_index} of the training ended with code {code}: see above"
                ) from None
            raise RuntimeError(f"process {error.error_index} of the training failed:{error.msg}") from None
        finally:
            _end(ranks.processes)
        while _hear(receiver, hear or _ignore, 0):  # what was told last
            pass


def _hear(receiver: Connection, hear: Callable[[Any], None], timeout: float) -> bool:
    """Whether something was told within this time; it is passed on."""
    if not receiver.poll(timeout):
        return False
    try:
        hear(receiver.recv())
    except EOFError:  # the first one has ended, the others are about to
        time.sleep(timeout)
        return False
    return True


def _end(ranks: list[BaseProcess]) -> None:
    for rank in ranks:
        if rank.is_alive():
            rank.terminate()
    for rank in ranks:
        rank.join(5)
        if rank.is_alive():
            rank.kill()


def _rank(
    rank: int,
    work: Work,
    backend: str,
    processes: int,
    folder: Path,
    sender: Connection,
    stopping: Event,
    arguments: tuple[Any, ...],
) -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the parent ends everybody
    _end_with_parent()
    if rank:
        sender.close()
    os.environ |= {  # as torchrun sets them; accelerate asks for them
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes),
    }  # fmt: skip

    def tell(what: Any) -> None:
        if not rank:
            sender.send(what)

    group = Group(backend, rank, processes)
    try:
        with joined(group, init_method=f"file://{folder}/rendezvous"):
            work(group, tell, stopping.is_set, *arguments)
    except RefereeError as error:
        with files.replacing(folder / REFUSAL) as file:
            file.write_text(str(error))
        raise SystemExit(2) from None


@contextlib.contextmanager
def _loopback() -> Iterator[None]:
    """While it is open, processes that are started talk over loopback, unless the environment names an interface."""
    before = os.environ.get(INTERFACE_KEY)
    os.environ[INTERFACE_KEY] = before or INTERFACE
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(INTERFACE_KEY, None)


@contextlib.contextmanager
def joined(group: Group, **where: Any) -> Iterator[None]:
    """While it is open, this process is one of the group, which meets `where` says; all leave it together."""
    on_gpus = torch.cuda.is_available() and torch.distributed.is_nccl_available()
    backend = "cpu:gloo,cuda:nccl" if on_gpus else "gloo"
    torch.distributed.init_process_group(backend, rank=group.rank, world_size=group.world, **where)
    try:
        yield
        torch.distributed.barrier()
    finally:
        torch.distributed.destroy_process_group()


def _end_with_parent() -> None:
    """Linux ends this process when its parent is gone, even killed; elsewhere nothing happens."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def _ignore(what: Any) -> None:
    pass
