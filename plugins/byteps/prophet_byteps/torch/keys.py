"""BytePS as the PyTorch front end needs it: one for all optimizers of a process.

Rule of this file: what is the process's and not an optimizer's: ids, pushes and handles, and what other workers must
have alike.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from prophet_byteps import agreement, shared_memory
from prophet_byteps.cutting import CutBoard, CutControl
from prophet_scheduler.core.cut import MOST_BLOCK_BYTES, Cut

MOST_OPENING = 256
"""Keys that are pushed for the first time at once. For each BytePS has a thread until all workers have pushed it."""
OPENING_PATIENCE_S = 1.0
SWEEP = 128
"""After so many keys their descriptors are closed (shared_memory.py)."""
_WAIT_S = 0.002
_OF_GPUS = "byteps_torch_push_pull_async_torch_cuda_FloatTensor"
"""What BytePS has where it was built with CUDA."""


class Engine:
    """BytePS as the front end needs it, shared by all optimizers of the process.

    `bps` is the module byteps.torch; `wait_activity(limit_s)` returns when some tensor has completed; `progress()`
    differs from what it was before where something has moved since. `agreement` ends the job where workers would send
    different tensors: the module, or what has its functions. `board` says what the cut is; without one it is
    BytePS's own, one size.
    """

    def __init__(
        self,
        bps: Any,
        wait_activity: Callable[[float], None],
        progress: Callable[[], object] = lambda: None,
        agreement: Any = agreement,
        board: CutBoard | None = None,
    ) -> None:
        self.bps = bps
        self.wait_activity = wait_activity
        self.progress = progress
        self.agreement = agreement
        self.board = CutBoard(Cut.uniform(MOST_BLOCK_BYTES)) if board is None else board
        self._ids = 0
        self._optimizers = 0
        self._opening: set[int] = set()
        self._opened = 0

    @property
    def pins_memory(self) -> bool:
        """Whether BytePS registers memory of the CPU with CUDA, tensor by tensor, which fails where they share a page.

        What is registered as a whole before, it leaves as it is.
        """
        ops = sys.modules.get(f"{self.bps.__name__}.ops")
        return hasattr(getattr(ops, "c_lib", None), _OF_GPUS) and torch.cuda.is_available()

    def take_ids(self, count: int) -> int:
        """The first of `count` ids that no other optimizer of the process has."""
        self._ids += count
        return self._ids - count

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

    def cuts(self, number: int) -> CutControl:
        """What agrees on the cut of optimizer `number` with the other workers."""
        group = self.agreement.active()
        exchange = None if group is None else group.exchange
        return CutControl(
            self.board, number, exchange, self.bps.rank(), self.bps.size(), local_size=self.bps.local_size()
        )

    def push(self, tensor: torch.Tensor, name: str, priority: int, new: bool = False) -> int:
        """Hands a tensor to BytePS, to be averaged in place. `new`: its name was never pushed before."""
        if new:
            self._make_room()
        handle: int = self.bps.byteps_push_pull(tensor, average=True, name=name, priority=priority)
        if new:
            self._opening.add(handle)
        return handle

    def _make_room(self) -> None:
        """Sees to it that a process may push any number of keys for the first time.

        It waits while very many are under way, as long as that moves. Another worker may push them in another order and
        wait for ours, so where nothing moves it is not for long.
        """
        self._opened += 1
        if self._opened % SWEEP == 0:
            shared_memory.close_mapped()
        since = None
        while len(self._opening) >= MOST_OPENING:
            still = {handle for handle in self._opening if not self.bps.poll(handle)}
            now = time.monotonic()
            if since is None or len(still) < len(self._opening):
                since = now
            self._opening = still if now - since < OPENING_PATIENCE_S else set()
            if len(self._opening) >= MOST_OPENING:
                self.wait_activity(_WAIT_S)

    @property
    def opening(self) -> bool:
        """Whether keys that were never pushed before are under way: until all workers push them BytePS holds them."""
        return any(not self.bps.poll(handle) for handle in self._opening)

    def arrived(self, handle: int) -> bool:
        """Whether this push is back. To be asked no more where it is."""
        if not self.bps.poll(handle):
            return False
        self.bps.synchronize(handle)
        self._opening.discard(handle)
        return True

    def restart(self) -> None:
        """After a suspend nothing is on its way."""
        self._opening.clear()
