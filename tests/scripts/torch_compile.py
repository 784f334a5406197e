"""The whole model compiled, in mid-training and from the start, and blocks one by one."""

import torch
from torch import nn
from ways import adam, batch, run_byteps, train, way


@way()
def in_place(model, optimizer):
    """After some iterations without."""
    losses = []
    for iteration in range(8):
        if iteration == 4:
            model.compile(backend="eager")
        losses.append(train(model, optimizer))
    return losses


@way(make=adam)
def whole(model, optimizer):
    compiled = torch.compile(model, backend="eager")
    return [train(compiled, optimizer) for _ in range(6)]


class Blocks(nn.Module):
    """Blocks through autograd as well, and an embedding and a head that are not compiled."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(32, 64), nn.Linear(64, 10)
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)) for _ in range(2)]
        )


@way(Blocks, torch.optim.AdamW)
def blocks(model, optimizer):
    compiled = [torch.compile(block, backend="aot_eager") for block in model.blocks]
    losses = []
    for _ in range(6):
        inputs, labels = batch()
        hidden = model.stem(inputs)
        for block in compiled:
            hidden = hidden + block(hidden)
        loss = nn.functional.cross_entropy(model.head(hidden), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


run_byteps()
