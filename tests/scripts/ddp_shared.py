"""Two wrappers that share a module, used in one loss, in turns, and one within a checkpoint."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

dist.init_process_group("gloo")
torch.manual_seed(1)
shared = nn.Linear(32, 48)
first = DistributedDataParallel(nn.Sequential(shared, nn.ReLU(), nn.Linear(48, 10)))
second = DistributedDataParallel(nn.Sequential(shared, nn.Tanh(), nn.Linear(48, 10)), find_unused_parameters=True)
params = [*first.parameters(), *second.module[2].parameters()]
optimizer = torch.optim.Adam(params, lr=1e-2)

torch.manual_seed(100 + dist.get_rank())
losses = []
for iteration in range(12):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    if iteration % 3 == 0:
        loss = nn.functional.cross_entropy(first(inputs) + second(inputs), labels)
        loss.backward()
    else:
        chosen = (first, second)[iteration % 2]
        loss = nn.functional.cross_entropy(checkpoint(chosen.module[0], inputs, use_reentrant=False), labels)
        loss = loss + nn.functional.cross_entropy(chosen(inputs), labels)
        loss.backward()
    optimizer.step()
    losses.append(loss.item())
report([first, second], state=optimizer.state_dict(), losses=losses)
