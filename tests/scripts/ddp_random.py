"""Random programs over DistributedDataParallel, drawn as in drawn_ddp.py, each from its number."""

import os
import random

from drawn import OPTIMIZERS
from drawn_ddp import Branches, OverDDP, Tied
from ways import classifier, run_ddp, way

FIRST, PROGRAMS = int(os.environ.get("FIRST", "0")), int(os.environ.get("PROGRAMS", "16"))


def add(number):
    """Add a program to the ways of this script."""
    draws = random.Random(number)
    build = draws.choice((classifier, Tied, Branches, Branches))
    make = OPTIMIZERS[draws.choice(sorted(OPTIMIZERS))]
    options = {"gradient_as_bucket_view": draws.random() < 0.4}
    if build is Branches:
        options["find_unused_parameters"] = draws.random() < 0.6
    if draws.random() < 0.4:
        options["bucket_cap_mb"] = 0.002

    def program(ddp, optimizer):
        return OverDDP(ddp, optimizer, make, draws).run()

    program.__name__ = f"program_{number}"
    way(build, make, **options)(program)


for number in range(FIRST, FIRST + PROGRAMS):
    add(number)
run_ddp()
