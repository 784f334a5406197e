"""Probation: how long a program's ways to its parameters are watched before updates may outlast their steps.

Rule of this file: pure; the caller reports steps and iterations. guards.py watches. awaited.py and the engines' front
ends know whose steps and iterations they are.

An update may outlast its step once gradients have shown how the program reaches the parameter. So the first steps that
could leave pending updates keep the barrier, and every use is noted meanwhile. A program that looks at all averages
before each step, such as one that clips by the norm of all gradients, leaves nothing pending. It would be on probation
as long as it runs, and every call of torch would be inspected in vain. After some such iterations no use is noted any
more. The first step that leaves something keeps the barrier all the same and starts the rest of the probation. So a
program that stops clipping is noticed at once, and late updates begin a few steps after that.
"""

from __future__ import annotations

STEPS = 2
"""Steps that keep the barrier while uses are noted."""
IN_VAIN = 8
"""Successive iterations without pending updates, after which uses are no longer noted."""


class Probation:
    """Probation of a module or an optimizer, which is averaged together, for that many `steps`."""

    def __init__(self, steps: int = STEPS) -> None:
        self._left = steps
        self._in_vain = 0
        self._for_good = False

    @property
    def barrier(self) -> bool:
        """True if step() waits for all updates."""
        return self._for_good or self._left > 0

    @property
    def under_way(self) -> bool:
        """True if it waits only until the way the program reaches its parameters is known."""
        return not self._for_good and self._left > 0

    @property
    def watches(self) -> bool:
        """True if uses are noted. A parameter not used before its gradient came then counts as out of sight."""
        return self.under_way and self._in_vain < IN_VAIN

    def stepped(self) -> None:
        """Note a step whose updates could be late but for the barrier."""
        if self.watches:
            self._left -= 1
        self._in_vain = 0

    def in_vain(self) -> None:
        """Note an iteration that left no updates pending."""
        self._in_vain += 1

    def for_good(self) -> None:
        """Keep the barrier for ever: uses cannot be noticed in this program."""
        self._for_good = True
