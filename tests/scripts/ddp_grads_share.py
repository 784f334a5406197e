"""Gradients that are views of one tensor: of parameters that forward puts together, and of a flat buffer."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.packed = nn.Linear(32, 96, bias=False)
        self.q_bias, self.v_bias = nn.Parameter(torch.zeros(32)), nn.Parameter(torch.zeros(32))
        self.scales = nn.ParameterList([nn.Parameter(torch.tensor(1.0)) for _ in range(3)])
        self.head = nn.Linear(32, 10)

    def forward(self, inputs):
        bias = torch.cat([self.q_bias, torch.zeros(32), self.v_bias])
        q, k, v = (nn.functional.linear(inputs, self.packed.weight, bias)).chunk(3, 1)
        scales = torch.stack(list(self.scales))
        return self.head((q * k).softmax(1) * v * scales[0] + q * scales[1] + k * scales[2])


ddp = DistributedDataParallel(Attention())
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
flat_model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 10)))
params = list(flat_model.parameters())
flat = torch.zeros(sum(p.numel() for p in params))
for p, part in zip(params, flat.split([p.numel() for p in params]), strict=True):
    p.grad = part.view_as(p)
flat_optimizer = torch.optim.AdamW(params, lr=1e-2)

torch.manual_seed(100 + dist.get_rank())
losses, norms = [], []
for iteration in range(12):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(ddp(inputs), labels)
    loss.backward()
    if iteration % 3 == 0:
        norms.append(nn.utils.clip_grad_norm_(ddp.parameters(), 0.5).item())
    optimizer.step()
    if iteration % 3 == 1:
        norms += [p.grad.sum().item() for p in ddp.parameters()]
    losses.append(loss.item())
    flat.zero_()
    loss = nn.functional.cross_entropy(flat_model(inputs), labels)
    loss.backward()
    if iteration % 3 == 0:
        norms.append(flat.norm().item())
        flat.mul_(0.5)
    flat_optimizer.step()
    losses.append(loss.item())
report([ddp, flat_model], states=[optimizer.state_dict(), flat_optimizer.state_dict()], losses=losses, norms=norms)
