"""A PyTorch job of which worker 0 alone looks at what it learned, as one that saves its model does.

one_saves.py STEPS

Rule of this file: an ordinary program. It knows nothing of Prophet and runs in a process of its own.
"""

from __future__ import annotations

import hashlib
import sys

import byteps.torch as bps
import torch

WIDTH = 16384
"""An iteration's gradients are under way for longer than a process takes to end."""

bps.init()
torch.manual_seed(bps.rank())
model = torch.nn.Sequential(torch.nn.Linear(64, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, 64))
optimizer = bps.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
)
bps.broadcast_parameters(model.state_dict(), root_rank=0)
for _ in range(int(sys.argv[1])):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
if bps.rank() == 0:
    digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values()))
    print("weights", digest.hexdigest(), flush=True)
