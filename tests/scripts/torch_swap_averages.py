"""Averaged weights swapped in for evaluation and out again, over the optimizer's groups (as EMA helpers do)."""

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
shadow = {p: p.detach().clone() for group in optimizer.param_groups for p in group["params"]}
scores = []
for _ in range(6):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    with torch.no_grad():
        for p, average in shadow.items():
            average.lerp_(p, 0.2)
        backup = {p: p.clone() for p in shadow}
        for p, average in shadow.items():
            p.copy_(average)
        scores.append(model(inputs).logsumexp(1).mean().item())
        for p, old in backup.items():
            p.copy_(old)
report(model, scores=scores, shadow=list(shadow.values()))
