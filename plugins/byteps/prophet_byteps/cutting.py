"""The cut of a job's gradients, the same on every worker in every round.

Rule of this file: who says what the cut is, and from which round on. How pages of bytes travel is exchange.py's, what a
cut means prophet/core/cut.py's, which one is best the policy's.

A key's length is fixed at its first push, so workers that cut differently for one round would break the job
(docs/decisions/agreed-cuts.md). The worker of rank 0 decides. Every EVERY rounds, when a worker has handed over the
round's last block, it sends a page that has what it measured of its network, and on rank 0 the wanted cut; the sum has
all. Before the next round's first block it waits for that sum, which is there long before as a rule, and takes up the
cut that it finds: all workers read the same page before the same round.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from prophet.core.cut import Cut
from prophet.core.network import Network
from prophet_byteps.agreement import PageExchange

EVERY = 4
"""Rounds from one page to the next."""


class CutBoard:
    """Where the agent's thread and the front ends of one process leave each other notes; safe to use from any thread.

    `fixed` is the cut of a job whose cut never changes: then nothing is sent. It is None where plans say the cut.
    """

    def __init__(self, fixed: Cut | None) -> None:
        self.fixed = fixed
        self._lock = threading.Lock()

    # The agent's.

    def want(self, cut: Cut) -> None:
        """From some later round on, if this is rank 0."""
        raise NotImplementedError

    def measured(self, network: Network) -> None:
        """What this worker measured, for the others to know."""
        raise NotImplementedError

    @property
    def networks(self) -> tuple[Network, ...]:
        """What the workers last said of their networks, without those that had nothing to say."""
        raise NotImplementedError

    @property
    def in_force(self) -> Cut | None:
        """The cut of the latest round of the first optimizer; None before its first."""
        raise NotImplementedError

    # The front ends'.

    def first_cut(self, sizes: Sequence[int]) -> Cut:
        """What this worker would begin with, for gradients of these bytes in forward order."""
        raise NotImplementedError


class CutControl:
    """The cut of one optimizer. `number` counts the optimizers of the process; alike on all workers, as they are."""

    def __init__(self, board: CutBoard, number: int, exchange: PageExchange | None, rank: int, workers: int) -> None:
        raise NotImplementedError

    def declare(self) -> None:
        """Gives the pages their numbers, at the same place of the program on every worker; nothing for a fixed cut."""
        raise NotImplementedError

    def first(self, sizes: Sequence[int]) -> Cut:
        """The cut of the first round: what rank 0 would begin with. Waits until all workers have asked."""
        raise NotImplementedError

    def round_ends(self) -> None:
        """The round's last block has been handed over."""
        raise NotImplementedError

    def round_begins(self) -> Cut | None:
        """To be called before a round's first block: the cut from this round on, None where it stays."""
        raise NotImplementedError
