"""Exchanges for tests that sum pages themselves.

Rule of this file: only their common part; each test decides whose pages are summed.
"""

from __future__ import annotations


class QuietExchange:
    """Exchange of a program with nothing under way; callers poll for pages."""

    def under_way(self) -> bool:
        return False

    def pages_under_way(self) -> bool:
        return False

    def begin_anew(self) -> None: ...
