"""`.grad` written within backward, after the gradient has left, and between the passes of one round."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(32, 64), nn.Linear(32, 64)

    def forward(self, inputs):
        return self.first(inputs), self.second(inputs)


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, inputs, step):
        return torch.round(inputs / step) * step

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class Quantized(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(32, 32)
        self.step = nn.Parameter(torch.full((32,), 0.1))
        self.head = nn.Linear(32, 10)

    def forward(self, inputs):
        return self.head(Rounded.apply(self.body(inputs), self.step))


def small(module, *_):
    for p in module.parameters():
        if p.grad is not None:
            p.grad.clamp_(-1e-4, 1e-4)


model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
model[2].register_full_backward_hook(small)
model[4].register_full_backward_hook(small)
ddp, two, quantized = (
    DistributedDataParallel(model),
    DistributedDataParallel(Two()),
    DistributedDataParallel(Quantized()),
)
params = [*ddp.parameters(), *two.parameters(), *quantized.parameters()]
optimizer = torch.optim.AdamW(params, lr=1e-2, weight_decay=0.1)

torch.manual_seed(100 + dist.get_rank())
losses, absent = [], []
for iteration in range(8):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(ddp(inputs), labels)
    loss.backward()
    losses.append(loss.item())
    first, second = two(inputs)
    (first - 1).square().mean().backward()
    if iteration % 3 == 1:
        two.zero_grad(set_to_none=iteration % 2 == 0)
    elif iteration % 3 == 2:
        nn.utils.clip_grad_norm_(two.parameters(), 0.01)
    second.square().mean().backward()
    nn.functional.cross_entropy(quantized(inputs), labels).backward()
    absent.append([p.grad is None for p in params])
    optimizer.step()
report([ddp, two, quantized], state=optimizer.state_dict(), losses=losses, absent=[absent, 1])
