"""A PyTorch job that forks at random moments of its step: each child evaluates the model and answers through a pipe.

forks.py COUNT

Rule of this file: an ordinary program. It forks in its own thread, as data loaders do: a child of another thread may
find locks of torch's own taken, with or without Prophet. A child that does not answer writes where its threads are, and
the job ends with status 1.
"""

from __future__ import annotations

import faulthandler
import os
import random
import select
import sys
import time

import byteps.torch as bps
import torch
from torch import nn

LIMIT_S = 60.0
count = int(sys.argv[1])
bps.init()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)
held_out = torch.randn(64, 32)
random.seed(bps.rank())


def fork() -> None:
    """A child that evaluates, and its answer; after a moment in which Prophet and BytePS go on."""
    time.sleep(random.choice((0.0, random.random() * 0.01)))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(LIMIT_S, exit=True)
        with torch.no_grad():
            score = model(held_out).logsumexp(1).mean().item()
        os.write(writing, f"{score}\n".encode())
        os._exit(0)
    os.close(writing)
    answered, _, _ = select.select([reading], [], [], LIMIT_S + 10)
    said = os.read(reading, 100) if answered else b""
    os.close(reading)
    if not said.endswith(b"\n"):
        print("a child did not answer", flush=True)
        os._exit(1)
    os.waitpid(child, 0)


torch.manual_seed(100 + bps.rank())
for number in range(count):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), labels)
    when = random.choice(("backward", "before step", "step"))
    if when == "backward":
        loss.register_hook(lambda _: fork())
    loss.backward()
    if when == "before step":
        fork()
    optimizer.step()
    if when == "step":
        fork()
    if number % 500 == 499:
        print("forks", number + 1, flush=True)
print("all forks", flush=True)
