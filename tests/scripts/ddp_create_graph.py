"""backward(create_graph=True): averages that are part of a graph, whose derivatives are each rank's own.

One parameter a wrapper, and few iterations with each: torch's own reducer fails with more.
"""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()


def layer():
    torch.manual_seed(1)
    return DistributedDataParallel(nn.Linear(8, 1, bias=False))


def loss_of(ddp):
    return ddp(torch.randn(4, 8)).pow(4).mean()


weights, derivatives = [], []
for way in ("product", "penalty", "clipped", "several"):
    ddp = layer()
    param = ddp.module.weight
    optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01)
    torch.manual_seed(100 + rank)
    for _ in range(2):
        optimizer.zero_grad()
        loss_of(ddp).backward(create_graph=True)
        if way == "product":  # as AdaHessian does
            (product,) = torch.autograd.grad([param.grad], [param], [torch.ones_like(param)])
            derivatives.append(product)
        elif way == "penalty":
            derivatives.append(param.grad.square().sum().item())
        elif way == "clipped":
            param.grad = param.grad.detach()
            nn.utils.clip_grad_norm_(ddp.parameters(), 0.1)
        if param.grad.requires_grad:
            param.grad = param.grad.detach()
        optimizer.step()
    weights.append(param)
report(weights, derivatives=derivatives)
dist.destroy_process_group()
