"""BytePS as the PyTorch front end uses it, shared by all optimizers of a process.

Rule of this file: the state of a process, not of an optimizer: ids, pushes, handles, and agreement with other workers.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterable
from typing import Any

import torch

from prophet_byteps import agreement, hook, shared_memory
from prophet_byteps.cutting import CutBoard, CutControl
from prophet_scheduler.core.cut import MOST_BLOCK_BYTES, Cut

MOST_NAMES_OF_ALL = 32_768
"""Maximum names that all optimizers of a process reserve together: BytePS can number 65,536 tensors, and this many take
it 4 s. An optimizer without enough names of these has the coarsest blocks, whose names are few."""
MOST_OPENING = 256
"""Maximum keys with their first push in flight. For each, BytePS has a thread until all workers have pushed it."""
OPENING_PATIENCE_S = 1.0
SWEEP = 128
"""Number of new keys after which their descriptors are closed (shared_memory.py)."""
_WAIT_S = 0.002
_OF_GPUS = "byteps_torch_push_pull_async_torch_cuda_FloatTensor"
"""Function that only a BytePS built with CUDA has."""


def leave_zeros(params: Iterable[torch.Tensor]) -> None:
    """Give each parameter a gradient of zeros, contiguous whatever the parameter's own layout, as BytePS does."""
    for param in params:
        param.grad = torch.zeros_like(param, memory_format=torch.contiguous_format)


class Engine:
    """BytePS as the front end uses it, shared by all optimizers of the process.

    `bps` is the module byteps.torch. `agreement` ends the job if workers would send different tensors: the module, or
    an object with its functions. `board` has the cut; by default blocks have the maximum size.
    """

    def __init__(self, bps: Any, agreement: Any = agreement, board: CutBoard | None = None) -> None:
        self.bps = bps
        self.agreement = agreement
        self.board = CutBoard(Cut.uniform(MOST_BLOCK_BYTES)) if board is None else board
        self._ids = 0
        self._names_left = MOST_NAMES_OF_ALL
        self._numbers = itertools.count()
        self._opening: set[int] = set()
        self._opened = 0

    @property
    def pins_memory(self) -> bool:
        """True if BytePS registers CPU memory with CUDA tensor by tensor, which fails if tensors share a page.

        BytePS leaves memory alone that was registered as a whole before.
        """
        ops = sys.modules.get(f"{self.bps.__name__}.ops")
        return hasattr(getattr(ops, "c_lib", None), _OF_GPUS) and torch.cuda.is_available()

    def take_ids(self, count: int) -> int:
        """Reserve `count` ids that no other optimizer of the process has, and return the first."""
        self._ids += count
        return self._ids - count

    def take_names(self, wanted: int) -> int:
        """Reserve `wanted` names, or as many as are left. Return their number, the same on all workers."""
        taken = min(wanted, self._names_left)
        self._names_left -= taken
        return taken

    def take_number(self) -> int:
        """Return the number of the next optimizer, from 0."""
        return next(self._numbers)

    def announce(self, number: int, what: str) -> None:
        """Tell the other workers about an optimizer, and return at once. The job ends if they have another."""
        self.agreement.propose(f"optimizer {number}", what)

    def settle(self, number: int) -> None:
        """Wait until all workers have announced the same about an optimizer; end the job if they differ."""
        self.agreement.settle(f"optimizer {number}")

    def cuts(self, number: int) -> CutControl:
        """Return the control through which all workers agree on the cut of optimizer `number`."""
        group = self.agreement.active()
        exchange = None if group is None else group.exchange
        return CutControl(
            self.board, number, exchange, self.bps.rank(), self.bps.size(), local_size=self.bps.local_size()
        )

    def push(self, tensor: torch.Tensor, name: str, priority: int, new: bool = False) -> int:
        """Hand a tensor to BytePS, to be averaged in place. Return its handle. `new`: the name was never pushed."""
        if new:
            self._make_room()
        handle: int = self.bps.byteps_push_pull(tensor, average=True, name=name, priority=priority)
        if new:
            self._opening.add(handle)
        return handle

    def _make_room(self) -> None:
        """Wait until fewer than MOST_OPENING first pushes are in flight.

        Another worker may push its keys in another order and wait for ours. So if none completes for OPENING_PATIENCE_S
        seconds, stop waiting, and stop counting those in flight.
        """
        self._opened += 1
        if self._opened % SWEEP == 0:
            shared_memory.close_mapped()
        since = None
        while len(self._opening) >= MOST_OPENING:
            still = {handle for handle in self._opening.copy() if not self.bps.poll(handle)}  # Other threads push too.
            now = time.monotonic()
            if since is None or len(still) < len(self._opening):
                since = now
            self._opening = still if now - since < OPENING_PATIENCE_S else set()
            if len(self._opening) >= MOST_OPENING:
                hook.wait_activity(_WAIT_S)

    @property
    def opening(self) -> bool:
        """True if new keys are in flight: BytePS holds them until all workers have pushed them."""
        return any(not self.bps.poll(handle) for handle in self._opening.copy())

    def arrived(self, handle: int) -> bool:
        """Return True if the average of this push has arrived. Do not call it again after that."""
        if not self.bps.poll(handle):
            return False
        self.bps.synchronize(handle)
        self._opening.discard(handle)
        return True

    def restart(self) -> None:
        """Forget pushes in flight: after a suspend there are none."""
        self._opening.clear()
