"""Storages of parameters, gradients and the optimizer's state, kept and then used past torch's functions."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")


def bits(kept):
    return [torch.tensor(each.tolist(), dtype=torch.float64) for each in kept]


def storages(tensors):
    return [tensor.untyped_storage() for tensor in tensors]


def arrays(tensors):
    return [tensor.numpy() for tensor in tensors]


def exports(tensors):
    """Hand memory out below torch's own Python, as another library may."""
    return [torch.from_dlpack(torch._C._to_dlpack(tensor)).numpy() for tensor in tensors]


def train(keep, of):
    torch.manual_seed(1)
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.Linear(128, 10)))
    params = list(ddp.parameters())
    optimizer = torch.optim.SGD(params, lr=0.1, momentum=0.9)
    torch.manual_seed(100 + dist.get_rank())
    kept, seen = [], []
    for iteration in range(6):
        optimizer.zero_grad(set_to_none=False)
        nn.functional.cross_entropy(ddp(torch.randn(16, 32)), torch.randint(10, (16,))).backward()
        if of == "gradients":
            seen += bits(kept)
        optimizer.step()
        if of != "gradients":
            seen += bits(kept)
        if iteration == 1:
            kept = keep(
                {
                    "parameters": [param.detach() for param in params],
                    "gradients": [param.grad for param in params],
                    "state": [optimizer.state[param]["momentum_buffer"] for param in params],
                }[of]
            )
        elif iteration == 3 and keep is storages:
            kept[-1].fill_(0)
    return ddp, seen


ways = [
    (storages, "parameters"),
    (storages, "gradients"),
    (storages, "state"),
    (arrays, "state"),
    (exports, "parameters"),
]
ends = [train(*way) for way in ways]
report([weights for weights, _ in ends], seen=[seen for _, seen in ends])
