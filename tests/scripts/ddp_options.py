"""The wrapper's other options: bucket sizes, gradients as views of buckets, no averaging of some."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
models, grads = [], []
for options in (
    {"bucket_cap_mb": 0.01},
    {"gradient_as_bucket_view": True},
    {"gradient_as_bucket_view": True, "find_unused_parameters": True},
    {"gradient_as_bucket_view": True, "static_graph": True},
    {"init_sync": False},
):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
    ddp = DistributedDataParallel(model, **options)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-2)
    torch.manual_seed(100 + dist.get_rank())
    for iteration in range(6):
        inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
        nn.functional.cross_entropy(ddp(inputs), labels).backward()
        if iteration == 3:
            nn.utils.clip_grad_norm_(ddp.parameters(), 0.1)
        grads += [p.grad.sum() for p in ddp.parameters()] if iteration == 4 else []
        optimizer.step()
        optimizer.zero_grad(set_to_none=iteration % 2 == 0)
    models.append(ddp)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["0.weight", "4.bias"])
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
for _ in range(5):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(ddp(inputs), labels).backward()
    optimizer.step()
report(models, grads=grads, ignored=ddp)
