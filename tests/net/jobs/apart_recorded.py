"""apart.py of which each worker leaves what it pushes and what it has read: apart_recorded.py STEPS

Rule of this file: records around the job as it is, in the folder `records` beside the worker's. `push-WORKER-NUMBER`
has the blocks of an update or the first weights, written before they leave; `read-WORKER` the newest model.
"""

from __future__ import annotations

import itertools
import os
import runpy
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

JOB = Path(__file__).with_name("apart.py")
WORKER = os.environ["DMLC_WORKER_ID"]
RECORDS = Path("..") / "records"
_numbers = itertools.count()


def write(name: str, memory: torch.Tensor) -> None:
    """Whole or not at all: this process may be killed."""
    part = RECORDS / f"{name}.part"
    with part.open("wb") as file:
        np.savez(file, memory=memory.numpy(), at_s=time.monotonic())
    part.replace(RECORDS / f"{name}.npz")


def record() -> None:
    from prophet_mlfabric.byteps.wire import BytePSWire
    from prophet_mlfabric.torch.weight_blocks import WeightBlocks

    push, take = BytePSWire.push, WeightBlocks.take

    def push_recorded(wire: BytePSWire, blocks: Sequence[torch.Tensor]) -> None:
        if len(blocks) > 1:  # and no numbers of the workers
            write(f"push-{WORKER}-{next(_numbers)}", torch.cat(list(blocks)))
        push(wire, blocks)

    def take_recorded(blocks: WeightBlocks) -> Any:
        write(f"read-{WORKER}", blocks.memory)
        return take(blocks)

    wires: Any = BytePSWire
    models: Any = WeightBlocks
    wires.push, models.take = push_recorded, take_recorded


if __name__ == "__main__":
    RECORDS.mkdir(exist_ok=True)
    record()
    sys.argv = [str(JOB), sys.argv[1]]
    runpy.run_path(str(JOB), run_name="__main__")
