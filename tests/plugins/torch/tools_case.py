"""A rank that trains under Prophet and prints what torch's own tools and its script see of it, for test_tools.py."""

from __future__ import annotations

import json
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import prophet_scheduler

asked_early = prophet_scheduler.status()
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)


def train(steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        ddp(torch.ones(4, 64)).sum().backward()
        optimizer.step()


train(6)
with torch.profiler.profile() as profiler:
    train(4)
    optimizer.state_dict()
seen = vars(torch._C._distributed_c10d)["_dump_fr_trace_json"]()
groups = {entry["process_group"][0] for entry in json.loads(seen)["entries"]}
pid = os.fork()
if not pid:
    os._exit(0 if prophet_scheduler.status() is None else 1)
says = {
    "early": asked_early,
    "status": prophet_scheduler.status(),
    "in a fork": os.waitpid(pid, 0)[1],
    "spans": sorted({event.name for event in profiler.events() if event.name.startswith("Prophet ")}),
    "groups": sorted(groups),
}
print(json.dumps(says))
dist.destroy_process_group()
