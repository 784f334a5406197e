"""Questions of one job to its policy: when predictions would change, and the search for new ones.

Rule of this file: it builds questions from estimates and has them answered a little at a time. No clock, thread or
file. Times are in seconds, sizes in bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from prophet_scheduler.core.arena import at_pace, profile_under, span_s
from prophet_scheduler.core.choice import Choice, IterationEnd, Measured, Question
from prophet_scheduler.core.plan import MATERIAL_CHANGE, MATERIAL_SHIFT_S

if TYPE_CHECKING:
    from prophet_scheduler.core.choice import ChoosingPolicy, Search
    from prophet_scheduler.core.cut import Cut
    from prophet_scheduler.core.profile import Profile
    from prophet_scheduler.session.messages import Basis, SessionTerms, WaysOf

RECENT = 10
"""Number of recent iterations in the median time."""
EVENTS_A_TURN = 1_000_000
"""Simulated events per turn of the search: about 200 ms."""


class Present:
    """Blocks of the job, present and past."""

    def __init__(self) -> None:
        self.cut: Cut | None = None
        self.way = ""
        self.used: list[Cut] = []
        """The job's cuts so far, oldest first."""
        self.ways: Sequence[str] = ()
        """The engine's own ways of averaging that are possible now."""
        self.recent_s: deque[float] = deque(maxlen=RECENT)
        """Times of the latest iterations."""

    def take_in(self, cut: Cut, way: str, ended: Sequence[IterationEnd], ways: Sequence[str]) -> None:
        """Record the cut and way in force, the possible ways, and the iterations finished since the last call."""
        self.ways = ways
        if (cut, way) != (self.cut, self.way):
            self.cut, self.way = cut, way
            self.recent_s.clear()
            if cut not in self.used:
                self.used.append(cut)
        self.recent_s.extend(one.took_s for one in ended if self.has(one) and not one.opens)

    def has(self, ended: IterationEnd) -> bool:
        """Return True if this iteration ran under the present cut and way."""
        return (ended.cut, ended.way) == (self.cut, self.way)


class Questions:
    """Questions to `policy`, and to `ways_of` for the engine's own ways of averaging."""

    def __init__(self, policy: ChoosingPolicy, terms: SessionTerms, ways_of: WaysOf | None = None) -> None:
        self._policy = policy
        self._terms = terms
        self._ways_of = ways_of
        self.last: Question | None = None
        """The last question, answered or not."""
        self._ways: Sequence[str] = ()
        """Ways covered by the last question."""
        self.search: Search | None = None
        """The search for the answer; None once it is found."""
        self._message_s: float | None = None
        self._finest: Profile | None = None

    def lacks(self, ways: Sequence[str]) -> bool:
        """Return True if the last question did not cover exactly these ways."""
        return self.last is not None and self._ways != ways

    def is_another(self, present: Present, cut: Cut, basis: Basis) -> bool:
        """Return True if predictions from `basis` would differ from the last ones."""
        old = self.last
        if old is None or old.barrier != basis.barrier or self.lacks(present.ways):
            return True
        return _differs(old, basis, cut.typical_bytes(basis.profile.total_bytes))

    def ask(self, present: Present, basis: Basis, credit: int | None) -> None:
        """Start a search for predictions. The profile belongs to the cut in force, which has this `credit` (bytes)."""
        cut, terms = present.cut, self._terms
        assert cut is not None and terms.shape is not None
        measured = None
        if credit is not None and present.recent_s and not present.way:
            measured = Measured(cut, credit, median(present.recent_s))
        self._ways = present.ways
        self.last = Question(
            self._learned(basis.profile, cut),
            basis.network,
            terms.shape,
            (cut, *(other for other in present.used if other != cut and terms.adapts)),
            anew=terms.adapts and len(present.used) < terms.changes.most_cuts,
            arena=terms.arena,
            jitter_s=basis.jitter_s,
            measured=measured,
            barrier=basis.barrier,
            message_s=self._message_s,
        )
        self.search = self._policy.search(self.last)

    def _learned(self, profile: Profile, cut: Cut) -> Profile:
        """Return the most detailed profile so far, scaled to the pace of the newest."""
        finest = self._finest
        finer = finest is None or len(profile.gradients) >= len(finest.gradients)
        if finest is None or finer or not self._terms.arena or finest.total_bytes != profile.total_bytes:
            self._finest = profile
            return profile
        expected_s = span_s(profile_under(finest, cut))
        pace = span_s(profile) / expected_s if expected_s > 0 else 1.0
        return at_pace(finest, pace) if abs(pace - 1) > MATERIAL_CHANGE else finest

    def work(self) -> Sequence[Choice] | None:
        """Advance the search, if any; return its choices once it has finished."""
        search = self.search
        if search is None or not search.work(EVENTS_A_TURN):
            return None
        self.search, self._message_s = None, search.message_s
        assert self.last is not None
        more = () if self._ways_of is None else self._ways_of(self.last, self._ways)
        return [*search.choices, *more]


def _differs(old: Question, basis: Basis, size: int) -> bool:
    """Return True if backward, transfer or acknowledgement times differ enough to change predictions.

    `size`: the job's present block size.
    """
    profile, network = basis.profile, basis.network
    before, after = old.profile.total_bytes, profile.total_bytes
    if abs(before - after) > MATERIAL_CHANGE * max(before, after):
        return True
    count = max(1.0, after / size)
    return (
        _differ(old.profile.backward_s, profile.backward_s)
        or _differ(count * old.network.transfer_s(size), count * network.transfer_s(size))
        or abs(network.ack_delay_s - old.network.ack_delay_s) > max(MATERIAL_SHIFT_S, network.transfer_s(size))
    )


def _differ(a: float, b: float) -> bool:
    return abs(a - b) > max(MATERIAL_CHANGE * max(a, b), MATERIAL_SHIFT_S)
