"""A PyTorch job that is suspended after every nine steps and goes on, as BytePS's elastic training does.

elastic_job.py SUSPENSIONS [RANK]

Where a rank is named, that worker is another one after each suspension: its process becomes a new one, which has never
trained, and the others give it their parameters. Each waits for the scheduler that is started anew, as whoever resumes
workers does: the last one may still be there for a moment, and who registers with that is lost.

Rule of this file: an ordinary program. It knows nothing of Prophet and runs in a process of its own.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from pathlib import Path

import byteps.torch as bps
import torch

STEPS = 9  # an odd number: a round that was not begun anew would have the other of a gradient's two names

turns = int(sys.argv[1]) + 1
replaced = int(sys.argv[2]) if len(sys.argv) > 2 else None
begun = int(os.environ.get("TURNS_BEGUN", "0"))

bps.init()
workers, rank = bps.size(), bps.rank()
torch.manual_seed(10 * begun + rank)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 64))
optimizer = bps.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
)
for turn in range(begun, turns):
    if turn > begun:
        bps.suspend()
        while int(Path(os.environ["SCHEDULERS_BEGUN"]).read_text()) <= turn:
            time.sleep(0.01)
        if rank == replaced:
            os.environ["TURNS_BEGUN"] = str(turn)
            os.execv(sys.executable, [sys.executable, "-P", *sys.argv])
        bps.resume(workers, 1, rank)
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values()))
print("weights", digest.hexdigest(), flush=True)
