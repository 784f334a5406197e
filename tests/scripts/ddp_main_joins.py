"""Another thread makes the module and trains it. The main one waits for its end, then reads what was kept of it."""

import threading

import torch
import torch.distributed as dist
from report import report
from torch.nn.parallel import DistributedDataParallel
from ways import classifier, sgd, train

kept = {}


def trains():
    torch.manual_seed(1)
    ddp = DistributedDataParallel(classifier())
    params = list(ddp.parameters())
    optimizer = sgd(params)
    torch.manual_seed(100 + dist.get_rank())
    for _ in range(12):
        train(ddp, optimizer)
    kept.update(params=params, optimizer=optimizer)


dist.init_process_group("gloo")
thread = threading.Thread(target=trains)
thread.start()
thread.join()
params = kept["params"]
seen = [float(param.detach().numpy().astype("float64").sum()) for param in params]
seen += [param.grad.double().sum().item() for param in params]
seen += [state["momentum_buffer"].double().sum().item() for state in kept["optimizer"].state.values()]
report(params, seen=seen)
dist.destroy_process_group()
