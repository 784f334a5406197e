"""The life of a parameter's gradient: its states, and the events that move it.

Rule of this file: the states and the table of events. arena.py, awaited.py and updates.py say when an event happens;
`move` alone changes `Slot.life`. What must hold between events is in the `validate` of each of these.

A round of a gradient whose `.grad` gets the average, in the words of the table:

    LOCAL -promise-> PROMISED -end-> AWAITED -land-> HOME -settle-> LOCAL       somebody looks at `.grad`
                                             -defer-> PENDING -update-> LOCAL   step() takes the average

A gradient may also leave while its `.grad` awaits nothing: BytePS's optimizer takes averages from the arena, and other
ranks want zeros for a parameter that has no part in this rank's loss. It is STAGED until the round ends.
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
    from prophet_scheduler.frontends.torch.arena import Slot


validating = VALIDATE in os.environ
"""True if the `validate` of arenas, rounds and updates is called wherever its condition must hold."""


class Life(enum.IntEnum):
    """State of a gradient.

    - `staged`: it is at its place in the arena, and its round is open.
    - `awaited`: its average is under way to `.grad`, or there and not looked at. `due`: its round has ended as well, so
      whoever looks at `.grad` waits.
    - `pending`: step() was called, and the update is still to come.
    - `to_come`: one of the last two.
    """

    LOCAL = 0
    """Nothing of it is promised. An engine may still wait for its average in the arena."""
    STAGED = 1
    """It has left in the open round, and its `.grad` awaits no average."""
    PROMISED = 2
    """It has left in the open round. Until this ends, `.grad` stays this worker's own, as in torch."""
    AWAITED = 3
    """Its round has ended, and its average is under way to `.grad`."""
    HOME = 4
    """The average is in `.grad`, where nobody has looked so far."""
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
    """Event in the life of a gradient. `after` has the state after it by the state before; None if it cannot happen."""

    name: str
    after: tuple[Life | None, ...]


#                       after  LOCAL     STAGED  PROMISED  AWAITED   HOME      PENDING
STAGE = Transition("stage", (STAGED, None, None, STAGED, STAGED, None))
"""It leaves, and `.grad` stays as it is. Its last average may have been wanted by nobody."""
PROMISE = Transition("promise", (PROMISED, None, None, PROMISED, PROMISED, None))
"""It leaves, and `.grad` is to get the average."""
END = Transition("end", (LOCAL, LOCAL, AWAITED, AWAITED, HOME, PENDING))
"""The open round ends."""
LAND = Transition("land", (LOCAL, None, None, HOME, HOME, PENDING))
"""The average is copied to `.grad`. Meanwhile another thread may have looked there, or stepped."""
SETTLE = Transition("settle", (LOCAL, STAGED, PROMISED, LOCAL, LOCAL, PENDING))
"""Whoever looked at `.grad` has waited. Meanwhile a signal's handler, or another thread, may have done anything."""
DEFER = Transition("defer", (PENDING, None, None, PENDING, PENDING, None))
"""step() leaves the update for later."""
UPDATE = Transition("update", (LOCAL, STAGED, PROMISED, AWAITED, HOME, LOCAL))
"""The update is made, or will never be."""
FORGET = Transition("forget", (LOCAL, STAGED, STAGED, LOCAL, LOCAL, PENDING))
"""Nobody waits for `.grad` any more."""
TABLE = (STAGE, PROMISE, END, LAND, SETTLE, DEFER, UPDATE, FORGET)


class Sight(enum.Enum):
    """Use of a parameter since the last step, as far as it was noticed."""

    UNSEEN = enum.auto()
    LATE = enum.auto()
    """None was noticed before the next gradient came, with an update still pending."""
    SEEN = enum.auto()


_moving = free_in_forks(threading.RLock())
"""Held while gradients move: threads of the program and of torch may move the same one."""


def move(slots: Iterable[Slot], event: Transition) -> None:
    """Move these gradients by the table. Raises RuntimeError if the event cannot happen to one of them."""
    after = event.after
    with _moving:
        for slot in slots:
            life = after[slot.life]
            if life is None:
                raise RuntimeError(f"the gradient of {slot.name} is {slot.life.name}: it cannot {event.name}")
            slot.life = life
