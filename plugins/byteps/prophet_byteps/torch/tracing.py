"""Tracing of forward passes on BytePS, in the first iterations of a job with one optimizer or wrapped module.

Rule of this file: when tracing begins and ends. prophet_scheduler/frontends/torch/trace.py traces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from prophet_scheduler.frontends.torch.guards import after_compilation
from prophet_scheduler.frontends.torch.trace import ForwardTrace

if TYPE_CHECKING:
    from prophet_byteps.tracing import TraceBoard
    from prophet_scheduler.core.cut import Block
    from prophet_scheduler.frontends.torch.arena import Slot


class RoundsTrace:
    """Trace of the rounds of `slots`. While it exists, no update may outlast step()."""

    def __init__(self, slots: Sequence[Slot], board: TraceBoard) -> None:
        self._board = board
        self._trace = ForwardTrace([slot.param for slot in slots], with_graph=board.with_graph)

    def next_round(self, blocks: Callable[[], Sequence[Block]]) -> bool:
        """Open the next round, in which `blocks` travel. Return False once tracing is over."""
        if self._board.closed:
            self._trace.remove("")
            return False
        self._trace.begins()
        if not self._trace.done:
            return True
        try:
            of_graph = self._board.with_graph
            forward_s, graph = self._trace.forward_of(blocks()), self._trace.graph(blocks()) if of_graph else None
            if forward_s is None or (of_graph and graph is None):
                self._board.close(self._trace.why_not)
            else:
                self._board.leave(forward_s, graph)
        except Exception as error:
            self._board.close(f"{type(error).__name__}: {error}")
        return False

    def give_up(self, why: str) -> None:
        """Stop tracing, for this reason."""
        self._trace.remove(why)
        if not self._board.closed:
            self._board.close(why)


def trace_of(slots: Sequence[Slot], number: int, board: TraceBoard) -> RoundsTrace | None:
    """Return the trace of the job's first optimizer, before its first gradient leaves; None if it cannot be traced.
    A job with several optimizers has no trace: one optimizer's ids are not in another's graph.
    """
    why = ""
    if number:
        why = "the job has several optimizers"
    elif not all(slot.param.is_cpu for slot in slots):
        why = "it is on a device that computes asynchronously"
    elif after_compilation():
        why = "it is compiled"
    if why:
        board.close(why)
        return None
    return RoundsTrace(slots, board)
