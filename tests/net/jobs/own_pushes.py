"""A PyTorch job that pushes tensors itself, and says in how many partitions each went, where Prophet's hook is on.

own_pushes.py [LIVES]

Rule of this file: an ordinary program, but for what it says. With LIVES it suspends BytePS and resumes it so often.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import byteps.torch as bps
import torch

BYTES = 2 << 20
BEGUN = Path(os.environ["SCHEDULERS_BEGUN"])


def pushes() -> int:
    from prophet_byteps import hook

    loaded = hook.loaded()
    return loaded.status().tasks // 2 if loaded is not None else 0  # each is a push and a pull


def push(name: str, value: float, **how: int) -> None:
    before = pushes()
    tensor = torch.full((BYTES // 4,), value)
    bps.synchronize(bps.byteps_push_pull(tensor, average=False, name=name, **how))
    assert torch.equal(tensor, torch.full((BYTES // 4,), value * bps.size())), name
    print("partitions", name, pushes() - before, flush=True)


def life(first: bool) -> None:
    push("urgent", 1.0, priority=-3)
    push("plain", 2.0)
    push("urgent", 3.0)  # the size is that of the first push
    push("zero", 4.0, priority=0)
    if first:
        push("plain", 5.0, priority=-1)


bps.init()
rank = bps.rank()
life(first=True)
for number in range(int(sys.argv[1]) if len(sys.argv) > 1 else 0):
    bps.suspend()
    while not BEGUN.exists() or int(BEGUN.read_text()) < number + 2:
        time.sleep(0.05)
    bps.resume(2, 1, rank)
    push("plain", 6.0, priority=-1)  # nothing has been pushed yet, so it has a size of its own now
    life(first=False)
