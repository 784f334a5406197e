"""Names under which tensors travel, so that the partition size can change while a job runs.

Rule of this file: names and BytePS's partition size; it knows neither trainers nor MXNet.

MXNet lets only one operation at a time write to an array's memory, so slices of a gradient would take turns. So a
gradient is handed over whole, and BytePS cuts it. BytePS reads its partition size whenever a tensor is handed over, but
the first time fixes a tensor's keys and their lengths. So a tensor has one name for each way in which it has been cut:
its own name for the size with which BytePS started, and others for other sizes. A tensor that neither size cuts keeps
its name. A size that is used again has the same names again. A server keeps memory for each name: for each size, twice
the bytes of all gradients that it cuts differently, since each has two keys.

New names are declared when they are first sent. All workers first send them in the same order, since BytePS then waits
in the sending thread until all workers have sent.
"""

from __future__ import annotations

from collections.abc import Callable

from prophet_byteps import shared_memory
from prophet_byteps.partition import Number
from prophet_scheduler.frontends.notices import logger


class Names:
    """Names of the tensors that the process sends.

    `declare` is BytePS's own function. `find_number()` returns its partition size, None if it has none. `settle()`
    returns when everything handed over has come back. `stay` is True once the size can no longer change.
    """

    def __init__(
        self, declare: Callable[[str], None], find_number: Callable[[], Number | None], settle: Callable[[], None]
    ) -> None:
        self._declare = declare
        self._find_number = find_number
        self._settle = settle
        self._number: Number | None = None
        self._first = 0
        self.stay = False
        self._declared: set[str] = set()

    def current(self, name: str, size_bytes: int) -> str:
        """Return the current name of a tensor of this size, even after BytePS restarted with its environment's size."""
        if self._number is None:
            return name
        cut_by = self._number.value if size_bytes > self._number.value else None
        if cut_by == (self._first if size_bytes > self._first else None):
            return name
        other = f"{name}.{cut_by or 'whole'}"
        if other not in self._declared:
            self._declared.add(other)
            self._declare(other)
        return other

    def resize(self, size: int) -> None:
        """Cut tensors handed over from now on by this size. All workers must call it at the same point."""
        if self.stay:
            return
        if self._number is None:
            self._number = self._find_number()
            if self._number is None:
                self.stay = True
                logger.warning("Prophet cannot set the partition size of this BytePS; it stays as it is")
                return
            self._first = self._number.value
        if self._number.rounded(size) != self._number.value:
            self._settle()
            shared_memory.close_mapped()  # Those of the keys so far: as many again will follow.
            self._number.set(size)
