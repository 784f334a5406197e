"""Another thread runs each backward pass. The main one reads gradients and weights, and makes the steps."""

import threading

import averaging  # noqa: F401
import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(1)
model = fully_shard(nn.Sequential(*(fully_shard(nn.Linear(64, 64)) for _ in range(4)), nn.Linear(64, 7)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
torch.manual_seed(100 + dist.get_rank())
seen = []
for _ in range(8):
    loss = nn.functional.cross_entropy(model(torch.randn(8, 64)), torch.randint(7, (8,)))
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    seen += [param.grad.to_local().double().sum().item() for param in model.parameters()]
    optimizer.step()
    seen += [param.detach().to_local().double().sum().item() for param in model.parameters()]
    optimizer.zero_grad()
report([param.full_tensor() for param in model.parameters()], seen=seen)
dist.destroy_process_group()
