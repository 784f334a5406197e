"""Parameters that get no gradient at times."""

import torch
from torch import nn
from ways import adam, backward, loss_of, run_byteps, way


class Experts(nn.Module):
    """A gate sends all of a batch to one of four, and the others get no gradient."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(32, 4)
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 10)) for _ in range(4)])
        self.choices = []

    def forward(self, inputs):
        weights = self.gate(inputs).mean(0).softmax(0)
        self.choices.append(int(weights.argmax()))
        return weights[self.choices[-1]] * self.experts[self.choices[-1]](inputs)


@way(Experts, adam)
def experts(model, optimizer):
    for _ in range(8):
        model.zero_grad(set_to_none=False)
        loss_of(model, torch.randn(4, 32) * 2, torch.randint(10, (4,))).backward()
        optimizer.step()
    return model.choices


class Depth(nn.Module):
    """Each worker leaves out blocks by chance."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(32, 64)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(5)])
        self.head = nn.Linear(64, 10)

    def forward(self, inputs):
        hidden = self.stem(inputs)
        for block in self.blocks:
            if torch.rand(()) < 0.6:
                hidden = hidden + block(hidden)
        return self.head(hidden)


@way(Depth)
def stochastic_depth(model, optimizer):
    losses = []
    for _ in range(8):
        optimizer.zero_grad(set_to_none=False)
        losses.append(backward(model))
        optimizer.step()
    return losses


run_byteps()
