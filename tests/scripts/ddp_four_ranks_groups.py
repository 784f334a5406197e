"""Two groups of two ranks, each with a module of its own; and two other groups across them."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
near, _ = dist.new_subgroups(2)
far, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
torch.manual_seed(10 + dist.get_rank() // 2)
first = DistributedDataParallel(nn.Linear(32, 48), process_group=near)
torch.manual_seed(20 + dist.get_rank() % 2)
second = DistributedDataParallel(nn.Sequential(nn.ReLU(), nn.Linear(48, 10)), process_group=far)
optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()], lr=1e-2)

torch.manual_seed(100 + dist.get_rank())
losses = []
for _ in range(8):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(second(first(inputs)), labels)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
mine = nn.utils.parameters_to_vector([*first.parameters(), *second.parameters()]).detach()
every = [torch.empty_like(mine) for _ in range(4)]
dist.all_gather(every, mine)
report(every, losses=losses)
