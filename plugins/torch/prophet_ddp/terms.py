"""Terms of a module's rounds: how blocks travel, what is settled before the first round, and the hardware.

Rule of this file: values and interfaces alone. assembly.py makes them and rounds.py uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from prophet_ddp.arena import DdpArena
from prophet_ddp.control import Control
from prophet_ddp.events import EventLog
from prophet_ddp.issuer import Issuer
from prophet_scheduler.core.cut import MOST_BLOCK_BYTES, Cut
from prophet_scheduler.frontends.torch.streams import Streams
from prophet_scheduler.policies.algorithms.sequence import LEAST_AT_ONCE

if TYPE_CHECKING:
    from prophet_ddp.ddp_logger import IterationTimes

MOST_EXACT = 2
"""Most ranks whose sums are the same in any order. So in two phases each gradient has one owner, who tells its norm to
the last bit; with more ranks all own an equal part of each block (ring.py)."""
TORCH = "torch's reducer"
"""torch's own reducer has its turn (turns.py)."""
TORCH_CUT = Cut.uniform(MOST_BLOCK_BYTES)
"""Cut that stands for the program's own buckets."""
SMALL_CUT = Cut.uniform(1 << 20)
"""Cut that stands for buckets of a size that is mostly better than the default one."""
TORCH_WARM_UP = 1
"""Iterations that its turn begins with: nothing was under way on its connections."""
FOR_GOOD = -1
"""Value in place of a number of iterations: torch's reducer stays."""


def bucket_bytes_of(cut: Cut | None) -> int:
    """Return the size of the buckets that a cut stands for; 0 for the program's own."""
    return 0 if cut is None or cut == TORCH_CUT else cut.block_bytes_at(0)


@dataclass(frozen=True)
class Channel:
    """Way of a module's blocks, and its log: `ranks` ranks share its process group. `loss` says in words, from an
    error of the issuer's in an iteration, why no average will come any more. `others` tells the other ranks that this
    one waits in an iteration, and says in words which of them do not.
    """

    issuer: Issuer
    control: Control
    log: EventLog
    ranks: int
    loss: Callable[[str, int], str]
    others: Callable[[int], str]


@dataclass(frozen=True)
class RoundTerms:
    """Terms settled for a module before its first round, alike on all ranks.

    `first_cut` of gradients of these bytes; `first_at_once`: operations under way before anything is decided. With
    `fusion` small gradients travel together. `uses_vary`: parameters may have no gradient in a round
    (find_unused_parameters), and one that no rank used keeps its `.grad`. `counted`: the graph is static, and a
    parameter may get several gradients in a backward pass. `arranges`: from the second round on gradients lie in the
    arena in the order of generation in the first, the last one first; the order of registration is only a guess at
    that. `divides`: rounds may have two phases (phases.py). `in_place`: all gradients of a parameter are in one memory,
    as with gradient_as_bucket_view: one that the program kept has the values of the next.
    """

    first_cut: Callable[[Sequence[int]], Cut]
    first_at_once: int = LEAST_AT_ONCE
    fusion: bool = True
    uses_vary: bool = False
    counted: bool = False
    arranges: bool = False
    divides: bool = False
    in_place: bool = False


class Hardware(Protocol):
    """Hardware that holds a module's parameters: processors, or a GPU."""

    def streams(self, device: torch.device, /) -> Streams:
        """Return the streams of the parameters on this device."""
        ...

    @property
    def arena(self) -> Callable[..., DdpArena]:
        """Return the function that makes the arena of a module."""
        ...


class ErrorLog(Protocol):
    """Logger of the module, as its rounds need it."""

    times: IterationTimes | None
    """Times of this iteration, if it is looked at."""

    def set_error_and_log(self, error: str, /) -> None:
        """Keep the error that ended a pass."""
        ...

    def copied_back(self) -> Sequence[int]:
        """Return the registered parameters, by place, in the order in which torch's reducer copies their averages."""
        ...


class NoLog:
    """Logger of a module that has none."""

    times: IterationTimes | None = None

    def set_error_and_log(self, error: str, /) -> None:
        """Ignore the error."""

    def copied_back(self) -> Sequence[int]:
        """Return none."""
        return ()
