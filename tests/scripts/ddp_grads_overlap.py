"""Gradients in one memory: of two parameters, of parts of one buffer that overlap, and where some are unused."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")


def train(lend, **options):
    """Return the model and its losses; `lend(params)` puts the gradients in place before each backward pass."""
    torch.manual_seed(1)
    layers = *(nn.Linear(64, 64) for _ in range(4)), nn.Linear(64, 10)
    ddp = DistributedDataParallel(nn.Sequential(*layers), **options)
    params = list(ddp.parameters())
    optimizer = torch.optim.SGD(params, lr=0.02, momentum=0.9)
    torch.manual_seed(100 + dist.get_rank())
    losses, norms = [], []
    for iteration in range(8):
        lend(params)
        loss = nn.functional.cross_entropy(ddp(torch.randn(16, 64)), torch.randint(10, (16,)))
        loss.backward()
        if iteration % 3 == 0:
            norms += [params[2].grad.norm().item(), params[6].grad.norm().item()]
        optimizer.step()
        losses.append(loss.item())
    return [ddp, losses, norms, optimizer.state_dict()]


def one_tensor(params):
    params[0].grad = params[4].grad = torch.zeros_like(params[0])
    params[1].grad = params[7].grad = torch.zeros_like(params[1])


def one_memory(params):
    memory = torch.zeros_like(params[0])
    for param in (params[2], params[6], params[4]):
        param.grad = memory.view_as(param)


def overlapping(params):
    count = params[0].numel()
    memory = torch.zeros(2 * count)
    for param, start in zip(params[0:8:2], (0, count // 3, count // 2, count), strict=True):
        param.grad = memory[start : start + count].view_as(param)


runs = {}
for lend in (one_tensor, one_memory, overlapping):
    runs[lend.__name__] = train(lend)
    runs[f"{lend.__name__} unused"] = train(lend, find_unused_parameters=True, bucket_cap_mb=0.03)
    runs[f"{lend.__name__} static"] = train(lend, static_graph=True)
    runs[f"{lend.__name__} buckets"] = train(lend, bucket_cap_mb=0.03)
report([run[0] for run in runs.values()], **{name: run[1:] for name, run in runs.items()})
