"""Stochastic depth: each worker leaves out blocks by chance, and gradients are cleared to zero."""

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)


class Model(nn.Module):
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


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)

torch.manual_seed(100 + bps.rank())
losses = []
for _ in range(8):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad(set_to_none=False)
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
report(model, losses=losses)
