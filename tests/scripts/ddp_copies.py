"""A deep copy of the module, of the wrapper and of the optimizer, and an average that follows."""

import copy
import io

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
ema = copy.deepcopy(model).requires_grad_(False)

torch.manual_seed(100 + dist.get_rank())
copies, losses = [], []
for iteration in range(8):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(ddp(inputs), labels)
    loss.backward()
    if iteration == 3:
        copies.append([p.grad for p in copy.deepcopy(model).parameters()])
    optimizer.step()
    losses.append(loss.item())
    with torch.no_grad():
        if iteration % 2:
            for ours, theirs in zip(ema.parameters(), model.parameters(), strict=True):
                ours.lerp_(theirs, 0.1)
        else:
            torch._foreach_lerp_(list(ema.parameters()), list(model.parameters()), 0.1)
    if iteration == 5:
        copies += [copy.deepcopy(model), copy.deepcopy(optimizer).state_dict()]
        twin = copy.deepcopy(ddp)
        buffer = io.BytesIO()
        torch.save(ddp, buffer)
        buffer.seek(0)
        loaded = torch.load(buffer, weights_only=False)
other = torch.optim.SGD([*twin.parameters(), *loaded.parameters()], lr=0.1)
for _ in range(3):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    nn.functional.cross_entropy(twin(inputs), labels).backward()
    nn.functional.cross_entropy(loaded(inputs), labels).backward()
    other.step()
report([ddp, ema, twin, loaded], copies=copies, losses=losses)
