"""What torch refuses, each time with another module: unused and repeated parameters, and gradients of another type."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

dist.init_process_group("gloo")


class Half(nn.Module):
    """A parameter has no part in the loss: the next forward pass says so."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(32, 10), nn.Linear(3, 3)

    def forward(self, inputs):
        return self.used(inputs)


class Twice(nn.Module):
    """A parameter is in two re-entrant parts of one graph, without static_graph."""

    def __init__(self):
        super().__init__()
        self.stem, self.block, self.head = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 10)

    def forward(self, inputs):
        hidden = checkpoint(self.block, self.stem(inputs), use_reentrant=True)
        return self.head(checkpoint(self.block, hidden, use_reentrant=True))


models, said = [], []
for make, words in ((Half, slice(60)), (Twice, slice(0))):
    torch.manual_seed(1)
    ddp = DistributedDataParallel(make())
    torch.manual_seed(100 + dist.get_rank())
    try:
        for _ in range(2):
            nn.functional.cross_entropy(ddp(torch.randn(16, 32)), torch.randint(10, (16,))).backward()
        said.append("nothing")
    except RuntimeError as error:
        said += [str(error)[words], "only once" in str(error)]
    models.append(ddp)

for first in (0, 2):  # from the start, and in mid-training
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).bfloat16()
    ddp = DistributedDataParallel(model)
    torch.manual_seed(100 + dist.get_rank())
    for iteration in range(4):
        if iteration == first:
            for param in model.parameters():
                param.grad_dtype = torch.float32
        try:
            ddp(torch.randn(4, 8).bfloat16()).square().mean().backward()
        except RuntimeError as error:
            said.append([iteration, str(error).splitlines()[0]])
            break
        with torch.no_grad():
            for param in model.parameters():
                param.sub_(param.grad.to(param.dtype), alpha=0.1)
                param.grad = None
    models.append(model)
report(models, said=said)
