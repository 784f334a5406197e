"""A wrapper with a class of its own, through which the module's attributes are seen; and backward by name."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.autograd import backward
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)


class Transparent(DistributedDataParallel):
    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)


class Model(nn.Sequential):
    classes = 10


ddp = Transparent(Model(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 10)))
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)

torch.manual_seed(100 + dist.get_rank())
norms = []
for _ in range(8):
    inputs, labels = torch.randn(16, 32), torch.randint(ddp.classes, (16,))
    optimizer.zero_grad()
    backward(nn.functional.cross_entropy(ddp(inputs), labels))
    norms.append(ddp.module[0].weight.grad.norm().item())
    optimizer.step()
report(ddp, state=optimizer.state_dict(), norms=norms)
