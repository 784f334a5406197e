"""Lookahead: every second step the weights go half way back to slow ones, over the optimizer's groups."""

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)


class Lookahead:
    def __init__(self, optimizer, steps=2, alpha=0.5):
        self.optimizer, self.steps, self.alpha, self.count = optimizer, steps, alpha, 0
        self.slow = [[p.clone().detach() for p in group["params"]] for group in optimizer.param_groups]

    def step(self):
        self.optimizer.step()
        self.count += 1
        if self.count % self.steps == 0:
            for group, slow_weights in zip(self.optimizer.param_groups, self.slow, strict=True):
                for p, slow in zip(group["params"], slow_weights, strict=True):
                    slow.add_(p.data - slow, alpha=self.alpha)
                    p.data.copy_(slow)


model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)

torch.manual_seed(100 + bps.rank())
lookahead = Lookahead(optimizer)
for _ in range(6):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    lookahead.step()
report(model, slow=lookahead.slow)
