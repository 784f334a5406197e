"""Optimizers of the user's own that keep torch's step() and have other methods of their own."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
norms = []


class Old(torch.optim.SGD):
    def zero_grad(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.zero_()

    def state_dict(self, full=True):
        return super().state_dict()


class Noted(torch.optim.Adam):
    def zero_grad(self, *args, **kwargs):
        for group in self.param_groups:
            norms.extend(p.grad.norm().item() for p in group["params"] if p.grad is not None)
            norms.extend(p.norm().item() for p in group["params"])
        super().zero_grad(*args, **kwargs)

    def load_state_dict(self, state_dict, strict=True):
        super().load_state_dict(state_dict)


models, states = [], []
for make in (Old, Noted):
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 10)))
    optimizer = make(ddp.parameters(), lr=1e-2)
    torch.manual_seed(100 + dist.get_rank())
    for iteration in range(6):
        inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(inputs), labels).backward()
        optimizer.step()
        if iteration == 3 and make is Noted:
            optimizer.load_state_dict(optimizer.state_dict(), strict=False)
    models.append(ddp)
    states.append(optimizer.state_dict(full=False) if make is Old else optimizer.state_dict())
report(models, states=states, norms=norms)
