"""Any number of ranks: a model whose weights the test compares by value, since more than two round otherwise."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(32, 150), nn.Linear(150, 10)
        self.branches = nn.ModuleList([nn.Linear(150, 150) for _ in range(3)])

    def forward(self, inputs, chosen):
        hidden = self.stem(inputs).relu()
        return self.head(hidden + self.branches[chosen](hidden).relu())


models = []
for unused in (False, True):
    torch.manual_seed(1)
    ddp = DistributedDataParallel(Branches() if unused else nn.Linear(32, 10), find_unused_parameters=unused)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(100 + dist.get_rank())
    for iteration in range(6):
        inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
        optimizer.zero_grad()
        outputs = ddp(inputs, (dist.get_rank() + iteration) % 3 // 2) if unused else ddp(inputs)
        nn.functional.cross_entropy(outputs, labels).backward()
        optimizer.step()
    models.append(ddp)
torch.save(nn.utils.parameters_to_vector([p for model in models for p in model.parameters()]).detach(), "weights.pt")
report(models)
