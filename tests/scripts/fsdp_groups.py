"""Process groups that the program destroys and makes again, each with a model of its own: no threads are left over."""

import gc
import os
import threading
from pathlib import Path

import averaging  # noqa: F401
import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.fsdp import fully_shard

GROUPS = 5
rank, ranks = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
weights, losses, threads = [], [], []
for number in range(GROUPS):
    meeting = Path("../meeting").resolve() / str(number)
    meeting.parent.mkdir(exist_ok=True)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    torch.manual_seed(number)
    model = fully_shard(nn.Sequential(*(fully_shard(nn.Linear(40, 40)) for _ in range(4)), nn.Linear(40, 7)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(100 + rank)
    for _ in range(5):
        loss = nn.functional.cross_entropy(model(torch.randn(8, 40)), torch.randint(7, (8,)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    weights.append([param.full_tensor() for param in model.parameters()])
    threads.append(threading.active_count())
    del model, optimizer, loss
    dist.destroy_process_group()
    gc.collect()
report(weights, losses=losses, left_over=threads[-1] - threads[1])
