"""Another thread shards the model and trains it. The main one runs an event loop, then reads what was kept of it."""

import asyncio

import averaging  # noqa: F401
import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.fsdp import fully_shard

kept = {}


def train():
    torch.manual_seed(1)
    model = fully_shard(nn.Sequential(*(fully_shard(nn.Linear(64, 64)) for _ in range(4)), nn.Linear(64, 7)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(100 + dist.get_rank())
    for _ in range(8):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.randn(8, 64)), torch.randint(7, (8,))).backward()
        optimizer.step()
    kept.update(params=list(model.parameters()), states=optimizer.state)


async def main():
    await asyncio.to_thread(train)
    params = kept["params"]
    seen = [float(param.detach().to_local().numpy().astype("float64").sum()) for param in params]
    seen += [param.grad.to_local().double().sum().item() for param in params]
    seen += [state["momentum_buffer"].to_local().double().sum().item() for state in kept["states"].values()]
    report([param.full_tensor() for param in params], seen=seen)


dist.init_process_group("gloo")
asyncio.run(main())
dist.destroy_process_group()
