"""Rounds that end with a page, in which all workers read what the deciding one wants.

Rule of this file: pure; an engine's own code sends the pages. All workers count alike. So all send a page in the same
rounds, read it before the same round, and take up the same then.
"""

from __future__ import annotations

from prophet_scheduler.core.cut import EARLY_ROUNDS, RECUT_ROUNDS


class PageRounds:
    """Count of rounds on one worker. Each of the first EARLY_ROUNDS ends with a page, and then every RECUT_ROUNDS-th.

    `tried`: rounds after a decision that end with a page as well. The page of the first of them is late: it is sent
    when the next round begins, so that it tells how the first one went, and there is no second bad round.
    """

    def __init__(self, tried: int = 0) -> None:
        self.ended = 0
        """Rounds that have ended."""
        self._tried = self._since = tried

    def round_ends(self) -> bool:
        """Note the end of a round. Return True if it ends with a page."""
        self.ended += 1
        self._since += 1
        early = self.ended <= EARLY_ROUNDS or self._since <= self._tried
        return not self.late and (early or self.ended % RECUT_ROUNDS == 0)

    @property
    def late(self) -> bool:
        """True if the page of the last round is to be sent before the next one begins."""
        return self._tried > 0 and self._since == 1

    def taken_up(self) -> None:
        """Note that a decision holds from the next round on."""
        self._since = 0
