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
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from referee.errors import RefereeError

INTERFACE = "lo"
"""Processes of one machine talk over loopback; no port is open to anybody else."""


@dataclass(frozen=True)
class Group:
    """The processes that train together; alone, every function here does nothing."""

    backend: str = "simple"
    rank: int = 0
    world: int = 1

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


def launch(
    work: Callable[..., None],
    arguments: tuple[Any, ...],
    *,
    backend: str,
    processes: int,
    hear: Callable[[Any], None] | None = None,
) -> None:
    """Run `work(group, tell, *arguments)` in so many processes and wait; if one fails, or on Ctrl-C, all of them end.

    hear: called here with whatever the first process `tell`s.
    """
    context = multiprocessing.get_context("spawn")
    before = os.environ.get("GLOO_SOCKET_IFNAME")
    os.environ["GLOO_SOCKET_IFNAME"] = before or INTERFACE
    children: list[BaseProcess] = []
    receivers: list[Connection] = []
    with tempfile.TemporaryDirectory(prefix="referee-group-") as folder:
        try:
            for rank in range(processes):
                receiver, sender = context.Pipe(duplex=False)
                group = Group(backend, rank, processes)
                child = context.Process(target=_child, args=(work, group, folder, sender, arguments), daemon=True)
                child.start()
                sender.close()
                children.append(child)
                receivers.append(receiver)
            _watch(children, receivers, hear or _ignore)
        finally:
            _end(children)
            if before is None:
                os.environ.pop("GLOO_SOCKET_IFNAME", None)


def _watch(children: list[BaseProcess], receivers: list[Connection], hear: Callable[[Any], None]) -> None:
    """Pass on what is told until all have ended well, or raise as soon as one has not."""
    open_ends = dict(enumerate(receivers))
    while open_ends:
        ready = wait(list(open_ends.values()))
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
    work: Callable[..., None], group: Group, folder: str, sender: Connection, arguments: tuple[Any, ...]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends everybody
    _end_with_parent()

    def tell(what: Any) -> None:
        if group.rank == 0:
            sender.send(("told", what))

    try:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/rendezvous", rank=group.rank, world_size=group.world
        )
        try:
            work(group, tell, *arguments)
            torch.distributed.barrier()
        finally:
            torch.distributed.destroy_process_group()
    except RefereeError as error:
        sender.send(("refused", str(error)))
        raise SystemExit(2) from None
    except Exception:
        sender.send(("failed", traceback.format_exc()))
        raise SystemExit(1) from None


def _end_with_parent() -> None:
    """Linux ends this process when its parent is gone, even killed; elsewhere nothing happens."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def _ignore(what: Any) -> None:
    pass
