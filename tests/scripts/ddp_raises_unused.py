"""A parameter without a part in the loss: the next forward pass says so."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)


class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(32, 10), nn.Linear(3, 3)

    def forward(self, inputs):
        return self.used(inputs)


ddp = DistributedDataParallel(Half())
torch.manual_seed(100 + dist.get_rank())
inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
nn.functional.cross_entropy(ddp(inputs), labels).backward()
try:
    ddp(inputs)
    said = "nothing"
except RuntimeError as error:
    said = str(error)[:60]
report(list(ddp.parameters()), said=[said, 1])
