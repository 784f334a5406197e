"""Asynchronous training of one optimizer: each worker's own weights, whole updates, whole versions.

Rule of this file: a worker's round, and its fallbacks when something is missing. weight_blocks.py has the memory, an
`UpdateWire` does the transfers, and a coordinator (client.py) gives permission.

 compute on these weights -> the program's own optimizer changes them -> ask -> permission -> push -> pull

A worker pushes the change, the *update*. No block of an update goes to the engine before its permission. A dropped
update is never pushed, and its worker continues from fresh weights. Without a coordinator, or while it is away, updates
go in order of arrival, and nobody waits.

Whole versions. The wire applies an update atomically, so between two updates all blocks of the model have the same
counts. If an update is applied between the pulls of two blocks, older blocks are pulled again until the counts agree.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch

from prophet_mlfabric.torch.weight_blocks import WeightBlocks, behind, counts_of, updates_before
from prophet_scheduler.frontends.notices import warn_once

if TYPE_CHECKING:  # a job without a coordinator loads none of it
    from prophet_mlfabric.client import CoordinatorClient

T = TypeVar("T")
RETRY_S = 0.002
MOST_RETRY_S = 0.05
PATIENCE_S = 10.0
"""Seconds of retries after which differing blocks are given up: a worker has died in the middle of an update, on a
server that applies blocks as they arrive."""

logger = logging.getLogger("prophet_scheduler")


class UpdateWire(Protocol):
    """Asynchronous server as rounds need it. Methods return when the server has answered."""

    def push(self, blocks: Sequence[torch.Tensor]) -> None:
        """Add all blocks to the server's, atomically."""

    def pull(self, blocks: Sequence[torch.Tensor], places: Sequence[int]) -> None:
        """Fill the blocks with the server's blocks at these places."""

    def pull_until(
        self, block: torch.Tensor, there: Callable[[], bool], who: str, sleep: Callable[[float], None]
    ) -> None:
        """Pull the first block until `there()` is True; `who` names the worker that makes it so."""


@dataclass
class Tally:
    """Totals of a worker's rounds; delays are Eq. 9's."""

    sent: int = 0
    dropped: int = 0
    uncoordinated: int = 0
    greatest_delay: int = 0


class AsynchronousRounds:
    """Rounds of one worker with the weights in `blocks`; `worker` counts from 0, and worker 0 is the root.

    `coordinator` is None for order of arrival. `version` is the version of its weights, `own_updates` the number of its
    own updates in them, `delay` the delay of its last update, and `resumed` the number of updates in the model that the
    job began with.
    """

    def __init__(
        self,
        blocks: WeightBlocks,
        wire: UpdateWire,
        worker: int,
        coordinator: CoordinatorClient | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.blocks, self.wire, self.worker = blocks, wire, worker
        self._sleep, self._coordinator = sleep, coordinator
        if coordinator is not None:
            coordinator.on_delay = self._note
        self.version = self.delay = self.own_updates = self.resumed = 0
        self.tally = Tally()

    def start(self, before: int = 0) -> None:
        """Set the server's and all workers' weights to the root's. Returns when done; every worker must call it.

        The root's weights have had `before` updates; other workers' value is ignored.
        """
        blocks = self.blocks.blocks
        if self.worker == 0:
            self.blocks.hold_weights(before)
            self.wire.push(blocks)
        root = "worker 0, which has the first weights,"
        self.wire.pull_until(blocks[0], lambda: self.blocks.counts(0)[-1] > 0, root, self._sleep)
        self.read_whole(blocks)
        self._take()
        self.resumed = updates_before(self.blocks.counts(0))

    def round(self) -> bool:
        """Send the change of the weights since the last round, and take the server's newest weights.

        Return False if the update was dropped. Returns even if the coordinator is away, after the client's bound.
        """
        blocks, before = self.blocks, self.version
        norm, size = blocks.hold_update(self.worker), blocks.size_bytes
        # The coordinator refuses versions that it does not know yet; an update then counts as older than it is.
        permission = self._with_coordinator(lambda it: it.ask(size, min(self.version, it.version), norm))
        goes, counted = permission is None or permission.goes, permission is not None and permission.coordinated
        if goes:
            self.tally.sent += 1
            self.tally.uncoordinated += not counted
            self.wire.push(blocks.blocks)
        else:
            self.tally.dropped += 1
        if goes and permission is not None:
            self._with_coordinator(lambda it: it.done(permission))
        self.read_whole(blocks.blocks)
        self._take()
        if goes and not counted:
            self.delay = max(1, self.version - before)  # an upper bound, since nobody counted
        return goes

    def read_whole(self, blocks: Sequence[torch.Tensor]) -> None:
        """Read one version of the model into `blocks`: all of them, then again those that lack an update of another."""
        late: Sequence[int] = range(len(blocks))
        waited_s, wait_s = 0.0, RETRY_S
        while True:
            for place in late:
                blocks[place].zero_()  # if a pull also pushes, it adds zeros
            self.wire.pull([blocks[place] for place in late], late)
            late = behind([counts_of(block, self.blocks.counted) for block in blocks])
            if not late:
                return
            # Only waits count: a process that was suspended meanwhile has not retried often enough to give up.
            if waited_s >= PATIENCE_S:
                warn_once("blocks of the model have had different updates for 10 s; they are used as they are")
                return
            self._sleep(wait_s)
            waited_s += wait_s
            wait_s = min(2 * wait_s, MOST_RETRY_S)

    def _with_coordinator(self, act: Callable[[CoordinatorClient], T]) -> T | None:
        """Return the result of `act` on the coordinator; None without one or if it fails, which stops no job."""
        if self._coordinator is None:
            return None
        try:
            return act(self._coordinator)
        except Exception as error:
            self._coordinator = None
            what = f"{type(error).__name__}: {error}"
            logger.warning("the coordinator is no longer used (%s); updates go in order of arrival", what)
            return None

    def _note(self, delay: int) -> None:
        """Record the delay of an applied update. Runs in the client's thread."""
        self.delay = delay
        self.tally.greatest_delay = max(self.tally.greatest_delay, delay)

    def _take(self) -> None:
        counts = self.blocks.take()
        self.version, self.own_updates = sum(counts[:-1]), counts[self.worker]
