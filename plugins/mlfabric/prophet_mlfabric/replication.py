"""Bound on a replica's lag (MLfabric, sections 3.3 and 5.3, Eqs. 7 to 11).

Rule of this file: norms in, positions out. It sees no model, so its bound holds for every model whose updates have
these norms. scheduler.py has the transfers. docs/policies/mlfabric.md lists the differences from the paper.

The model moves by w(t+1) = w(t) + u(t) + momentum * (w(t) - w(t-1)) (Eq. 2), so H_t = momentum * H_(t-1) + |u_t| bounds
the t-th step. Server and replica apply the same updates in the same order. So they differ by at most the steps that
only one of them has (Eq. 11): a difference of two entries of one running sum.

A sum moves its model by all its updates at once, so a run's steps may add up to at most Div_max. Then the side that is
behind may always continue, and there is no deadlock.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise

from prophet_scheduler.core.errors import UserError

ROUNDING = 1e-12
"""Relative tolerance of running sums: a sum equal to the bound is within it."""


class DivergenceLedger:
    """Running sum of step bounds over all scheduled updates. Positions count updates from 0."""

    def __init__(self, bound: float, momentum: float) -> None:
        """`bound` is Div_max, above 0. `momentum` is from 0 to below 1."""
        self.bound, self.momentum = bound, momentum
        self._step = 0.0
        self._sums = [0.0]

    def add(self, norm: float) -> None:
        """Add the next update in order. Raises UserError if its step alone moves the server by more than the bound."""
        self._step = self.momentum * self._step + norm
        if self._step > self.bound * (1 + ROUNDING):
            raise UserError(
                f"divergence bound {self.bound}: one step moves the model by up to {self._step:.6g}; give more"
            )
        self._sums.append(self._sums[-1] + self._step)

    def __len__(self) -> int:
        return len(self._sums) - 1

    def needed(self, position: int) -> int:
        """Return the number of updates that one side must have before the other may have `position` updates."""
        reach = self._sums[position]
        return bisect_left(self._sums, reach - self.bound - ROUNDING * reach, 0, position)

    def weights(self, since: int) -> list[float]:
        """Return the maximum movement of the model by each update after position `since`, given the earlier ones."""
        return [after - before for before, after in pairwise(self._sums[since:])]
