"""Sixty models that are made, trained for a few iterations and dropped, whose gradients are clipped by the norm of all:
none is left, nor anything that was made for one, though garbage is never collected.
"""

import gc
import time
import weakref

import psutil  # noqa: F401  Prophet imports it after some seconds, and its objects are of no model.
import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")


def trained(trial):
    torch.manual_seed(trial)
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 10)))
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.01)
    torch.manual_seed(100 * trial + dist.get_rank())
    for _ in range(1 + trial % 5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(torch.randn(8, 16)), torch.randint(10, (8,))).backward()
        nn.utils.clip_grad_norm_(ddp.parameters(), 0.3)
        optimizer.step()
    looked_at = sum(param.sum().item() for param in ddp.parameters()) if trial % 2 else 0.0
    return looked_at, [weakref.ref(part) for part in (ddp, ddp.module, ddp.module[2], optimizer)]


def made():
    """Objects of classes, without numbers, containers and the like."""
    return sum(type(value).__module__ not in ("builtins", "weakref", "_thread") for value in gc.get_objects())


trained(0)  # Of the first one torch keeps something.
gc.collect()
gc.disable()
logged, alive, objects = [], [], []
for trial in range(1, 61):
    weights, references = trained(trial)
    logged.append(weights)
    alive.append([reference() is not None for reference in references])
    objects.append(made())
# Something may still be on its way, or wait for a thread of somebody's to come round.
began = time.monotonic()
while (left := made()) > min(objects[5:10]) + 100 and time.monotonic() < began + 30:
    time.sleep(0.01)
print("alive", alive, "objects", objects, "and in the end", left)
report(logged, alive=[sum(map(sum, alive))], flat=[left <= min(objects[5:10]) + 100])
