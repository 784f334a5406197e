"""BytePS's partition size: its value in a job, who chooses it, and how to read and set it while BytePS runs.

Rule of this file: this one number inside BytePS, and the cut that goes with it if blocks do not adapt.

To BytePS, each block of the PyTorch front end is a tensor. Partitions are never smaller than blocks, so each block is
one message. The MXNet front end hands over whole gradients, and this number cuts them (prophet_mxnet/byteps/names.py).

BytePS compresses each partition separately: onebit's scale and topk's k apply to one partition. So a job with small
partitions would learn something else. The trainer that asks for compression is created after BytePS has read the
number, but the number takes effect only at a tensor's first push. So it can be reset as long as nothing was sent that
the old number cut differently. It is one number for the whole process.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prophet_byteps.library import extension
from prophet_scheduler.core import settings as names
from prophet_scheduler.core.cut import MOST_BLOCK_BYTES, Cut
from prophet_scheduler.core.settings import DEFAULT_PARTITION_BYTES, Settings
from prophet_scheduler.frontends.ending import WRONG, end_process
from prophet_scheduler.frontends.notices import logger
from prophet_scheduler.policies import Blocks

BYTEPS_OWN_BYTES = MOST_BLOCK_BYTES
"""Partition size that BytePS 0.2.5 uses if its variable is not set."""
WHOLE_GRADIENTS = ("mxnet",)
"""Frameworks whose front end hands over whole gradients, so that ids are gradients and not places in an arena."""
LEARNING_BYTES = 512 * 1024
"""First partition size of such a job if it adapts. Smaller gradients make messages of other sizes to learn from."""
_PARTITION_BYTES = "_ZN6byteps6common12BytePSGlobal16_partition_bytesE"


@dataclass(frozen=True)
class Sizes:
    """Block sizes of a job that has learned nothing yet, the same on all workers.

    `partition_bytes` is BytePS's number. `fixed` is the cut of a job whose blocks do not adapt; None if plans choose
    it. `fusion` is True if small gradients may share a block.
    """

    partition_bytes: int
    fixed: Cut | None
    fusion: bool

    def __str__(self) -> str:
        blocks = "blocks that adapt" if self.fixed is None else f"blocks of {self.partition_bytes} bytes"
        return f"{blocks}, fusion {'on' if self.fusion else 'off'}"


def sizes_of(settings: Settings, blocks: Blocks, framework: str) -> Sizes:
    """Return the sizes of a job whose policy has these blocks. A size set by the user applies to all blocks."""
    fusion = settings.fusion and blocks is not Blocks.WHOLE
    adaptive = blocks is Blocks.ADAPTIVE and settings.partition_bytes is None
    if settings.partition_bytes is not None:
        size = settings.partition_bytes
    elif blocks is Blocks.ONE_SIZE:
        size = DEFAULT_PARTITION_BYTES
    elif blocks is Blocks.ADAPTIVE and framework in WHOLE_GRADIENTS:
        size = LEARNING_BYTES
    else:
        size = MOST_BLOCK_BYTES
    return Sizes(size, None if adaptive else Cut.uniform(min(size, MOST_BLOCK_BYTES)), fusion)


def give_back(bps: Any, largest_sent: int) -> None:
    """Restore BytePS's own partition size, for a job that compresses. `largest_sent`: bytes of the largest tensor sent.

    A size that the user chose stays. The process exits with one line if the small size has already cut a tensor, or
    BytePS has no such number.
    """
    if names.users_own_partition_bytes(os.environ) is not None:
        return
    mend = f"set BYTEPS_PARTITION_BYTES={BYTEPS_OWN_BYTES} on all workers"
    number = Number.of(bps)
    if number is None:
        end_process(f"this job compresses gradients, for which Prophet's partitions are too small; {mend}", WRONG)
    if number.rounded(BYTEPS_OWN_BYTES) != number.value:
        if largest_sent > number.value:
            line = "this job asks for compression after it has sent tensors in Prophet's small partitions"
            end_process(f"{line}, and compressing those would change what it learns; {mend}", WRONG)
        number.set(BYTEPS_OWN_BYTES)
    os.environ[names.BYTEPS_PARTITION_BYTES] = str(BYTEPS_OWN_BYTES)  # for a BytePS that restarts
    logger.info("Prophet leaves BytePS's own partition size to a job that compresses gradients")


class Number:
    """The partition size inside a running BytePS."""

    def __init__(self, cell: ctypes.c_uint32, step: int) -> None:
        self._cell = cell
        self._step = step

    @classmethod
    def of(cls, bps: Any) -> Number | None:
        """Return the number of the imported module `bps`; None if its library has no such number."""
        library = ctypes.CDLL(str(extension(Path(bps.__file__).parent)))
        try:
            cell = ctypes.c_uint32.in_dll(library, _PARTITION_BYTES)
        except ValueError:
            return None
        return cls(cell, bps.local_size() * mmap.PAGESIZE)

    @property
    def value(self) -> int:
        """Partition size in bytes."""
        return self._cell.value

    def rounded(self, size: int) -> int:
        """Return the size as BytePS rounds it: up to whole memory pages for each process of the machine."""
        return -(-size // self._step) * self._step

    def set(self, size: int) -> None:
        """Use this size for tensors handed over from now on. Tensors sent before must not be sent again."""
        self._cell.value = self.rounded(size)
