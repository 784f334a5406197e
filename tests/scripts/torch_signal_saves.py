"""A signal's handler that keeps a copy of model and optimizer, as jobs do that are told to leave a machine: it comes
every few milliseconds, wherever training is just then.
"""

import copy
import itertools
import signal

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
copies, shapes, over = [], set(), False


def save(*_):
    kept = optimizer.state_dict()
    shapes.add(tuple(len(group["params"]) for group in kept["param_groups"]))
    copies.append((copy.deepcopy(model.state_dict()), copy.deepcopy(kept)))
    del copies[:-2]
    if not over:
        signal.setitimer(signal.ITIMER_REAL, next(pauses))


pauses = itertools.cycle([0.001, 0.0023, 0.0017, 0.0041, 0.0005])
signal.signal(signal.SIGALRM, save)
signal.setitimer(signal.ITIMER_REAL, next(pauses))
torch.manual_seed(100 + bps.rank())
for _ in range(40):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
over = True  # one that has come, and is not handled yet, begins no other
signal.setitimer(signal.ITIMER_REAL, 0)
state = optimizer.state_dict()["state"]
report(model, moments=[state[number]["exp_avg"] for number in sorted(state)], shapes=sorted(shapes))
