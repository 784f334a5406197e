"""The script's own collectives on gradients and parameters, right after backward and after step."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
ddp = DistributedDataParallel(model)
params = list(ddp.parameters())
kept = [p.data for p in params]
optimizer = torch.optim.SGD(params, lr=0.1, momentum=0.9)

torch.manual_seed(100 + dist.get_rank())
seen = []
for iteration in range(14):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(ddp(inputs), labels).backward()
    rank = dist.get_rank()
    if iteration % 7 == 1:
        # As wrappers of a process group do it, past torch.distributed's own functions.
        for p in params[::2]:
            dist.group.WORLD.allreduce([p.grad]).wait()
        dist.group.WORLD.broadcast(params[1].grad, 1).wait()
    elif iteration % 7 == 2:
        for p in params:
            dist.all_reduce(p.grad, op=dist.ReduceOp.MAX)
    elif iteration % 7 == 3:
        for work in [dist.broadcast(p.grad, 1, async_op=True) for p in params]:
            work.wait()
    elif iteration % 7 == 4:
        every = [torch.empty_like(params[2]) for _ in range(2)]
        dist.all_gather(every, params[2].grad)
        seen += [each.sum().item() for each in every]
    optimizer.step()
    if iteration % 7 == 5:
        for p in params:
            dist.broadcast(p.detach() if p.ndim > 1 else p.data, 0)
        with torch.no_grad():
            dist.reduce(params[1], 0, op=dist.ReduceOp.MIN)
            dist.broadcast(params[1], 0)
    elif iteration % 7 == 6:
        if rank:
            dist.send(params[3], 0)
        else:
            received = torch.empty_like(params[3])
            dist.recv(received, 1)
            seen.append(received.sum().item())
        dist.group.WORLD.allreduce([kept[4]]).wait()
        kept[4] /= 2
        gathered = [None, None]
        dist.all_gather_object(gathered, params[5])
        seen += [each.sum().item() for each in gathered]
report(ddp, state=optimizer.state_dict(), seen=[*seen, 0.0])
