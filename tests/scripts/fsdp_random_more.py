"""Random programs over FSDP2 and replicate() that do more, drawn as in drawn_more.py, each from its number."""

import os
import random

import averaging  # noqa: F401
from drawn_fsdp import OverFSDP, build
from drawn_more import MORE_OPTIMIZERS, MoreProgram
from ways import run_fsdp, way

FIRST, PROGRAMS = int(os.environ.get("FIRST", "0")), int(os.environ.get("PROGRAMS", "4"))


class MoreOverFSDP(MoreProgram, OverFSDP):
    between = OverFSDP.between + MoreProgram.more_between
    after = OverFSDP.after + MoreProgram.more_after


def add(number):
    """Add a program to the ways of this script."""
    draws = random.Random(f"more {number}")
    make = MORE_OPTIMIZERS[draws.choice(sorted(MORE_OPTIMIZERS))]

    def program(model, optimizer):
        program = MoreOverFSDP(model, optimizer, make, draws)
        saw = program.run()
        for module in program.modules:
            module.reshard()
        return saw

    program.__name__ = f"program_{number}"
    way(lambda: build(draws), make)(program)


for number in range(FIRST, FIRST + PROGRAMS):
    add(number)
run_fsdp()
