"""Uneven inputs by join() after some steps as usual, and programs that reach for torch's reducer: its buckets, which it
goes on with, its hooks, and another process group.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from ways import adam, backward, normed, run_ddp, train, way


@way(normed, lambda params: torch.optim.SGD(params, lr=0.1))
def uneven(ddp, optimizer):
    """Also of a new module."""
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
def uneven_in_half_precision(ddp, optimizer):
    ddp.register_comm_hook(None, fp16_compress_hook)
    for _ in range(4):
        train(ddp, optimizer)
    with ddp.join():
        for _ in range(3):
            train(ddp, optimizer)
    for _ in range(2):
        train(ddp, optimizer)


@way()
def buckets(ddp, optimizer):
    """They are looked at, and one is averaged by the program."""
    losses, sizes = [], []
    for iteration in range(8):
        if iteration == 3:
            zeros = ddp.reducer._get_zeros_like_grad_buckets()
            sizes += [bucket.buffer().numel() for bucket in zeros]
            for bucket in zeros:
                bucket.buffer().fill_(dist.get_rank() + 1.0)
                sizes += [each.sum().item() for each in ddp.reducer._run_comm_hook(bucket).wait()]
        if iteration == 5:
            ddp.reducer._install_post_backward_futures([torch.futures.Future()][:0])
            ddp.reducer._push_all_rebuilt_params()
        losses.append(train(ddp, optimizer))
    return losses, sizes


class Late(nn.Module):
    """Not registered in the order of use."""

    def __init__(self):
        super().__init__()
        self.late, self.early, self.middle = nn.Linear(128, 10), nn.Linear(32, 96), nn.Linear(96, 128)

    def forward(self, inputs):
        return self.late(self.middle(self.early(inputs).relu()).relu())


@way(Late)
def buckets_of_powersgd(ddp, optimizer):
    """Read after some steps."""
    ddp.register_comm_hook(PowerSGDState(None, 2, start_powerSGD_iter=3), powerSGD_hook)
    losses = [train(ddp, optimizer) for _ in range(6)]
    sizes = [bucket.buffer().numel() for bucket in ddp.reducer._get_zeros_like_grad_buckets()]
    return losses, sizes, [train(ddp, optimizer) for _ in range(5)]


@way(make=adam)
def process_group(ddp, optimizer):
    """By torch's own method, in the middle of training."""
    other = dist.new_group()
    losses = [train(ddp, optimizer) for _ in range(3)]
    ddp._update_process_group(other)
    return losses, [train(ddp, optimizer) for _ in range(4)]


@way()
def hooks_removed(ddp, optimizer):
    """The program sums by itself from then on."""
    losses = [train(ddp, optimizer) for _ in range(3)]
    ddp._remove_autograd_hooks()
    for _ in range(3):
        optimizer.zero_grad()
        losses.append(backward(ddp))
        for p in ddp.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
    return losses


run_ddp()
