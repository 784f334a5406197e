"""A worker on CPU tensors: sums into new tensors, the same name for tensors of its own each time, and a small training.

Rule of this file: an ordinary program. It knows nothing of Prophet and runs in a process of its own.
"""

from __future__ import annotations

import byteps.torch as bps
import torch

bps.init()
for step in range(20):
    values = torch.full((30_000,), float(bps.rank() + step))  # whose memory comes and goes
    sums = bps.push_pull(values, average=False, name="sums")
    assert sums.eq(2 * step + 1).all(), (step, sums)
    assert values.eq(bps.rank() + step).all(), (step, values)
torch.manual_seed(bps.rank())
model = torch.nn.Sequential(torch.nn.Linear(64, 1024), torch.nn.Tanh(), torch.nn.Linear(1024, 64))
optimizer = bps.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
)
bps.broadcast_parameters(model.state_dict(), root_rank=0)
for _ in range(6):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
print("weights", [float(value.double().sum()).hex() for value in model.state_dict().values()], flush=True)
