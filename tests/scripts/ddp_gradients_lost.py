"""Gradients that DistributedDataParallel does not get: each rank goes on with its own, as torch leaves it."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()


def made(**options):
    torch.manual_seed(1)
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 4, bias=False)), **options)
    torch.manual_seed(100 + rank)
    return ddp


def train(ddp, steps=3):
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        ddp(torch.randn(4, 8).to(ddp.module[0].weight.dtype)).square().mean().backward()
        optimizer.step()


def assigned(module):
    module.load_state_dict(
        {name: nn.Parameter(value.clone()) for name, value in module.state_dict().items()}, assign=True
    )


def moved(module):
    for param in module.parameters():
        param.data = param.data.double()


def there_and_back(module):
    module.half().float()


def one_set_anew(module):
    """Its gradients count as unused from then on."""
    with torch.no_grad():
        module[1].weight.set_(module[1].weight.detach().clone())


def frozen(module):
    module.requires_grad_(False).requires_grad_(True)


def taken_away(module):
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(lambda param: setattr(param, "grad", None))


def stepped_in_hooks(module):
    optimizers = {param: torch.optim.SGD([param], lr=0.1) for param in module.parameters()}

    def step(param):
        optimizers[param].step()
        param.grad = None

    for param in module.parameters():
        param.register_post_accumulate_grad_hook(step)


ways = [assigned, moved, there_and_back, frozen, taken_away, stepped_in_hooks]
ends = []
for way in [*ways, one_set_anew]:
    ddp = made(find_unused_parameters=way is one_set_anew)
    train(ddp)
    way(ddp.module)
    train(ddp)
    ends.append([list(ddp.parameters()), [param.grad for param in ddp.parameters()]])
ddp = made()
for param, grad in zip(
    ddp.parameters(), torch.autograd.grad(ddp(torch.randn(4, 8)).mean(), ddp.parameters()), strict=True
):
    param.grad = grad
ends.append([param.grad for param in ddp.parameters()])
train(ddp)
report(ddp, ends=ends)
dist.destroy_process_group()
