"""Two optimizers over one module, and one over two modules and a parameter outside of both."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
ddp = DistributedDataParallel(model)
weights = torch.optim.Adam([p for p in ddp.parameters() if p.ndim > 1], lr=1e-2)
biases = torch.optim.SGD([p for p in ddp.parameters() if p.ndim == 1], lr=0.1)
every = torch.optim.SGD(ddp.parameters(), lr=1e-3)
first = DistributedDataParallel(nn.Linear(32, 48))
second = DistributedDataParallel(nn.Linear(48, 10))
temperature = nn.Parameter(torch.ones(1))
joint = torch.optim.AdamW(
    [{"params": first.parameters(), "lr": 1e-2}, {"params": [temperature, *second.parameters()]}], lr=1e-3
)

torch.manual_seed(100 + dist.get_rank())
losses = []
for iteration in range(8):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    loss = nn.functional.cross_entropy(ddp(inputs), labels)
    other = nn.functional.cross_entropy(second(first(inputs).relu()) * temperature, labels)
    for optimizer in (weights, biases, joint):
        optimizer.zero_grad()
    loss.backward()
    other.backward()
    dist.all_reduce(temperature.grad)
    biases.step()
    weights.step()
    if iteration % 2:
        every.step()
    joint.step()
    losses += [loss.item(), other.item()]
states = [optimizer.state_dict() for optimizer in (weights, biases, joint)]
report([ddp, first, second, temperature], states=states, losses=losses)
