"""A `.grad` that is put into another parameter's, and gradients that two parameters have in one place; freezing between
forward and backward.
"""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
outsider = nn.Parameter(torch.zeros(32, 32))


def same(first, second, third):
    second.weight.grad = first.weight.grad


def views(first, second, third):
    third.weight.grad = first.weight.grad[:10]
    first.bias.grad = second.bias.grad.detach()


def exchanged(first, second, third):
    first.weight.grad, second.weight.grad = second.weight.grad, first.weight.grad


def elsewhere(first, second, third):
    outsider.grad = first.weight.grad


def nothing(first, second, third):
    pass


def train(way, frozen=False):
    torch.manual_seed(1)
    layers = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 10))
    ddp = DistributedDataParallel(layers)
    optimizer = torch.optim.SGD([*ddp.parameters(), outsider], lr=0.1, momentum=0.9)
    torch.manual_seed(100 + dist.get_rank())
    for iteration in range(6):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(ddp(torch.randn(16, 32)), torch.randint(10, (16,)))
        layers[0].requires_grad_(not (frozen and iteration % 2 and dist.get_rank()))
        loss.backward()
        layers[0].requires_grad_()
        if iteration % 3:
            way(*layers)
        optimizer.step()
    return ddp


models = [train(way) for way in (same, views, exchanged, elsewhere)] + [train(nothing, frozen=True)]
report(models, outsider=outsider)
