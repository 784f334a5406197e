"""Uneven inputs: join() after some steps as usual, also with gradients in half precision, and of a new module."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from ways import normed, run_ddp, train, way


@way(normed, lambda params: torch.optim.SGD(params, lr=0.1))
def uneven(ddp, optimizer):
    for _ in range(4):
        train(ddp, optimizer)
    with ddp.join():
        for _ in range(3 + 2 * dist.get_rank()):
            train(ddp, optimizer)
    other = DistributedDataParallel(nn.Linear(32, 10))
    with Join([other]):
        for _ in range(2 + dist.get_rank()):
            other(torch.randn(16, 32)).square().mean().backward()
    dist.barrier()
    for _ in range(2):
        train(ddp, optimizer)
    return [buffer.double() for buffer in ddp.buffers()], [p.grad for p in other.parameters()]


@way()
def half_precision(ddp, optimizer):
    ddp.register_comm_hook(None, fp16_compress_hook)
    for _ in range(4):
        train(ddp, optimizer)
    with ddp.join():
        for _ in range(3):
            train(ddp, optimizer)
    for _ in range(2):
        train(ddp, optimizer)


run_ddp()
