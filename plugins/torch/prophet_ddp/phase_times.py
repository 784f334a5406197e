"""Times of rounds in two phases: predictions, and the order of blocks.

Rule of this file: pure. phases.py has the operations, and dividing.py says who owns what. Times are seconds, sizes
bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from prophet_ddp.control import TWO_PHASES
from prophet_ddp.dividing import EVENLY, WHOLE, Division
from prophet_ddp.sequencing import profile_of
from prophet_scheduler.core.choice import Choice, Question
from prophet_scheduler.core.cut import Block, Cut
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.policies.algorithms.collective import LEAST_OVERHEAD_S, LEAST_SIZE, SIZES
from prophet_scheduler.policies.algorithms.sequence import LEAST_AT_ONCE

if TYPE_CHECKING:
    from prophet_ddp.layout import ModuleLayout

AT_ONCE = 4
"""Maximum number of operations in flight for each owner."""


class PhaseWire:
    """Prediction of both phases of `blocks`, by place, on this network of `ranks` ranks.

    What goes to or from one owner uses one way, and blocks take turns on each. What has no single owner uses all ways,
    and is reduced in a ring of operations.
    """

    def __init__(self, division: Division, blocks: Sequence[Block], network: Network, ranks: int) -> None:
        self._ways: list[Sequence[int]] = []
        self.reduces_s: list[float] = []
        """Seconds that each block occupies its ways in the first phase."""
        self.gathers_s: list[float] = []
        """Seconds that each block occupies its ways in the second phase."""
        network = replace(network, overhead_s=max(network.overhead_s, LEAST_OVERHEAD_S))
        for block in blocks:
            owner = division.owner(block)
            half_s = network.transfer_s(block.size_bytes / 2) * (ranks if owner >= 0 else 1)
            more_s = (ranks - 2) * network.overhead_s if owner == EVENLY else 0.0
            self._ways.append(range(ranks) if owner < 0 else (owner,))
            self.reduces_s.append(network.transfer_s(block.size_bytes) if owner == WHOLE else half_s + more_s)
            self.gathers_s.append(0.0 if owner == WHOLE else half_s)

    def send(
        self, order: Sequence[int], takes_s: Sequence[float], ready_s: Sequence[float]
    ) -> tuple[list[float], list[float]]:
        """Return when each block begins and ends, by place, if blocks that are ready at `ready_s` go in this order."""
        begins_s, ends_s = [0.0] * len(order), [0.0] * len(order)
        free_s: dict[int, float] = {}
        for place in order:
            ways = self._ways[place]
            begins_s[place] = max(ready_s[place], *(free_s.get(way, 0.0) for way in ways))
            ends_s[place] = begins_s[place] + takes_s[place]
            free_s |= dict.fromkeys(ways, ends_s[place])
        return begins_s, ends_s


def by_generation(ready_s: Sequence[float]) -> list[int]:
    """Return the places of blocks in the order in which backward generates them; of several at once, the last first."""
    return sorted(range(len(ready_s)), key=lambda place: (ready_s[place], -place))


def orders_of(
    wire: PhaseWire, ready_s: Sequence[float], needed: Sequence[int], at_once: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the places of the wire's blocks in the order of reduction, and in the order of gathering.

    `ready_s`, by place, is when each block is generated. `needed` has the places as forward needs the blocks. `at_once`
    operations are in flight for each owner. An owner's blocks share its link, and other links would idle if everything
    in flight used the same one. So a block that would wait long for its link lets others pass.
    """

    def ordered(wanted: Sequence[int], takes_s: Sequence[float], ready_s: Sequence[float]) -> tuple[int, ...]:
        lead_s = at_once / 2 * sum(takes_s) / len(takes_s)
        begins_s, _ = wire.send(wanted, takes_s, ready_s)
        return tuple(sorted(wanted, key=lambda place: max(ready_s[place], begins_s[place] - lead_s)))

    return (
        ordered(by_generation(ready_s), wire.reduces_s, ready_s),
        ordered(needed, wire.gathers_s, [0.0] * len(ready_s)),
    )


def two_phases_s(layout: ModuleLayout, cut: Cut, profile: Profile, network: Network) -> float:
    """Return the predicted time of an iteration in two phases.

    The program waits for the first phase and an exchange of norms. Then each layer waits for its own blocks. Operations
    in flight share the wire, so a block arrives together with the next ones.
    """
    division = layout.division(cut)
    blocks = layout.blocks_under(division.cut)
    wire = PhaseWire(division, blocks, network, layout.ranks)
    rows = profile_of(blocks, profile).gradients
    ready_s = [row.generation_s for row in rows]
    _, ends_s = wire.send(by_generation(ready_s), wire.reduces_s, ready_s)
    delay_s = network.ack_delay_s / 2  # Each phase has half of an all-reduce's messages.
    now = max(profile.backward_s, *ends_s) + 2 * delay_s
    _, ends_s = wire.send(range(len(blocks)), wire.gathers_s, [now] * len(blocks))
    for place, row in enumerate(rows):
        arrives_s = max(ends_s[place : place + LEAST_AT_ONCE]) + delay_s
        now = max(now, arrives_s) + row.forward_s
    return now


def two_phases(question: Question, layout: ModuleLayout) -> Iterator[Choice]:
    """Yield choices with two phases, by block size."""
    profile, network = question.profile, question.network
    for size in SIZES:
        if not LEAST_SIZE <= size <= max(profile.total_bytes, LEAST_SIZE):
            continue
        cut = Cut.uniform(size)
        yield Choice(cut, 2 * size, two_phases_s(layout, cut, profile, network), TWO_PHASES)
