"""A model in double precision with parameters of its own in no standard layer, a scalar among them."""

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 256) * 0.1)
        self.mix = nn.Parameter(torch.randn(256, 10) * 0.1)
        self.scale = nn.Parameter(torch.tensor([1.0]))

    def forward(self, inputs):
        return self.scale * (inputs @ self.weight).sin() @ self.mix


model = Model().double()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)

torch.manual_seed(100 + bps.rank())
losses = []
for _ in range(6):
    inputs, labels = torch.randn(16, 32, dtype=torch.float64), torch.randint(10, (16,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
report(model, losses=losses)
