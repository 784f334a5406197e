"""One rank that times gloo's all-reduces: started by tools/testbed.py, once in each node.

Rule of this file: what is timed. Prints one JSON line on rank 0.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from prophet_ddp.events import EventLog
from prophet_ddp.issuer import Issuer, JointOperation, RankGroups
from prophet_ddp.wide_gloo import greatest, wide_group

LONG_S = 0.5
"""Seconds that each is timed, unless `MOST` operations take less."""
MOST = 2000
PARAMETERS, PARAMETER_BYTES = 50, 2 << 20
"""Tensors of the model whose gradients are copied and updated: more than any cache holds."""
RENEWED_BYTES = 64 << 20
"""Bytes of a gradient that has new memory each time."""
PASSES = 8
WAIT_S = 0.05


def main() -> None:
    """Read JSON arguments: pairs of bytes and of operations under way at once; sizes of those that Prophet issues."""
    pairs: list[tuple[int, int]] = [tuple(pair) for pair in json.loads(sys.argv[1])]
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    patience = datetime.timedelta(seconds=120)
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store: Any = torch._C._distributed_c10d.TCPStore(host, port, ranks, rank == 0, patience)
    group = wide_group(store, rank, ranks, patience)
    issuer = Issuer(RankGroups(group), EventLog(False))
    found = {
        "bare_s": [[size, at_once, timed(group, Bare(group, size, at_once))] for size, at_once in pairs],
        "issued_s": [[size, timed(group, Issued(issuer, size))] for size in json.loads(sys.argv[2])],
        "copied_rate": greatest(group, PARAMETERS * PARAMETER_BYTES / copied_s()),
        "renewed_rate": greatest(group, RENEWED_BYTES / renewed_s()),
        "updated_rate": greatest(group, PARAMETERS * PARAMETER_BYTES / updated_s()),
    }
    if rank == 0:
        print(json.dumps(found), flush=True)
    group.barrier().wait()


class Bare:
    """All-reduces of so many bytes, as many at once as are asked for, each of memory of its own."""

    def __init__(self, group: Any, size: int, at_once: int) -> None:
        self._group = group
        self._data = [torch.ones(size // 4) for _ in range(at_once)]

    def __call__(self, count: int) -> None:
        under_way: deque[Any] = deque()
        for number in range(count):
            if len(under_way) == len(self._data):
                under_way.popleft().wait()
            under_way.append(self._group.allreduce([self._data[number % len(self._data)]]))
        while under_way:
            under_way.popleft().wait()


class Issued:
    """Operations through Prophet's issuer; a thread waits for one after another, as forward does."""

    def __init__(self, issuer: Issuer, size: int) -> None:
        self._issuer = issuer
        self._data = [torch.ones(size // 4) for _ in range(2 * issuer.at_once)]

    def __call__(self, count: int) -> None:
        operations = [self._operation(number) for number in range(count)]
        self._issuer.append(operations)
        for operation in operations:
            self._issuer.ready(operation)
        for operation in operations:
            while not operation.done:
                self._issuer.wait_activity(WAIT_S)

    def _operation(self, number: int) -> JointOperation:
        data = self._data[number % len(self._data)]
        return JointOperation(lambda: self._issuer.groups.all_reduce(data), number, 4 * data.numel())


def timed(group: Any, several: Callable[[int], None]) -> float:
    """Return the seconds that an operation takes among others."""
    some = 16
    several(some)  # connections open, and windows with them
    began = time.monotonic()
    several(some)
    each_s = greatest(group, (time.monotonic() - began) / some)
    count = max(some, min(MOST, int(LONG_S / each_s)))
    began = time.monotonic()
    several(count)
    return (time.monotonic() - began) / count


def copied_s() -> float:
    """Return the seconds to copy all gradients of a model to where they are sent from."""
    gradients = [torch.ones(PARAMETER_BYTES // 4) for _ in range(PARAMETERS)]
    buffer = torch.ones(PARAMETERS, PARAMETER_BYTES // 4)

    def once() -> None:
        for gradient, place in zip(gradients, buffer, strict=True):
            torch.mul(gradient, 0.5, out=place)

    return _passes(once)


def renewed_s() -> float:
    """Return the seconds to copy a large gradient to memory that was just freed, as autograd does."""
    gradient = torch.ones(RENEWED_BYTES // 4)
    return _passes(gradient.clone)


def updated_s() -> float:
    """Return the seconds that SGD takes to update all parameters of a model."""
    parameters = [torch.nn.Parameter(torch.ones(PARAMETER_BYTES // 4)) for _ in range(PARAMETERS)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    return _passes(torch.optim.SGD(parameters, lr=1e-3).step)


def _passes(once: Callable[[], Any]) -> float:
    once()
    began = time.monotonic()
    for _ in range(PASSES):
        once()
    return (time.monotonic() - began) / PASSES


if __name__ == "__main__":
    main()
