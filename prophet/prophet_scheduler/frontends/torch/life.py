"""The life cycle of a parameter's gradient: its states, and the events that change them.

Rule of this file: the states and the table of events. arena.py, awaited.py and updates.py decide when an event happens;
only `move` changes `Slot.life`. The `validate` methods of those files check the invariants between events.

A round of a gradient whose `.grad` gets the average, in terms of the table:

    LOCAL -promise-> PROMISED -end-> AWAITED -land-> HOME -settle-> LOCAL       the program accesses `.grad`
                                             -defer-> PENDING -update-> LOCAL   step() takes the average

A gradient may also be sent while its `.grad` awaits nothing: BytePS's optimizer takes averages from the arena, and
other ranks need zeros for a parameter that has no part in this rank's loss. It is STAGED until the round ends.
"""

from __future__ import annotations

import enum
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prophet_scheduler.core.settings import VALIDATE
from prophet_scheduler.forks import free_in_forks

if TYPE_CHECKING:
    from prophet_scheduler.frontends.torch.slot import Slot


validating = VALIDATE in os.environ
"""True if the `validate` of arenas, rounds and updates is called wherever its conditions must hold."""


class Life(enum.IntEnum):
    """State of a gradient.

    - `staged`: the gradient is at its place in the arena, and its round is open.
    - `awaited`: `.grad` awaits the average, or has it but was not accessed yet. `due`: also, its round has ended, so
      that an access to `.grad` waits.
    - `pending`: step() was called, and the update is still to come.
    - `to_come`: awaited or pending.
    """

    LOCAL = 0
    """Nothing is promised for `.grad`. An engine may still wait for the average in the arena."""
    STAGED = 1
    """The gradient was sent in the open round, and its `.grad` awaits no average."""
    PROMISED = 2
    """The gradient was sent in the open round. Until the round ends, `.grad` remains this worker's own, as in torch."""
    AWAITED = 3
    """The round has ended, and `.grad` awaits the average."""
    HOME = 4
    """The average is in `.grad`, which has not been accessed yet."""
    PENDING = 5
    """The average is for an update, at the parameter's next use."""

    staged: bool
    awaited: bool
    due: bool
    pending: bool
    to_come: bool

    def __init__(self, _number: int) -> None:
        self.staged = self.name in ("STAGED", "PROMISED")
        self.due = self.name in ("AWAITED", "HOME")
        self.awaited = self.due or self.name == "PROMISED"
        self.pending = self.name == "PENDING"
        self.to_come = self.awaited or self.pending


LOCAL, STAGED, PROMISED, AWAITED, HOME, PENDING = Life


@dataclass(frozen=True)
class Transition:
    """Event in the life of a gradient. `after`: the new state, by old state; None if the event cannot happen in it."""

    name: str
    after: tuple[Life | None, ...]


#                       after  LOCAL     STAGED  PROMISED  AWAITED   HOME      PENDING
STAGE = Transition("stage", (STAGED, None, None, STAGED, STAGED, None))
"""The gradient is sent, and `.grad` stays as it is. Its last average may have gone unused."""
PROMISE = Transition("promise", (PROMISED, None, None, PROMISED, PROMISED, None))
"""The gradient is sent, and `.grad` is to get the average."""
END = Transition("end", (LOCAL, LOCAL, AWAITED, AWAITED, HOME, PENDING))
"""The open round ends."""
LAND = Transition("land", (LOCAL, None, None, HOME, HOME, PENDING))
"""The average is copied to `.grad`. Meanwhile another thread may have accessed `.grad`, or stepped."""
SETTLE = Transition("settle", (LOCAL, STAGED, PROMISED, LOCAL, LOCAL, PENDING))
"""An access to `.grad` has waited. Meanwhile a signal handler or another thread may have done anything."""
DEFER = Transition("defer", (PENDING, None, None, PENDING, PENDING, None))
"""step() leaves the update for later."""
UPDATE = Transition("update", (LOCAL, STAGED, PROMISED, AWAITED, HOME, LOCAL))
"""The update is done, or will never be."""
FORGET = Transition("forget", (LOCAL, STAGED, STAGED, LOCAL, LOCAL, PENDING))
"""Nothing waits for `.grad` any more."""
TABLE = (STAGE, PROMISE, END, LAND, SETTLE, DEFER, UPDATE, FORGET)


class Sight(enum.Enum):
    """Noticed use of a parameter since the last step."""

    UNSEEN = enum.auto()
    LATE = enum.auto()
    """No use was noticed before the next gradient arrived, with an update still pending."""
    SEEN = enum.auto()


_moving = free_in_forks(threading.RLock())
"""Held while states change: threads of the program and of torch may move the same gradient."""


def move(slots: Iterable[Slot], event: Transition) -> None:
    """Apply an event to these gradients. Raises RuntimeError if it cannot happen to one of them."""
    after = event.after
    with _moving:
        for slot in slots:
            life = after[slot.life]
            if life is None:
                raise RuntimeError(f"the gradient of {slot.name} is {slot.life.name}: it cannot {event.name}")
            slot.life = life
