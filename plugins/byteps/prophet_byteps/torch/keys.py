"""BytePS as the PyTorch front end needs it: one for all optimizers of a process.

Rule of this file: what is the process's and not an optimizer's: names and ids, pushes and handles, and what
other workers must have alike.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from prophet_byteps import agreement

if TYPE_CHECKING:
    from prophet_byteps.torch.buckets import Bucket

logger = logging.getLogger("prophet")
_warned: set[str] = set()


def warn_once(message: str) -> None:
    """The same warning only once in a process."""
    if message not in _warned:
        _warned.add(message)
        logger.warning("%s", message)


class Engine:
    """BytePS as the front end needs it, shared by all optimizers of the process.

    `bps` is the module byteps.torch; `wait_activity(limit_s)` returns when some tensor has completed; `progress()`
    differs from what it was before where something has moved since. `agreement` ends the job where workers would send
    different tensors: the module, or what has its functions.
    """

    def __init__(
        self,
        bps: Any,
        wait_activity: Callable[[float], None],
        progress: Callable[[], object] = lambda: None,
        agreement: Any = agreement,
    ) -> None:
        self.bps = bps
        self.wait_activity = wait_activity
        self.progress = progress
        self.agreement = agreement
        self._buckets = 0
        self._names: set[str] = set()
        self._optimizers = 0

    def take_indices(self, count: int) -> range:
        """Gradient ids for `count` buckets, different for every optimizer of the process."""
        self._buckets += count
        return range(self._buckets - count, self._buckets)

    def take_names(self, wanted: str) -> tuple[str, str]:
        """Two names that nothing else in the process has; alike on all workers, which run the same program."""
        name, number = wanted, 1
        while not self._names.isdisjoint(pair := (name, f"{name}.odd")):
            number += 1
            name = f"{wanted}@{number}"
        self._names.update(pair)
        return pair

    def announce(self, what: str) -> int:
        """Tells the other workers about the next optimizer. Returns its number, counted from 0."""
        number = self._optimizers
        self._optimizers += 1
        self.agreement.propose(f"optimizer {number}", what)
        return number

    def agree(self, topic: str, text: str) -> None:
        """Returns when all workers have sent the same text for the topic; the job ends where they did not."""
        self.agreement.propose(topic, text)
        self.agreement.settle(topic)

    def push(self, tensor: torch.Tensor, name: str, priority: int) -> int:
        handle: int = self.bps.byteps_push_pull(tensor, average=True, name=name, priority=priority)
        return handle

    def arrived(self, bucket: Bucket) -> bool:
        """Whether the bucket's last round is over."""
        if bucket.handle is None:
            return True
        if not self.bps.poll(bucket.handle):
            return False
        self.bps.synchronize(bucket.handle)
        bucket.handle = None
        return True
