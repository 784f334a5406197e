"""Terms of a module's rounds: how blocks travel, and what is fixed before the first round.

Rule of this file: values only. assembly.py makes them, and rounds.py uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prophet_ddp.control import Control
from prophet_ddp.events import EventLog
from prophet_ddp.issuer import Issuer
from prophet_scheduler.core.cut import MOST_BLOCK_BYTES, Cut
from prophet_scheduler.core.network import Probe
from prophet_scheduler.policies.algorithms.sequence import LEAST_AT_ONCE

if TYPE_CHECKING:
    from prophet_ddp.ddp_logger import IterationTimes

MOST_EXACT = 2
"""Maximum number of ranks whose sums are the same in any order. Up to it each gradient has one owner in two phases,
which tells its norm to the last bit. With more ranks all own an equal part of each block (phases.py)."""
TORCH = "torch's reducer"
"""Way of averaging while torch's own reducer has its turn (turns.py)."""
TORCH_CUT = Cut.uniform(MOST_BLOCK_BYTES)
"""Cut that stands for the program's own buckets."""
SMALL_CUT = Cut.uniform(1 << 20)
"""Cut that stands for smaller buckets, of a size that is mostly better than the default."""
TORCH_WARM_UP = 1
"""Number of iterations at the start of a turn that do not count: its connections have been idle."""
FOR_GOOD = -1
"""Stands for the number of iterations if torch's reducer stays."""


def bucket_bytes_of(cut: Cut | None) -> int:
    """Return the bucket size that a cut stands for, in bytes; 0 for the program's own."""
    return 0 if cut is None or cut == TORCH_CUT else cut.block_bytes_at(0)


@dataclass(frozen=True)
class Channel:
    """Path of a module's blocks, and its log; `ranks` ranks share its process group, `members` by number in the job.
    `loss(error, iteration)` returns a line on why no average will arrive any more, from an error of the issuer's.
    `others(iteration)` tells the other ranks that this one waits in an iteration, and returns a phrase on those that do
    not. `alone` is the duration of a lone operation, if known.
    """

    issuer: Issuer
    control: Control
    log: EventLog
    ranks: int
    loss: Callable[[str, int], str]
    others: Callable[[int], str]
    members: Sequence[int] = ()
    alone: Probe | None = None


@dataclass(frozen=True)
class RoundTerms:
    """Terms of a module, fixed before its first round and alike on all ranks.

    `first_cut` makes the first cut for gradients of these bytes. `first_at_once`: operations in flight before anything
    is decided. With `fusion` small gradients travel together. `uses_vary`: parameters may have no gradient in a round
    (find_unused_parameters), and one that no rank used keeps its `.grad`. `counted`: the graph is static, and a
    parameter may get several gradients in a backward pass. `arranges`: from the second round on the arena has gradients
    in the order in which the first round generated them, the last one first; registration only hints at that order.
    `divides`: rounds may have two phases (phases.py). `in_place`: all gradients of a parameter use the same memory, as
    with gradient_as_bucket_view, so one that the program kept gets the values of the next. `adapts`: the cut may
    change. `may_leave`: torch's reducer is tried as well, and gets the module back if it is faster.
    """

    first_cut: Callable[[Sequence[int]], Cut]
    first_at_once: int = LEAST_AT_ONCE
    fusion: bool = True
    uses_vary: bool = False
    counted: bool = False
    arranges: bool = False
    divides: bool = False
    in_place: bool = False
    adapts: bool = False
    may_leave: bool = False


class NoLog:
    """Logger of a module without one."""

    times: IterationTimes | None = None

    def set_error_and_log(self, error: str, /) -> None:
        """Ignore the error."""

    def copied_back(self) -> Sequence[int]:
        return ()
