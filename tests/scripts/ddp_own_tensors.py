"""Parameters of a tensor class of the user's own."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)


class Tagged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


class Kind(nn.Parameter):
    pass


class Layer(nn.Module):
    def __init__(self, ins, outs, make):
        super().__init__()
        self.weight = make(torch.randn(outs, ins) / 8)
        self.bias = nn.Parameter(torch.zeros(outs))

    def forward(self, inputs):
        return nn.functional.linear(inputs, self.weight, self.bias)


models, losses = [], []
for make in (lambda t: nn.Parameter(t.as_subclass(Tagged)), lambda t: Kind(t)):
    model = nn.Sequential(Layer(32, 96, make), nn.ReLU(), Layer(96, 10, make))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-2)
    torch.manual_seed(100 + dist.get_rank())
    for iteration in range(8):
        inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(ddp(inputs), labels)
        loss.backward()
        if iteration % 3 == 1:
            nn.utils.clip_grad_norm_(ddp.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    models.append([p.detach().as_subclass(torch.Tensor) for p in ddp.parameters()])
report(models, losses=losses)
