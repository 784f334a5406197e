"""Stochastic weight averaging, batch statistics made anew, and a moving average of the wrapper."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 10))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)

torch.manual_seed(100 + dist.get_rank())
averaged = AveragedModel(model)
moving = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
scheduler = SWALR(optimizer, swa_lr=0.05, anneal_epochs=3)
seen = []
for iteration in range(8):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    seen.append(inputs)
    optimizer.zero_grad()
    nn.functional.cross_entropy(ddp(inputs), labels).backward()
    optimizer.step()
    moving.update_parameters(model)
    if iteration >= 3:
        averaged.update_parameters(model)
        scheduler.step()
update_bn(seen, averaged)
report([list(ddp.parameters()), list(moving.module.parameters())], averaged=averaged)
