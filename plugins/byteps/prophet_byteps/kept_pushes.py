"""Partition size for what a program pushes itself, from what is kept of its last run.

Rule of this file: which job is the same, and the best size for it. torch/own_pushes.py brings the workers to one size.

When BytePS begins nobody knows what the program will push. So a job is the same if the program and its arguments are,
and it runs at the same place.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from prophet_byteps.partition import LEARNING_BYTES
from prophet_scheduler.core.cut import Cut
from prophet_scheduler.frontends.warm import WarmStart

if TYPE_CHECKING:
    from prophet_scheduler.core.choice import Shape
    from prophet_scheduler.core.policy import Policy

logger = logging.getLogger("prophet_scheduler")


class KeptPushes:
    """Store in `folder` of this program's pushes, read and written again. `where` says where it runs, as a WarmStart's;
    `shape` is the cluster's, None if unknown.
    """

    def __init__(self, folder: Path | None, where: Mapping[str, str], policy: Policy, shape: Shape | None) -> None:
        self.cut: Cut | None = None
        """Cut of what is pushed with a priority, on all workers. None leaves it to BytePS."""
        self._policy = policy
        self._shape = shape
        program = {"program": repr(sys.argv)}
        self.warm = WarmStart(folder, {**where, **program}, lambda sizes: Cut.uniform(LEARNING_BYTES))
        self.warm.first_cut(())

    def size(self) -> int:
        """Return the best size in bytes for the kept gradients and network; a middle one if these are unknown.

        Such tensors keep the size of their first push, so it cannot be tried.
        """
        try:
            return self._best() or LEARNING_BYTES
        except Exception as error:
            logger.warning("Prophet starts without what it kept: %s: %s", type(error).__name__, error)
            return LEARNING_BYTES

    def _best(self) -> int | None:
        from prophet_scheduler.core.choice import ChoosingPolicy, Question
        from prophet_scheduler.session.questions import EVENTS_A_TURN

        kept, policy = self.warm.kept, self._policy
        if kept is None or kept.network is None or self._shape is None or not isinstance(policy, ChoosingPolicy):
            return None
        middle = Cut.uniform(LEARNING_BYTES)
        search = policy.search(Question(kept.profile, kept.network, self._shape, (middle,), anew=True, arena=False))
        search.work(EVENTS_A_TURN)  # All workers wait for it.
        return search.choices[0].cut.typical_bytes(kept.profile.total_bytes) if search.choices else None
