"""A wrapper for each epoch, one optimizer for all; parameters alone are kept, and looked at when all else is gone."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")


def trained(make, epochs, iterations):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
    params = list(model.parameters())
    optimizer = make(params)
    torch.manual_seed(100 + dist.get_rank())
    for _ in range(epochs):
        ddp = DistributedDataParallel(model)
        for _ in range(iterations):
            optimizer.zero_grad()
            nn.functional.cross_entropy(ddp(torch.randn(16, 32)), torch.randint(10, (16,))).backward()
            optimizer.step()
    return params


makes = [
    lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    lambda params: torch.optim.AdamW(params, lr=1e-2),
    lambda params: torch.optim.RMSprop(params, lr=1e-3),
]
report([trained(make, epochs, 4) for make in makes for epochs in (1, 3)])
