"""Result of tracing the job's forward passes, passed from the front end to the agent.

Rule of this file: where the front end leaves a result for the agent. prophet_scheduler/frontends/torch/trace.py traces,
and each front end decides when. Only a process whose policy plans with a trace imports this.

All workers trace in the same iterations, and each plans by its own measurements: the order may differ between workers
(docs/decisions/sizes-of-the-job.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from prophet_scheduler.frontends.notices import warn_of_untraced

if TYPE_CHECKING:
    from prophet_scheduler.core.graph import Graph
    from prophet_scheduler.core.policy import Policy


class Traced(NamedTuple):
    """Forward time in seconds from the use of each block to the use of the next, by id (empty if nothing was traced),
    and the policy made from the model's graph (None also if the policy takes no graph).
    """

    forward_s: Mapping[int, float]
    policy: Policy | None


NOTHING = Traced({}, None)


class TraceBoard:
    """Board of one job. `make` makes its policy, named `policy`, from a graph; None for a policy without a graph.

    The training thread leaves a result, and another thread reads it.
    """

    def __init__(self, policy: str, make: Callable[[Graph], Policy] | None) -> None:
        self.with_graph = make is not None
        self.found = NOTHING
        self.closed = False
        """True once no further result is wanted."""
        self._policy = policy
        self._make = make

    def leave(self, forward_s: Mapping[int, float], graph: Graph | None) -> None:
        """Leave the trace's result. Raises UserError if the policy cannot use the graph."""
        policy = self._make(graph) if self._make is not None and graph is not None else None
        if not self.closed:
            self.closed, self.found = True, Traced(forward_s, policy)

    def close(self, why: str) -> None:
        """Close the board without a trace, or discard one that no longer holds."""
        if not self.closed or self.found is not NOTHING:
            warn_of_untraced(self._policy, why)
        self.closed, self.found = True, NOTHING
