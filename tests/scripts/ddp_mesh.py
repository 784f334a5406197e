"""A wrapper that is given a device mesh in the place of a process group."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
models, losses = [], []
for mesh in (init_device_mesh("cpu", (2,)), init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp"))["dp"]):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
    ddp = DistributedDataParallel(model, device_mesh=mesh)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(100 + dist.get_rank())
    for _ in range(7):
        inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(ddp(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    models.append(ddp)
report(models, losses=losses)
