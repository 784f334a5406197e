"""Another thread makes the module and trains it. The main one waits for its end, then reads what was kept of it."""

import threading

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

kept = {}


def train():
    torch.manual_seed(1)
    ddp = DistributedDataParallel(nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)), nn.Linear(64, 7)))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(100 + dist.get_rank())
    for _ in range(16):
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(torch.randn(8, 64)), torch.randint(7, (8,))).backward()
        optimizer.step()
    kept.update(params=list(ddp.parameters()), states=optimizer.state)


dist.init_process_group("gloo")
thread = threading.Thread(target=train)
thread.start()
thread.join()
params = kept["params"]
seen = [float(param.detach().numpy().astype("float64").sum()) for param in params]
seen += [param.grad.double().sum().item() for param in params]
seen += [state["momentum_buffer"].double().sum().item() for state in kept["states"].values()]
report(params, seen=seen)
dist.destroy_process_group()
