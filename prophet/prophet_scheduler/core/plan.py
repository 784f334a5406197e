"""A plan: what goes on the wire next, as a value that is swapped whole.

Rule of this file: the knobs and nothing that turns them; policies make plans, the queue follows them. Units are bytes
and seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prophet_scheduler.core.cut import Cut
    from prophet_scheduler.core.network import Network


@dataclass(frozen=True)
class Deadline:
    """A more urgent gradient is predicted: `rank` is its rank, `time_s` when, after backward began."""

    time_s: float
    rank: int


@dataclass(frozen=True)
class QueuePlan:
    """The four knobs for one queue. Every system in the literature is a setting of them.

    `order`: rank of each gradient id, 0 first; None means arrival order. An id that is not in it is its own rank, since
    the front end gives ids in forward order: an empty order is forward order before a profile is known.
    `credit`: bytes allowed in flight; None means unlimited. A task always goes when nothing is in
    flight, so a credit of 1 means one slice at a time.
    `deadlines`: predicted arrivals that a less urgent transfer must not run past.
    `groups`: group of each gradient id; a group travels as one, once every member is there.
    """

    order: Mapping[int, int] | None = None
    credit: int | None = None
    deadlines: tuple[Deadline, ...] = ()
    groups: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """What goes on the wire next: a value, swapped whole. `Plan()` is arrival order, unlimited.

    `generation_s` and `size_bytes` (per gradient id) and `network` are what the queue needs to turn
    a deadline into a decision: when the iteration began, and how long a transfer takes. A plan with groups is
    taken up when the next iteration begins, which the generation times tell.
    `deadline_slack_s` is how late a prediction may come true before the queue stops waiting for it.
    `cut` is where this worker's policy would have blocks begin and end, None where it leaves that as it is. It is not
    the queue's: a cut holds once all workers have agreed on it, and the plan must make sense under any.
    """

    push: QueuePlan = field(default_factory=QueuePlan)
    pull: QueuePlan = field(default_factory=QueuePlan)
    generation_s: Mapping[int, float] = field(default_factory=dict)
    size_bytes: Mapping[int, int] = field(default_factory=dict)
    network: Network | None = None
    deadline_slack_s: float = 0.0
    policy: str = "fifo"
    cut: Cut | None = None
