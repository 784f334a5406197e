"""Gradients of another type than their parameters, which torch refuses: from the start, and in mid-training."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
models, raised = [], []
for first in (0, 2):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).bfloat16()
    ddp = DistributedDataParallel(model)
    torch.manual_seed(100 + dist.get_rank())
    for iteration in range(4):
        if iteration == first:
            for param in model.parameters():
                param.grad_dtype = torch.float32
        try:
            ddp(torch.randn(4, 8).bfloat16()).square().mean().backward()
        except RuntimeError as error:
            raised.append([iteration, str(error).splitlines()[0]])
            break
        with torch.no_grad():
            for param in model.parameters():
                param.sub_(param.grad.to(param.dtype), alpha=0.1)
                param.grad = None
    models.append(model)
report(models, raised=raised)
