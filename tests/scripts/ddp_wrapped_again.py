"""A module wrapped again: while the first wrapper lives, after it is gone, and for each epoch, with one optimizer."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from ways import classifier, train

dist.init_process_group("gloo")
losses, states = [], []


def some_steps(ddp):
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-2)
    losses.extend(train(ddp, optimizer) for _ in range(4))
    states.append(optimizer.state_dict())


torch.manual_seed(1)
model = classifier()
torch.manual_seed(100 + dist.get_rank())
first = DistributedDataParallel(model)
some_steps(first)
second = DistributedDataParallel(model)
some_steps(second)
some_steps(second)
del first, second
some_steps(DistributedDataParallel(model, find_unused_parameters=True))
half = DistributedDataParallel(nn.Sequential(*list(model)[:3]))
optimizer = torch.optim.SGD(half.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    half(torch.randn(16, 32)).square().mean().backward()
    optimizer.step()


def epochs(make, count):
    """Parameters alone are kept, and looked at when all else is gone."""
    torch.manual_seed(1)
    model = classifier()
    params = list(model.parameters())
    optimizer = make(params)
    torch.manual_seed(100 + dist.get_rank())
    for _ in range(count):
        ddp = DistributedDataParallel(model)
        for _ in range(4):
            train(ddp, optimizer)
    return params


makes = [
    lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    lambda params: torch.optim.AdamW(params, lr=1e-2),
    lambda params: torch.optim.RMSprop(params, lr=1e-3),
]
report([model, *(epochs(make, count) for make in makes for count in (1, 3))], losses=losses, states=states)
