"""Another thread shards the model and trains it. The main one runs an event loop, then reads what was kept of it."""

import asyncio

import averaging  # noqa: F401
import torch
import torch.distributed as dist
from report import report
from torch.distributed.fsdp import fully_shard
from ways import classifier, sgd, train

kept = {}


def trains():
    torch.manual_seed(1)
    model = classifier()
    for module in (*model[::2], model):
        fully_shard(module)
    params = list(model.parameters())
    optimizer = sgd(params)
    torch.manual_seed(100 + dist.get_rank())
    for _ in range(8):
        train(model, optimizer)
    kept.update(params=params, optimizer=optimizer)


async def main():
    await asyncio.to_thread(trains)
    params = kept["params"]
    seen = [float(param.detach().to_local().numpy().astype("float64").sum()) for param in params]
    seen += [param.grad.to_local().double().sum().item() for param in params]
    seen += [state["momentum_buffer"].to_local().double().sum().item() for state in kept["optimizer"].state.values()]
    report([param.full_tensor() for param in params], seen=seen)


dist.init_process_group("gloo")
asyncio.run(main())
dist.destroy_process_group()
