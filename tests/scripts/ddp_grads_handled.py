"""`.grad` read, written, replaced, dropped and kept, before and after step()."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
ddp = DistributedDataParallel(model)
params = list(ddp.parameters())
optimizer = torch.optim.SGD(params, lr=0.1, momentum=0.9)

torch.manual_seed(100 + dist.get_rank())
seen = []
for iteration in range(16):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    loss = nn.functional.cross_entropy(ddp(inputs), labels)
    loss.backward()
    case = iteration % 8
    if case == 0:
        seen.append(params[0].grad[0, 0].item())
        params[1].grad.mul_(0.5)
    elif case == 1:
        params[2].grad = torch.ones_like(params[2])
        params[3].grad = params[3].grad * 2
    elif case == 2:
        params[0].grad = None
        params[-1].grad = None
    elif case == 3:
        # Taken away, and looked at and put back later.
        kept = [p.grad for p in params]
        for p in params:
            p.grad = None
        optimizer.step()
        for p, grad in zip(params, kept, strict=True):
            p.grad = grad
    elif case == 4:
        kept = [p.grad for p in params]
    elif case == 5:
        flat = torch.cat([p.grad.flatten() for p in params])
        seen.append(flat.norm().item())
    elif case == 6:
        vector = nn.utils.parameters_to_vector([p.grad for p in params])
        seen.append(vector.sum().item())
        with torch.no_grad():
            params[0].add_(params[0].grad, alpha=-0.01)
    elif case == 7:
        seen.append(sum(float(p.grad.numpy().sum()) for p in params))
    optimizer.step()
    optimizer.zero_grad()
    if case == 4:
        seen += [grad.sum().item() for grad in kept]
report(ddp, state=optimizer.state_dict(), seen=seen)
