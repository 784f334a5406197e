"""Clipping by norm and by value where gradients travel in half precision, or are divided by a hook."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

dist.init_process_group("gloo")
models, seen = [], []
for hook in (default_hooks.fp16_compress_hook, default_hooks.allreduce_hook):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 10))
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(None, hook)
    params = list(ddp.parameters())
    optimizer = torch.optim.SGD(params, lr=0.1, momentum=0.9)
    torch.manual_seed(100 + dist.get_rank())
    for iteration in range(24):
        inputs, labels = torch.randn(16, 16), torch.randint(10, (16,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(inputs), labels).backward()
        if iteration % 4 == 3:
            nn.utils.clip_grad_value_(params, 0.01)
        else:
            seen.append(clip_grad_norm_(params, 0.3))
        if iteration % 4 > 1:
            seen += [p.grad.abs().max() for p in params[:2]]
            params[0].grad *= 0.5
        optimizer.step()
    models.append(ddp)
torch.save(nn.utils.parameters_to_vector([p for ddp in models for p in ddp.parameters()]).detach(), "weights.pt")
report(models, seen=[value.item() for value in seen])
