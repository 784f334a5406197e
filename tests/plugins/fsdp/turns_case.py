"""A rank of an FSDP2 job of two, in which iterations take a made-up time: python turns_case.py PROPHET_S OWN_S.

It prints how many iterations FSDP2's own collectives had, and how many function modes the last backward pass had. With
`fails` behind them, rank 1 fails within the backward pass that ends their first turn.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from prophet_fsdp.turns import BEFORE, LENGTH, OwnTurns

ITERATIONS = 50

_ends = OwnTurns.iteration_ends
_clock = _owned = 0.0
_modes = -1


def _slowed(self: OwnTurns, now: float) -> bool:
    global _clock, _owned
    _clock += float(sys.argv[1 + self.own])
    _owned += self.own
    return _ends(self, _clock)


def _note_modes(*_: object) -> None:
    global _modes
    _modes = torch._C._len_torch_function_stack()


def _fail(*_: object) -> None:
    raise ValueError("this backward pass fails")


OwnTurns.iteration_ends = _slowed  # type: ignore[method-assign]

if __name__ == "__main__":
    dist.init_process_group("gloo")
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    for module in (*model, model):
        fully_shard(module)
    model[0].register_full_backward_hook(_note_modes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for iteration in range(ITERATIONS):
        if iteration == BEFORE + LENGTH - 1 and dist.get_rank() == 1 and "fails" in sys.argv:
            model[1].register_full_backward_pre_hook(_fail)
        model(torch.ones(2, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    print(int(_owned), _modes)
    dist.destroy_process_group()
