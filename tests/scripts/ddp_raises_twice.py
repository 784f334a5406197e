"""A parameter in two re-entrant parts of one graph, without static_graph."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

dist.init_process_group("gloo")
torch.manual_seed(1)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.block, self.head = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 10)

    def forward(self, inputs):
        hidden = checkpoint(self.block, self.stem(inputs), use_reentrant=True)
        return self.head(checkpoint(self.block, hidden, use_reentrant=True))


ddp = DistributedDataParallel(Twice())
torch.manual_seed(100 + dist.get_rank())
inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
try:
    nn.functional.cross_entropy(ddp(inputs), labels).backward()
    said = "nothing"
except RuntimeError as error:
    said = "once" if "only once" in str(error) else str(error)
report(list(ddp.parameters()), said=[said, 1])
