"""Probation: how long to watch a program's uses of its parameters before updates may outlast their steps.

Rule of this file: pure code; the caller reports steps and iterations. guards.py does the watching. awaited.py and the
engines' front ends know the owner of a step or iteration.

An update may outlast its step once gradients have shown how the program reaches the parameter. So the first steps that
could leave pending updates keep the barrier, and every use is noted meanwhile. A program that reads all averages before
each step, such as one that clips by the total norm, leaves nothing pending. It would stay on probation forever, and
every call of torch would be inspected in vain. So after several such iterations, uses are no longer noted. The next
step that leaves something pending still keeps the barrier and resumes the probation. So a program that stops clipping
is noticed at once, and late updates begin a few steps after that.
"""

from __future__ import annotations

STEPS = 2
"""Steps that keep the barrier while uses are noted."""
IN_VAIN = 8
"""Consecutive iterations without pending updates after which uses are no longer noted."""


class Probation:
    """Probation of a module or an optimizer, which is averaged as a unit, for this number of `steps`."""

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
        """True if step() waits only until it is known how the program reaches its parameters."""
        return not self._for_good and self._left > 0

    @property
    def watches(self) -> bool:
        """True if uses are noted. A parameter not used before its gradient arrives then counts as used undetected."""
        return self.under_way and self._in_vain < IN_VAIN

    def stepped(self) -> None:
        """Note a step whose updates could be late without the barrier."""
        if self.watches:
            self._left -= 1
        self._in_vain = 0

    def in_vain(self) -> None:
        """Note an iteration that left no updates pending."""
        self._in_vain += 1

    def for_good(self) -> None:
        """Keep the barrier forever: uses cannot be detected in this program."""
        self._for_good = True
