"""All ways to clip by the norm of gradients, in turn: what is clipped, by what, and what is looked at besides."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 10))
ddp = DistributedDataParallel(model)
params = list(ddp.parameters())
optimizer = torch.optim.AdamW(params, lr=1e-2)

torch.manual_seed(100 + dist.get_rank())
seen = []


def raised(gradients):
    try:
        clip_grad_norm_(gradients, 0.3, error_if_nonfinite=True)
    except RuntimeError as error:
        return [str(error)]
    return []


for iteration in range(60):
    inputs, labels = torch.randn(16, 16), torch.randint(10, (16,))
    way = iteration % 20
    optimizer.zero_grad(set_to_none=iteration % 3 > 0)
    if way == 18:
        with ddp.no_sync():
            nn.functional.cross_entropy(ddp(inputs * 2), labels).backward()
    loss = nn.functional.cross_entropy(ddp(inputs), labels)
    if way == 11:
        loss = loss * (float("inf") if iteration == 11 else 1e30)
    loss.backward()
    if way in (0, 1, 2, 3):
        seen.append(clip_grad_norm_(ddp.parameters(), 0.3))
    elif way == 4:
        clip_grad_norm_(params, 1e9)  # which scales nothing
    elif way == 5:
        seen.append(clip_grad_norm_(params, 0.3, norm_type=float("inf")))
    elif way == 6:
        seen += [clip_grad_norm_(params[:2], 0.1), clip_grad_norm_(params[2:], 0.2)]
    elif way == 7:
        seen += [clip_grad_norm_(params, 0.3), clip_grad_norm_(params, 0.1)]
    elif way == 8:
        seen.append(clip_grad_norm_(params, 0.3))
        seen += [p.grad.sum() for p in params]
    elif way == 9:
        seen.append(params[-1].grad.norm())
        seen.append(clip_grad_norm_(params, 0.3))
    elif way == 10:
        seen.append(clip_grad_norm_(params, 0.3, foreach=False))
        params[0].grad *= 0.5
    elif way == 11:
        seen += raised(params)
        for p in params:
            p.grad = torch.zeros_like(p)
    elif way == 12:
        clip_grad_norm_(params, 0.3)
        optimizer.zero_grad()  # what was clipped goes, and the step is made with none
    elif way == 13:
        norm = nn.utils.get_total_norm([p.grad for p in params])
        nn.utils.clip_grads_with_norm_(params, 0.3, norm)
        seen.append(norm)
    elif way == 14:
        norm = clip_grad_norm_(params[0], 0.3)
        seen.append(norm)
    elif way == 15:
        with torch.enable_grad():
            seen.append(clip_grad_norm_(iter(params), torch.tensor(0.3)))
    elif way == 16:
        params[2].grad = None
        seen.append(clip_grad_norm_(params, 0.3))
    elif way == 17:
        seen.append(clip_grad_norm_([*params, params[0]], 0.3))
    elif way == 18:
        seen.append(clip_grad_norm_(params, 0.3))  # of two passes together
    elif way == 19:
        nn.functional.cross_entropy(ddp(inputs * 2), labels).backward()  # a second round on top of the first
        seen.append(clip_grad_norm_(params, 0.3))
    optimizer.step()
seen = [value.item() if isinstance(value, torch.Tensor) else value for value in seen]
report(ddp, state=optimizer.state_dict(), seen=seen)
