"""A mixture of experts: a gate sends all of a batch to one of four, and the others get no gradient."""

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(32, 4)
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 10)) for _ in range(4)])

    def forward(self, inputs):
        weights = self.gate(inputs).mean(0).softmax(0)
        chosen = int(weights.argmax())
        return weights[chosen] * self.experts[chosen](inputs), chosen


model = Experts()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)

torch.manual_seed(100 + bps.rank())
choices = []
for _ in range(8):
    inputs, labels = torch.randn(4, 32) * 2, torch.randint(10, (4,))
    model.zero_grad(set_to_none=False)
    output, chosen = model(inputs)
    nn.functional.cross_entropy(output, labels).backward()
    optimizer.step()
    choices.append(float(chosen))
report(model, choices=choices)
