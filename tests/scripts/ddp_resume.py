"""Everything saved in mid-training and loaded into new objects, which go on."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)


def build():
    model = nn.Sequential(nn.Linear(32, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 10))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-2)
    return ddp, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


def train(ddp, optimizer, scheduler, iterations):
    for _ in range(iterations):
        inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(inputs), labels).backward()
        optimizer.step()
        scheduler.step()


job = build()
torch.manual_seed(100 + dist.get_rank())
train(*job, 5)
torch.save([part.state_dict() for part in job], "checkpoint.pt")
torch.save(job[1], "optimizer.pt")
train(*job, 2)
for part, state in zip(job, torch.load("checkpoint.pt"), strict=True):
    part.load_state_dict(state)
train(*job, 3)
fresh = build()
for part, state in zip(fresh, torch.load("checkpoint.pt"), strict=True):
    part.load_state_dict(state)
train(*fresh, 4)
whole = torch.load("optimizer.pt", weights_only=False)
assert type(whole) is torch.optim.Adam, type(whole)
parts = [part.state_dict() for part in (*job[1:], *fresh[1:], whole)]
report([list(job[0].parameters()), list(fresh[0].parameters())], parts=parts, buffers=list(job[0].buffers()))
