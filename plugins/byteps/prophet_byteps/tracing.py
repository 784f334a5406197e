"""Trace of the job's forward passes on BytePS, in the first iterations of a job with one optimizer or wrapped module.

Rule of this file: when tracing begins and ends, and where the front end leaves its result for the agent.
prophet_scheduler/frontends/torch/trace.py traces. Only a process whose policy plans with a trace imports this.

All workers trace in the same iterations, and each plans by its own measurements: the order may differ between workers
(docs/decisions/sizes-of-the-job.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from prophet_scheduler.frontends.notices import warn_of_untraced

if TYPE_CHECKING:
    from prophet_scheduler.core.cut import Block
    from prophet_scheduler.core.graph import Graph
    from prophet_scheduler.core.policy import Policy
    from prophet_scheduler.frontends.torch.slot import Slot
    from prophet_scheduler.frontends.torch.trace import ForwardTrace


class Traced(NamedTuple):
    """Forward time in seconds from the use of each block to the use of the next, by id (empty if nothing was traced),
    and the policy made from the model's graph (None also if the policy takes no graph).
    """

    forward_s: Mapping[int, float]
    policy: Policy | None


NOTHING = Traced({}, None)


class TraceBoard:
    """Trace of one job, and a board for its result, which another thread reads. `make` makes the job's policy, named
    `policy`, from a graph; None for a policy without a graph. While the trace lasts, no update may outlast step().
    """

    def __init__(self, policy: str, make: Callable[[Graph], Policy] | None) -> None:
        self.found = NOTHING
        self.closed = False
        """True once no further result is wanted."""
        self._policy = policy
        self._make = make
        self._trace: ForwardTrace | None = None

    def begin(self, slots: Sequence[Slot], number: int) -> bool:
        """Begin to trace the rounds of optimizer `number`, before its first gradient leaves. Return False if it cannot
        be traced. A job with several optimizers has no trace: one optimizer's ids are not in another's graph.
        """
        try:
            from prophet_scheduler.frontends.torch.guards import after_compilation
            from prophet_scheduler.frontends.torch.trace import ForwardTrace

            if number:
                why = "the job has several optimizers"
            elif not all(slot.param.is_cpu for slot in slots):
                why = "it is on a device that computes asynchronously"
            elif after_compilation():
                why = "it is compiled"
            else:
                self._trace = ForwardTrace([slot.param for slot in slots], with_graph=self._make is not None)
                return True
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        self.close(why)
        return False

    def next_round(self, blocks: Callable[[], Sequence[Block]]) -> bool:
        """Open the next round, in which `blocks` travel. Return False once tracing is over."""
        assert self._trace is not None
        if self.closed:
            self._trace.remove("")
            return False
        self._trace.begins()
        if not self._trace.done:
            return True
        try:
            forward_s = self._trace.forward_of(blocks())
            graph = self._trace.graph(blocks()) if self._make is not None else None
            if forward_s is None or (self._make is not None and graph is None):
                self.close(self._trace.why_not)
            else:
                self.leave(forward_s, graph)
        except Exception as error:
            self.close(f"{type(error).__name__}: {error}")
        return False

    def leave(self, forward_s: Mapping[int, float], graph: Graph | None) -> None:
        """Leave the trace's result. Raises UserError if the policy cannot use the graph."""
        policy = self._make(graph) if self._make is not None and graph is not None else None
        self.closed, self.found = True, Traced(forward_s, policy)

    def give_up(self, why: str) -> None:
        """Stop tracing, for this reason."""
        assert self._trace is not None
        self._trace.remove(why)
        self.close(why)

    def close(self, why: str) -> None:
        """Close the board without a trace, or discard one that no longer holds."""
        if not self.closed or self.found is not NOTHING:
            warn_of_untraced(self._policy, why)
        self.closed, self.found = True, NOTHING
