"""Parameters in double, half and bfloat16, and all of them in one module."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(32, 48)
        self.second = nn.Linear(48, 64).double()
        self.third = nn.Linear(64, 48).to(torch.bfloat16)
        self.fourth = nn.Linear(48, 10).half()

    def forward(self, inputs):
        hidden = self.second(self.first(inputs.float()).relu().double()).relu()
        return self.fourth(self.third(hidden.to(torch.bfloat16)).relu().half())


models = []
for make in (
    lambda: nn.Linear(32, 10).double(),
    lambda: nn.Linear(32, 10).half(),
    lambda: nn.Linear(32, 10).to(torch.bfloat16),
    Mixed,
):
    ddp = DistributedDataParallel(make())
    dtype = next(ddp.parameters()).dtype
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(100 + dist.get_rank())
    for _ in range(6):
        inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(inputs.to(dtype)).float(), labels).backward()
        optimizer.step()
    models.append(ddp)
report(models)
