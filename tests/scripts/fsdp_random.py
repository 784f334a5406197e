"""Random programs over FSDP2 and replicate(), drawn as in drawn_fsdp.py, each from its number."""

import os
import random

import averaging  # noqa: F401
import torch
from drawn import OPTIMIZERS
from drawn_fsdp import OverFSDP, build
from ways import run_fsdp, way

FIRST, PROGRAMS = int(os.environ.get("FIRST", "0")), int(os.environ.get("PROGRAMS", "12"))
MAKE = OPTIMIZERS | {
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=2e-2),
    "adamw": lambda params: torch.optim.AdamW(params, lr=1e-2, foreach=False),
    "largest": lambda params: torch.optim.Adam(params, lr=torch.tensor(1e-2), amsgrad=True, weight_decay=1e-3),
    "nesterov": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.8, nesterov=True, foreach=True),
}


def add(number):
    """Add a program to the ways of this script."""
    draws = random.Random(number)
    make = MAKE[draws.choice(sorted(MAKE))]

    def program(model, optimizer):
        return OverFSDP(model, optimizer, make, draws).run()

    program.__name__ = f"program_{number}"
    way(lambda: build(draws), make)(program)


for number in range(FIRST, FIRST + PROGRAMS):
    add(number)
run_fsdp()
