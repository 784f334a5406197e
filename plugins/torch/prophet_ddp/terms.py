"""What a module's rounds are made with: how blocks travel, what is settled before the first round, and the hardware.

Rule of this file: values and interfaces alone. What becomes of them is rounds.py's, who makes them assembly.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from prophet_ddp.arena import DdpArena
from prophet_ddp.control import Control
from prophet_ddp.events import EventLog
from prophet_ddp.issuer import Issuer
from prophet_scheduler.core.cut import MOST_BLOCK_BYTES, Cut
from prophet_scheduler.frontends.torch.streams import Streams
from prophet_scheduler.policies.algorithms.sequence import LEAST_AT_ONCE

UNORDERED = "as generated"
"""Blocks are all-reduced in the order in which they come, before anything is known of the job."""
WHOLE = ""
"""The usual way of averaging: blocks are all-reduced in an order that was chosen."""
TWO_PHASES = "two phases"
"""They are summed by their owners and gathered later (phases.py)."""
TORCH = "torch's reducer"
"""torch's own reducer has its turn (turns.py)."""
TORCH_CUT = Cut.uniform(MOST_BLOCK_BYTES)
"""What stands for its buckets."""
TORCH_WARM_UP = 2
"""Iterations that its turn begins with: it has its last buckets in the third."""
FOR_GOOD = -1
"""In place of a number of iterations: torch's reducer stays."""


@dataclass(frozen=True)
class Channel:
    """How a module's blocks travel, and what is said of them: `ranks` ranks share its process group."""

    issuer: Issuer
    control: Control
    log: EventLog
    ranks: int


@dataclass(frozen=True)
class RoundTerms:
    """What is settled of a module before its first round, alike on all ranks.

    `first_cut` of gradients of these bytes; `first_at_once`: operations under way before anything is decided. With
    `fusion` small gradients travel together. `uses_vary`: parameters may have no gradient in a round
    (find_unused_parameters), and then what no rank used keeps its `.grad`. `counted`: the graph is static, and a
    parameter may get several gradients in a backward pass. `arranges`: from the second round on gradients lie in the
    arena as those of the first were generated, the last one first; the order of registration is but a guess at that.
    `divides`: rounds may have two phases (phases.py).
    """

    first_cut: Callable[[Sequence[int]], Cut]
    first_at_once: int = LEAST_AT_ONCE
    fusion: bool = True
    uses_vary: bool = False
    counted: bool = False
    arranges: bool = False
    divides: bool = False


class Hardware(Protocol):
    """What a module's parameters are on: processors, or a GPU."""

    def streams(self, device: torch.device, /) -> Streams:
        """Those of the parameters on this device."""
        ...

    @property
    def arena(self) -> Callable[..., DdpArena]:
        """What makes the arena of a module."""
        ...
