"""Asynchronous training of one optimizer: each worker's own weights, whole updates, whole versions.

Rule of this file: a worker's round, and what it does where something is missing. Memory is weight_blocks.py's, transfers
an `UpdateWire`'s, and permission a coordinator's (prophet/mlfabric/ports.py).

    compute on these weights -> the program's own optimizer changes them -> ask -> permission -> push -> pull

What is pushed is the change, the *update*. The gate is here: no block of an update is handed to the engine before its
permission, and all are from then on. A dropped update is never handed over, so it costs no byte of anybody's link; its
worker goes on from fresh weights, and computes anew. Without a coordinator, or while it is away, updates go in order of
arrival.

Whole versions. The wire applies an update as one (`push` returns when it did), so between two updates all blocks of the
model have the same counts. A pull asks for blocks one after another; where an update came in between, the counts differ,
and what is behind is asked for again, until they agree. A pull that follows an update is most often whole at once, as an
update takes a hundred times as long to send as the requests of a pull take to be read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from prophet.frontends.notices import warn_once
from prophet.frontends.torch.weight_blocks import WeightBlocks, has_begun, version_of
from prophet.mlfabric.ports import Asking, CoordinatorPort, Outcome, Permission

START_POLL_S = 0.01
"""How often a worker looks for the root's first weights."""
RETRY_S = 0.002
MOST_RETRY_S = 0.05
PATIENCE_S = 10.0
"""Blocks that differ for so long will not agree any more: a worker has died in the middle of an update on a server that
applies blocks as they come."""

logger = logging.getLogger("prophet")


class UpdateWire(Protocol):
    """An asynchronous server as rounds need it. Both return when the server has answered."""

    def push(self, blocks: Sequence[torch.Tensor]) -> None:
        """Adds all of them to the server's, as one."""

    def pull(self, blocks: Sequence[torch.Tensor], places: Sequence[int]) -> None:
        """Puts into the blocks at these places what the server has there."""


@dataclass
class Tally:
    """What a worker's rounds came to. Delays are versions (Eq. 9 of MLfabric), of updates that a coordinator counted.

    `pulled_again` are blocks that had to be asked for once more.
    """

    sent: int = 0
    dropped: int = 0
    lost: int = 0
    uncoordinated: int = 0
    pulled_again: int = 0
    greatest_delay: int = 0


class AsynchronousRounds:
    """One worker's rounds with the weights in `blocks`; `worker` counts from 0, and worker 0 is the root.

    `coordinator` None is order of arrival. `version` is that of the weights it has, `own_updates` how many of its own are
    in them, `delay` that of its last update.
    """

    def __init__(
        self,
        blocks: WeightBlocks,
        wire: UpdateWire,
        worker: int,
        coordinator: CoordinatorPort | None = None,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._blocks = blocks
        self._wire = wire
        self._worker = worker
        self._coordinator = coordinator
        self._now, self._sleep = now, sleep
        self.version = 0
        self.delay = 0
        self.own_updates = 0
        self.tally = Tally()

    def start(self) -> None:
        """Makes the root's weights the server's and everybody's. Returns when they are; every worker has to call it."""
        self._blocks.clear()
        self._pull_all()
        if self._worker == 0:
            self._blocks.hold_weights()
            self._wire.push(self._blocks.blocks)
            self._pull_all()
        while not has_begun(self._blocks.counts(0)):
            self._sleep(START_POLL_S)
            self._pull([0])
        self._pull_whole(list(range(1, len(self._blocks.blocks))))
        self._take()

    def round(self) -> bool:
        """Sends what the weights have changed by since the last round, and takes the server's newest.

        False where the update was dropped. Returns with the coordinator away as well, after its client's bound.
        """
        blocks = self._blocks
        norm = blocks.hold_update(self._worker)
        asking = self._ask(norm)
        permission = None if asking is None else self._permission(asking)
        goes = permission is None or permission.goes
        if goes:
            self.tally.sent += 1
            self.tally.uncoordinated += permission is None or not permission.coordinated
            self._wire.push(blocks.blocks)
            if asking is not None:
                self._done(asking)
        else:
            self.tally.dropped += 1
        blocks.clear()
        self._pull_whole(range(len(blocks.blocks)))
        before = self.version
        self._take()
        if goes and (permission is None or not permission.coordinated):
            self.delay = max(1, self.version - before)  # nobody counted; it is no more than that
        return goes

    # The coordinator. Whatever it does, or its client, is no reason to stop.

    def _ask(self, norm: float) -> Asking | None:
        if self._coordinator is None:
            return None
        try:
            # What it has yet to be told of, it does not take from us; an update then counts as older than it is.
            version = min(self.version, self._coordinator.version)
            return self._coordinator.ask(self._blocks.size_bytes, version, norm)
        except Exception as error:
            self._give_up(error)
            return None

    def _permission(self, asking: Asking) -> Permission | None:
        try:
            return asking.permission.result()
        except Exception as error:
            self._give_up(error)
            return None

    def _done(self, asking: Asking) -> None:
        if self._coordinator is None:
            return
        try:
            self._coordinator.done(asking, self._blocks.size_bytes).add_done_callback(self._note)
        except Exception as error:
            self._give_up(error)

    def _note(self, future: Any) -> None:
        """An update's outcome, in the client's thread."""
        if future.cancelled() or future.exception() is not None:
            return
        outcome: Outcome = future.result()
        if not outcome.applied:
            self.tally.lost += 1
        elif outcome.delay is not None:
            self.delay = outcome.delay
            self.tally.greatest_delay = max(self.tally.greatest_delay, outcome.delay)

    def _give_up(self, error: Exception) -> None:
        self._coordinator = None
        logger.warning(
            "Prophet's coordinator is of no use any more (%s: %s); updates go in order of arrival",
            type(error).__name__,
            error,
        )

    # Pulls.

    def _take(self) -> None:
        counts = self._blocks.take()
        self.version, self.own_updates = version_of(counts), counts[self._worker]

    def _pull(self, places: Sequence[int]) -> None:
        for place in places:
            self._blocks.blocks[place].zero_()  # where a pull pushes as well, it adds nothing
        self._wire.pull([self._blocks.blocks[place] for place in places], places)

    def _pull_all(self) -> None:
        self._pull(range(len(self._blocks.blocks)))

    def _pull_whole(self, places: Sequence[int]) -> None:
        """Pulls these blocks, and then again what lacks an update that another block has."""
        self._pull(places)
        began, wait_s = self._now(), RETRY_S
        while again := self._blocks.behind():
            if self._now() - began > PATIENCE_S:
                warn_once("blocks of the model have had different updates for 10 s; they are used as they are")
                return
            self._sleep(wait_s)
            wait_s = min(2 * wait_s, MOST_RETRY_S)
            self.tally.pulled_again += len(again)
            self._pull(again)
