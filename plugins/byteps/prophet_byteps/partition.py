"""BytePS's partition size: whose choice it is, and how a job that compresses gets BytePS's own back.

Rule of this file: this one number inside BytePS.

BytePS compresses each partition by itself: the scale of onebit and the k of topk belong to a partition, so with
Prophet's small ones a job would learn something else, or end where a partition has fewer than k elements. The
number is read when BytePS starts and the trainer that asks for compression is made later, but it only counts from a
tensor's first push on. Thus it can still be set back while nothing has been sent that it would cut in another way. It
is one number for the whole process, which BytePS's threads read at each push, so it cannot differ by tensor.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
from typing import Any

from prophet_byteps.ending import WRONG, end_process

BYTEPS_OWN_BYTES = 4096000
"""What BytePS 0.2.5 takes where its variable is not set."""
_PARTITION_BYTES = "_ZN6byteps6common12BytePSGlobal16_partition_bytesE"

logger = logging.getLogger("prophet")

_ours = False


def chosen_by_prophet(ours: bool) -> None:
    """Whether the partition size in BytePS's environment is Prophet's: not the user's, who knows what it is for."""
    global _ours
    _ours = ours


def give_back(bps: Any, largest_sent: int) -> None:
    """Sets BytePS's own partition size, for a job that compresses. `largest_sent`: bytes of the largest tensor so far.

    The process ends with one line where a tensor has been cut by the small one already, or BytePS has no such number.
    """
    global _ours
    if not _ours:
        return
    from prophet_byteps.exchange import library_of  # Few jobs compress; this one does.

    mend = f"set BYTEPS_PARTITION_BYTES={BYTEPS_OWN_BYTES} on all workers"
    try:
        cell = ctypes.c_uint32.in_dll(ctypes.CDLL(str(library_of(bps))), _PARTITION_BYTES)
    except ValueError:
        end_process(f"this job compresses gradients, for which Prophet's partitions are too small; {mend}", WRONG)
    if largest_sent > cell.value:
        line = "this job asks for compression after it has sent tensors in Prophet's small partitions"
        end_process(f"{line}, and compressing those would change what it learns; {mend}", WRONG)
    step = bps.local_size() * mmap.PAGESIZE
    cell.value = -(-BYTEPS_OWN_BYTES // step) * step
    _ours = False
    logger.info("Prophet leaves BytePS's own partition size to a job that compresses gradients")
