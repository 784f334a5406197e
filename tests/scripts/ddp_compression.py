"""The hook of torch that sends half precision, registered before and between steps."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
models, grads = [], []
for group in (None, dist.group.WORLD):
    model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
    ddp = DistributedDataParallel(model, find_unused_parameters=group is not None)
    ddp.register_comm_hook(group, default_hooks.fp16_compress_hook)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-2)
    torch.manual_seed(100 + dist.get_rank())
    for iteration in range(7):
        inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(inputs), labels).backward()
        if iteration == 5:
            grads += [p.grad.clone() for p in ddp.parameters()]
        optimizer.step()
    models.append(ddp)
ddp = DistributedDataParallel(nn.Linear(32, 10))
ddp.register_comm_hook(dist.group.WORLD, default_hooks.allreduce_hook)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
for _ in range(4):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(ddp(inputs), labels).backward()
    optimizer.step()
try:
    DistributedDataParallel(nn.Linear(3, 3)).register_comm_hook(None, default_hooks.bf16_compress_hook)
except TypeError as error:
    refused = str(error)
report([*models, ddp], grads=grads, refused=[refused, 1])
