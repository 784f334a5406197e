"""Process groups that the program destroys and makes again, each with a model of its own: no threads are left over.

With more than two ranks the mesh has two dimensions.
"""

import gc
import os
import threading
from pathlib import Path

import averaging  # noqa: F401
import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

GROUPS = 5
rank, ranks = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
weights, losses, threads = [], [], []
for number in range(GROUPS):
    meeting = Path("../meeting").resolve() / str(number)
    meeting.parent.mkdir(exist_ok=True)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    torch.manual_seed(number)
    mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("replicas", "shards")) if ranks > 2 else None
    layers = [fully_shard(nn.Linear(40, 40), mesh=mesh) for _ in range(4)]
    model = fully_shard(nn.Sequential(*layers, nn.Linear(40, 7)), mesh=mesh)
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
    del model, layers, mesh, optimizer, loss
    dist.destroy_process_group()
    gc.collect()
report(weights, losses=losses, left_over=threads[-1] - threads[1])
