"""How long it is watched in which ways a program reaches its parameters, before updates may outlast their steps.

Rule of this file: pure; what steps and iterations did comes in. guards.py watches, and whose steps and iterations they
are is awaited.py's and the engines' front ends' to know.

An update may outlast its step once gradients have shown how the program reaches the parameter. So the first steps that
could leave updates to come keep the barrier, and meanwhile every use is noted. A program that looks at all averages
before each step, as one that clips by the norm of all gradients does, leaves nothing to come; it would be on probation
for as long as it runs, and every call of torch would be looked at for nothing. After some such iterations none is any
more. The first step that leaves something has the barrier all the same and begins the rest of the probation, so a
program that stops clipping is noticed at once, and late updates begin a few steps after that.
"""

from __future__ import annotations

STEPS = 2
"""That keep the barrier while uses are noted."""
IN_VAIN = 8
"""Iterations in a row that left nothing to come, after which uses are not noted any more."""


class Probation:
    """Of what is averaged together: a module or an optimizer."""

    def __init__(self) -> None:
        self._left = STEPS
        self._in_vain = 0
        self._for_good = False

    @property
    def barrier(self) -> bool:
        """Whether step() waits for all updates."""
        return self._for_good or self._left > 0

    @property
    def under_way(self) -> bool:
        """Whether that is so only until it is known how the program reaches its parameters."""
        return not self._for_good and self._left > 0

    @property
    def watches(self) -> bool:
        """Whether uses are noted, and a parameter that was not used before its gradient came is taken to be out of
        sight.
        """
        return self.under_way and self._in_vain < IN_VAIN

    def stepped(self) -> None:
        """A step had updates to make that may be late but for the barrier."""
        if self.watches:
            self._left -= 1
        self._in_vain = 0

    def in_vain(self) -> None:
        """An iteration left no updates to come."""
        self._in_vain += 1

    def for_good(self) -> None:
        """Uses cannot be noticed in this program: no update outlasts its step from now on."""
        self._for_good = True
