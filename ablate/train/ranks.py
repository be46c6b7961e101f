"""The ranks of a run: processes that train it together, each on a device of its own.

Every rank has the whole model. It computes losses and gradients of its rows of each batch; these
are added up over the ranks, so that all make the same update. Evaluations are shared too. Rank 0
decides what is done next, and alone writes checkpoints and emits events. A process that has joined
no group is rank 0 of 1.

`torch.nn.parallel.DistributedDataParallel` reduces gradients in buckets during the backward pass.
Here they are in one buffer already (`ablate.train.optimiser`), which is reduced once a step, after
the last micro-batch, within the captured graph.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")

# A rank waits for as long as another compiles or rank 0 evaluates. The launcher ends a job that
# makes no progress.
TIMEOUT = timedelta(days=1)


def join(device: str, number: int, of: int, store: dist.Store) -> None:
    """Make this process a rank, and wait for the others.

    Args:
        device: Torch's name of its device.
        number: Its number, from 0.
        of: How many ranks there are.
        store: Where they find each other.
    """
    backend, bound = "gloo", None
    if device.startswith("cuda"):
        backend, bound = "cpu:gloo,cuda:nccl", torch.device(device)
        torch.cuda.set_device(bound)
    dist.init_process_group(
        backend, store=store, rank=number, world_size=of, timeout=TIMEOUT, device_id=bound
    )


def number() -> int:
    """Return the number of this rank."""
    return dist.get_rank() if dist.is_initialized() else 0


def count() -> int:
    """Return how many ranks there are."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rows(n: int) -> range:
    """Return this rank's rows of a batch of n."""
    return range(n * number() // count(), n * (number() + 1) // count())


def most_rows(n: int) -> int:
    """Return the most rows that a rank has of a batch of n."""
    return -(-n // count())


def add(*tensors: Tensor) -> None:
    """Replace each tensor by its sum over the ranks, the same bits in all of them."""
    if count() > 1:
        for tensor in tensors:
            dist.all_reduce(tensor)


def share(tensors: Iterable[Tensor]) -> None:
    """Give tensors of all ranks the values of rank 0."""
    if count() > 1:
        for tensor in tensors:
            if tensor.numel():
                dist.broadcast(tensor, 0)


def agree(value: T) -> T:
    """Return the value of rank 0: a number, a text or the like."""
    if count() == 1:
        return value
    held = [value]
    dist.broadcast_object_list(held, 0, device=torch.device("cpu"))
    return held[0]


def all_agree(value: bool) -> bool:
    """Return whether a condition holds in all ranks."""
    holds = torch.tensor(int(value))
    if count() > 1:
        dist.all_reduce(holds, dist.ReduceOp.MIN)
    return bool(holds)
