"""Parameters whose memory is one: tied by `.data`, overlapping in one buffer, and in two models with two optimizers."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from ways import backward, run_ddp, train, way


def square():
    return nn.Sequential(
        nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.Linear(32, 10)
    )


def tied():
    model = square()
    model[4].weight.data = model[0].weight.data
    model[2].bias.data = model[0].bias.data
    return model


def overlapping():
    model = square()
    memory = torch.randn(3 * 1024) / 8
    for place, start in ((0, 0), (2, 512), (4, 1024)):
        model[place].weight.data = memory[start : start + 1024].view(32, 32)
    return model


def flat():
    """In one buffer, with no element in common."""
    model = square()
    params = list(model.parameters())
    memory = torch.cat([param.data.flatten() for param in params])
    for param, part in zip(params, memory.split([param.numel() for param in params]), strict=True):
        param.data = part.view_as(param)
    return model


def adamw(params):
    return torch.optim.AdamW(params, lr=1e-2)


def loop(model, optimizer):
    losses = [train(model, optimizer) for _ in range(6)]
    for _ in range(4):
        losses.append(backward(model))
        optimizer.step()
        optimizer.zero_grad()
    return losses


way(tied)(loop)


@way(tied, adamw)
def tied_adamw(model, optimizer):
    return loop(model, optimizer)


@way(overlapping)
def overlaps(model, optimizer):
    return loop(model, optimizer)


@way(flat, adamw)
def one_buffer(model, optimizer):
    return loop(model, optimizer)


@way(square)
def two_models(model, optimizer):
    other = square()
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        theirs.data = mine.data
    other = DistributedDataParallel(other)
    others_optimizer = torch.optim.SGD(other.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(6):
        losses.append(backward(model))
        losses.append(backward(other))
        others_optimizer.step()
        optimizer.step()
        optimizer.zero_grad()
        others_optimizer.zero_grad()
    return losses


run_ddp()
