"""An asynchronous job as a user writes one: apart.py STEPS. It prints each step, and at last what its rounds came to.

Rule of this file: an ordinary program, in a process of its own. Every worker has its share of the samples of a linear
regression, and computes for a few milliseconds, one of them longer. The line `counts` has what was sent, dropped and
sent without a grant, with how many updates the job began, and which updates of each worker the model has.
"""

from __future__ import annotations

import json
import sys
import time

import byteps.torch as bps
import torch

SIZE = 192
SAMPLES = 8
RATE = 0.05


def shares(workers: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Each worker's inputs and targets; the same on all of them."""
    noise = torch.Generator().manual_seed(0)
    inputs = torch.randn(workers * SAMPLES, SIZE, generator=noise)
    targets = torch.randn(workers * SAMPLES, SIZE, generator=noise)
    return list(zip(inputs.split(SAMPLES), targets.split(SAMPLES), strict=True))


def made() -> tuple[torch.nn.Linear, torch.optim.Optimizer]:
    torch.manual_seed(7)
    model = torch.nn.Linear(SIZE, SIZE, bias=False)
    return model, torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.5)


def main() -> None:
    steps = int(sys.argv[1])
    torch.set_num_threads(1)
    bps.init()
    rank, workers = bps.rank(), bps.size()
    model, plain = made()
    optimizer = bps.DistributedOptimizer(plain, named_parameters=model.named_parameters())
    rounds = optimizer.asynchronous
    inputs, targets = shares(workers)[rank]
    for step in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        time.sleep(0.05 if rank == 2 else 0.01)
        optimizer.step()
        print("step", step, flush=True)
    tally = rounds.tally
    counts = {
        "sent": tally.sent,
        "dropped": tally.dropped,
        "uncoordinated": tally.uncoordinated,
        "resumed": rounds.resumed,
        "of": list(rounds.blocks.counts(0)[:-1]),
    }
    print("counts", json.dumps(counts), flush=True)


if __name__ == "__main__":
    main()
