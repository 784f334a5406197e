"""A model of three branches that are put together, trained as users train, and the digest of what it learned.

branches.py STEPS

Rule of this file: an ordinary program. It knows nothing of Prophet and runs in a process of its own.
"""

from __future__ import annotations

import hashlib
import sys

import byteps.torch as bps
import torch
from torch import nn


class Branches(nn.Module):
    """The first layer is registered last."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(64, 256, bias=False) for _ in range(3))
        self.together = nn.Linear(768, 16, bias=False)
        self.first = nn.Linear(32, 64, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        flow = self.first(inputs).tanh()
        result: torch.Tensor = self.together(torch.cat([branch(flow).tanh() for branch in self.branches], 1))
        return result


bps.init()
torch.manual_seed(bps.rank())
model = Branches()
optimizer = bps.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), named_parameters=model.named_parameters()
)
bps.broadcast_parameters(model.state_dict(), root_rank=0)
for _ in range(int(sys.argv[1])):
    optimizer.zero_grad()
    model(torch.randn(8, 32)).square().mean().backward()
    optimizer.step()
digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values()))
print("weights", digest.hexdigest(), flush=True)
