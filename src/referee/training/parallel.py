"""Several processes that learn as one: the same steps as a single process, up to the last bits of a sum."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from referee.errors import RefereeError

INTERFACE = "lo"
"""Processes of one machine talk over loopback; no port is open to anybody else."""
AGREE = 8
"""Steps between two questions whether to stop, where several processes have to stop at the same one."""
LOOK = 0.2
"""Seconds between two looks whether somebody wants an end."""


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
    before = os.environ.get("GLOO_SOCKET_IFNAME")
    os.environ["GLOO_SOCKET_IFNAME"] = before or INTERFACE
    children: list[BaseProcess] = []
    receivers: list[Connection] = []
    stopping = context.Event()
    with tempfile.TemporaryDirectory(prefix="referee-group-") as folder:
        try:
            for rank in range(processes):
                receiver, sender = context.Pipe(duplex=False)
                group = Group(backend, rank, processes)
                own = (work, group, folder, sender, stopping, arguments)
                child = context.Process(target=_child, args=own, daemon=True)
                child.start()
                sender.close()
                children.append(child)
                receivers.append(receiver)

            def look() -> None:
                if stop is not None and stop():
                    stopping.set()

            _watch(children, receivers, hear or _ignore, look)
        finally:
            _end(children)
            if before is None:
                os.environ.pop("GLOO_SOCKET_IFNAME", None)


def _watch(
    children: list[BaseProcess],
    receivers: list[Connection],
    hear: Callable[[Any], None],
    look: Callable[[], None],
) -> None:
    """Pass on what is told until all have ended well, or raise as soon as one has not."""
    open_ends = dict(enumerate(receivers))
    while open_ends:
        ready = wait(list(open_ends.values()), timeout=LOOK)
        look()
        for rank, receiver in list(open_ends.items()):
            if receiver not in ready:
                continue
            try:
                kind, what = receiver.recv()
            except EOFError:  # the process has ended
                del open_ends[rank]
                children[rank].join()
                if children[rank].exitcode:
                    raise RefereeError(
                        f"process {rank} of the training ended with code {children[rank].exitcode}: see above"
                    ) from None
                continue
            if kind == "told":
                hear(what)
            elif kind == "refused":
                raise RefereeError(what)
            else:
                raise RuntimeError(f"process {rank} of the training failed:\n{what}")


def _end(children: list[BaseProcess]) -> None:
    for child in children:
        if child.is_alive():
            child.terminate()
    for child in children:
        child.join(5)
        if child.is_alive():
            child.kill()


def _child(
    work: Work, group: Group, folder: str, sender: Connection, stopping: Event, arguments: tuple[Any, ...]
) -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the parent ends everybody
    _end_with_parent()

    def tell(what: Any) -> None:
        if group.rank == 0:
            sender.send(("told", what))

    try:
        with joined(group, init_method=f"file://{folder}/rendezvous"):
            work(group, tell, stopping.is_set, *arguments)
    except RefereeError as error:
        sender.send(("refused", str(error)))
        raise SystemExit(2) from None
    except Exception:
        sender.send(("failed", traceback.format_exc()))
        raise SystemExit(1) from None


@contextlib.contextmanager
def joined(group: Group, **where: Any) -> Iterator[None]:
    """While it is open, this process is one of the group, which meets `where` says; all leave it together."""
    torch.distributed.init_process_group("gloo", rank=group.rank, world_size=group.world, **where)
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
