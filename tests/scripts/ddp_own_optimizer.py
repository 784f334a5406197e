"""An optimizer of the user's own that reads p.grad.data, and a plain loop that reads p.grad."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad = p.grad.data
                moment = self.state[p].setdefault("moment", torch.zeros_like(p.data))
                p.data.add_(torch.sign(0.9 * moment + 0.1 * grad), alpha=-group["lr"])
                moment.mul_(0.99).add_(grad, alpha=0.01)


class Decayed(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.data.mul_(0.999)
        return super().step(closure)


models = []
for make in (lambda params: Lion(params, lr=1e-3), lambda params: Decayed(params, lr=0.1, momentum=0.9), None):
    model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 10))
    ddp = DistributedDataParallel(model)
    optimizer = make and make(ddp.parameters())
    torch.manual_seed(100 + dist.get_rank())
    for _ in range(6):
        inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
        ddp.zero_grad()
        nn.functional.cross_entropy(ddp(inputs), labels).backward()
        if optimizer:
            optimizer.step()
        else:
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad
    models.append(ddp)
report(models)
