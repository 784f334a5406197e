"""A PyTorch job as a user writes one: a few steps of a small network, and the digest of what it learned.

small_job.py STEPS [WIDTH [RANK]]

With RANK that worker alone looks at what it learned, as one that saves its model does.

Rule of this file: an ordinary program. It knows nothing of Prophet and runs in a process of its own.
"""

from __future__ import annotations

import hashlib
import sys

import byteps.torch as bps
import torch

bps.init()
torch.manual_seed(bps.rank())
width = int(sys.argv[2]) if len(sys.argv) > 2 else 1024
model = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.Tanh(), torch.nn.Linear(width, 64))
optimizer = bps.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
)
bps.broadcast_parameters(model.state_dict(), root_rank=0)
for _ in range(int(sys.argv[1])):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
if len(sys.argv) <= 3 or bps.rank() == int(sys.argv[3]):
    digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values()))
    print("weights", digest.hexdigest(), flush=True)
