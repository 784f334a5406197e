"""Compiled functions over gradients and parameters, and a compiled step."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
models, seen = [], []


@torch.compile(backend="aot_eager")
def norm_of(grads):
    return torch.stack([g.norm() for g in grads]).norm()


@torch.compile(backend="aot_eager")
def clip(params):
    for p in params:
        p.grad.clamp_(-0.01, 0.01)


for kind in ("norm", "clip", "step", "step_fn"):
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 10)))
    params = list(ddp.parameters())
    optimizer = torch.optim.Adam(params, lr=1e-2)
    step = optimizer.step
    if kind == "step":
        step = torch.compile(optimizer.step, backend="aot_eager")
    elif kind == "step_fn":

        @torch.compile(backend="aot_eager", fullgraph=False)
        def step(optimizer=optimizer):
            optimizer.step()

    torch.manual_seed(100 + dist.get_rank())
    for _ in range(7):
        inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(ddp(inputs), labels)
        loss.backward()
        if kind == "norm":
            seen.append(norm_of([p.grad for p in params]).item())
        elif kind == "clip":
            clip(params)
        step()
        seen.append(loss.item())
    models.append(ddp)
report(models, seen=seen)
