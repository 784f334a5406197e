"""torch refuses to swap parameters that DistributedDataParallel has; training goes on after that."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()


def made():
    torch.manual_seed(1)
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(100 + rank)
    return ddp, optimizer


def train(ddp, optimizer, steps=3):
    for _ in range(steps):
        optimizer.zero_grad()
        ddp(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()


def load(module):
    module.load_state_dict({name: value.clone() for name, value in module.state_dict().items()})


def swap(module):
    torch.utils.swap_tensors(module[0].weight, nn.Parameter(module[0].weight.detach().clone()))


def swap_in_accumulation(module):
    with ddp.no_sync():
        ddp(torch.randn(4, 8)).square().mean().backward()
    swap(module)


weights, said = [], []
for way in (load, nn.Module.double, swap, swap_in_accumulation):
    ddp, optimizer = made()
    train(ddp, optimizer)
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        way(ddp.module)
        said.append("nothing")
    except RuntimeError as error:
        said.append(str(error)[:60])
    torch.__future__.set_swap_module_params_on_conversion(False)
    train(ddp, optimizer)
    weights += list(ddp.parameters())
report(weights, said=[*said, 1])
dist.destroy_process_group()
