"""Any number of ranks: branches that some use, and clipping. The test compares by value, since more than two round."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import clip_grad_norm_, parameters_to_vector
from ways import batch, loss_of, run_ddp, train, way

found = []
"""Weights and norms of all ways."""


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(32, 150), nn.Linear(150, 10)
        self.branches = nn.ModuleList([nn.Linear(150, 150) for _ in range(3)])
        self.chosen = 0

    def forward(self, inputs):
        hidden = self.stem(inputs).relu()
        return self.head(hidden + self.branches[self.chosen](hidden).relu())


def keep(ddp, seen=()):
    found.extend([parameters_to_vector(ddp.parameters()).detach().clone(), *(value.reshape(1) for value in seen)])
    torch.save(torch.cat(found), "weights.pt")


@way(lambda: nn.Linear(32, 10))
def linear(ddp, optimizer):
    for _ in range(6):
        train(ddp, optimizer)
    keep(ddp)


@way(Branches, find_unused_parameters=True)
def branches(ddp, optimizer):
    for iteration in range(6):
        ddp.module.chosen = (dist.get_rank() + iteration) % 3 // 2
        train(ddp, optimizer)
    keep(ddp)


def words():
    inner = nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 32)
    return nn.Sequential(nn.Embedding(500, 16), *inner, nn.ReLU(), nn.Linear(32, 10))


@way(words)
def clipped(ddp, optimizer):
    """By norms, which are looked at."""
    params, seen = list(ddp.parameters()), []
    for iteration in range(80):
        optimizer.zero_grad(set_to_none=iteration % 3 > 0)
        loss_of(ddp, torch.randint(500, (16,)), batch()[1]).backward()
        case = iteration % 8
        looked_at = {2: params[:1], 3: params}.get(case, []) if dist.get_rank() == 0 else ()  # as a rank that logs does
        for param in looked_at:
            param.grad.norm().item()
        if case < 4:
            seen.append(clip_grad_norm_(params, 0.3))
        elif case == 4:
            seen.append(clip_grad_norm_(params, 0.3, norm_type=float("inf")))
        elif case == 5:
            seen += [clip_grad_norm_(params[:2], 0.1), clip_grad_norm_(params[2:], 0.2)]
        elif case == 6:
            seen.append(clip_grad_norm_(params, 0.3))
            seen += [p.grad.sum() for p in params]
        elif case == 7:
            seen += [clip_grad_norm_(params, 0.3), clip_grad_norm_(params, 0.1, norm_type=3.0)]
        optimizer.step()
    keep(ddp, seen)
    return [value.item() for value in seen]


run_ddp()
