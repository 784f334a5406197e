"""Process groups that the program destroys and makes again, each with a model of its own: no threads are left over.

With more than two ranks the mesh has two dimensions.
"""

import gc
import os
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from report import report
from sharded import adamw, layers, step
from torch.distributed.device_mesh import init_device_mesh

GROUPS = 5
rank, ranks = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
weights, losses, threads = [], [], []
for number in range(GROUPS):
    meeting = Path("../meeting").resolve() / str(number)
    meeting.parent.mkdir(exist_ok=True)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    torch.manual_seed(number)
    mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("replicas", "shards")) if ranks > 2 else None
    model = layers(mesh=mesh)
    optimizer = adamw(model.parameters())
    torch.manual_seed(100 + rank)
    losses += [step(model, optimizer) for _ in range(5)]
    weights.append([param.full_tensor() for param in model.parameters()])
    threads.append(threading.active_count())
    del model, mesh, optimizer
    dist.destroy_process_group()
    gc.collect()
report(weights, losses=losses, left_over=threads[-1] - threads[1])
