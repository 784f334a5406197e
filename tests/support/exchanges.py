"""Ways to sum pages that a test makes itself.

Rule of this file: what they have alike; whose pages are summed is the test's.
"""

from __future__ import annotations


class QuietExchange:
    """Of a program that has nothing under way, with pages that are asked for until they are back."""

    def under_way(self) -> bool:
        return False

    def pages_under_way(self) -> bool:
        return False

    def begin_anew(self) -> None: ...
