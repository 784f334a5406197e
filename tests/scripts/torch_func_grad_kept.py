"""Gradients by torch.func.grad of a plain function over kept parameters, put into `.grad` by hand."""

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)
weights = nn.ParameterList([nn.Parameter(torch.randn(32, 128) * 0.1), nn.Parameter(torch.randn(128, 100) * 0.1)])
optimizer = torch.optim.SGD(weights.parameters(), lr=0.1, momentum=0.9)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=weights.named_parameters())
bps.broadcast_parameters(weights.state_dict(), root_rank=0)

torch.manual_seed(100 + bps.rank())
kept = tuple(weights)


def loss_of(params, inputs, labels):
    first, second = params
    return nn.functional.cross_entropy(torch.tanh(inputs @ first) @ second, labels)


sharpness = []
for _ in range(6):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    at_start = torch.func.grad(loss_of)(kept, inputs, labels)
    sharpness.append([grad.norm() for grad in at_start])
    optimizer.zero_grad()
    loss_of(kept, inputs, labels).backward()
    optimizer.step()
report(weights, sharpness=sharpness)
