"""Meta-learning: an inner step with a graph of its own over kept parameters, and the outer one through it."""

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)

torch.manual_seed(100 + bps.rank())
names, params = zip(*model.named_parameters(), strict=True)


def loss_of(values, inputs, labels):
    output = torch.func.functional_call(model, dict(zip(names, values, strict=True)), (inputs,))
    return nn.functional.cross_entropy(output, labels)


losses = []
for _ in range(6):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    slopes = torch.autograd.grad(loss_of(params, inputs[:8], labels[:8]), params, create_graph=True)
    fast = [p - 0.1 * slope for p, slope in zip(params, slopes, strict=True)]
    loss = loss_of(fast, inputs[8:], labels[8:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
report(model, losses=losses)
