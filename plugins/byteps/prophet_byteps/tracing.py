"""Result of tracing the job's forward passes, on its way from the front end to the agent.

Rule of this file: where the front end leaves it and the agent finds it. prophet_scheduler/frontends/torch/trace.py
traces, and each front end decides when. Only a process whose policy plans with a trace imports this.

Each worker traces by itself, in the same iterations as the others, and plans by its own measurements: order is each
worker's own (docs/decisions/sizes-of-the-job.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from prophet_scheduler.frontends.notices import warn_of_untraced

if TYPE_CHECKING:
    from prophet_scheduler.core.graph import Graph
    from prophet_scheduler.core.policy import Policy


class Traced(NamedTuple):
    """Seconds of forward from the use of each block to that of the next, by id, and the policy of the model's graph.
    Empty and None where nothing was traced, or the policy takes no graph.
    """

    forward_s: Mapping[int, float]
    policy: Policy | None


NOTHING = Traced({}, None)


class TraceBoard:
    """Board of one job. `make` makes its policy, called `policy`, of a graph; None for a policy without one.

    The thread that trains leaves a result, another one reads it.
    """

    def __init__(self, policy: str, make: Callable[[Graph], Policy] | None) -> None:
        self.with_graph = make is not None
        self.found = NOTHING
        self.closed = False
        """True if nothing more is wanted."""
        self._policy = policy
        self._make = make

    def leave(self, forward_s: Mapping[int, float], graph: Graph | None) -> None:
        """Leave the trace's result. Raises UserError if the policy cannot take the graph."""
        policy = self._make(graph) if self._make is not None and graph is not None else None
        if not self.closed:
            self.closed, self.found = True, Traced(forward_s, policy)

    def close(self, why: str) -> None:
        """Close the board without a trace, or with one that holds no more."""
        if not self.closed or self.found is not NOTHING:
            warn_of_untraced(self._policy, why)
        self.closed, self.found = True, NOTHING
