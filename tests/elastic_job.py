"""A PyTorch job that is suspended after every three steps and goes on, as BytePS's elastic training does.

elastic_job.py SUSPENSIONS

Rule of this file: an ordinary program. It knows nothing of Prophet and runs in a process of its own.
"""

from __future__ import annotations

import hashlib
import sys

import byteps.torch as bps
import torch

STEPS = 3  # an odd number: a round that was not begun anew would have the other of a gradient's two names

bps.init()
torch.manual_seed(bps.rank())
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 64))
optimizer = bps.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), named_parameters=model.named_parameters()
)
bps.broadcast_parameters(model.state_dict(), root_rank=0)
workers, rank = bps.size(), bps.rank()
for turn in range(int(sys.argv[1]) + 1):
    if turn > 0:
        bps.suspend()
        bps.resume(workers, 1, rank)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values()))
print("weights", digest.hexdigest(), flush=True)
