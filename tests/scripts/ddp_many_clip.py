"""Any number of ranks: gradients clipped by their norm, and looked at. The test compares weights and norms by value."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

dist.init_process_group("gloo")
torch.manual_seed(1)
inner = nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 32)
model = nn.Sequential(nn.Embedding(500, 16), *inner, nn.ReLU(), nn.Linear(32, 1))
ddp = DistributedDataParallel(model)
params = list(ddp.parameters())
optimizer = torch.optim.SGD(params, lr=0.1, momentum=0.9)

torch.manual_seed(100 + dist.get_rank())
seen = []
for iteration in range(40):
    inputs, targets = torch.randint(500, (16,)), torch.randn(16, 1)
    optimizer.zero_grad(set_to_none=iteration % 3 > 0)
    nn.functional.mse_loss(ddp(inputs), targets).backward()
    way = iteration % 8
    for param in {2: params[:1], 3: params}.get(way, []) if dist.get_rank() == 1 else ():  # As a rank that logs does.
        param.grad.norm().item()
    if way < 4:
        seen.append(clip_grad_norm_(params, 0.3))
    elif way == 4:
        seen.append(clip_grad_norm_(params, 0.3, norm_type=float("inf")))
    elif way == 5:
        seen += [clip_grad_norm_(params[:2], 0.1), clip_grad_norm_(params[2:], 0.2)]
    elif way == 6:
        seen.append(clip_grad_norm_(params, 0.3))
        seen += [p.grad.sum() for p in params]
    elif way == 7:
        seen += [clip_grad_norm_(params, 0.3), clip_grad_norm_(params, 0.1, norm_type=3.0)]
    optimizer.step()
torch.save(torch.cat([nn.utils.parameters_to_vector(params).detach(), torch.stack(seen)]), "weights.pt")
report(ddp, seen=[value.item() for value in seen])
