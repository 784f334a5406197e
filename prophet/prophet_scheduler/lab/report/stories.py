"""What a report tells, wherever it comes from.

Rule of this file: immutable values, and what follows from them alone; no file and no drawing. Times are seconds after
the run's beginning, sizes bytes, rates bytes per second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from prophet_scheduler.core.cut import Segment
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.status import ArmStatus
from prophet_scheduler.core.transfer import Transfer
from prophet_scheduler.lab.iterations import Times, rests_from, times_of
from prophet_scheduler.lab.records import Results

LEAST_MEASURED = 3
"""Iterations under a cut from which it can be told what one took."""


@dataclass(frozen=True)
class Lap:
    """One iteration, by when it ended."""

    end_s: float
    period_s: float


@dataclass(frozen=True)
class CutInForce:
    """A cut that was in force from `from_s` on, and `predicted_s`: an iteration under it, as far as that was said.

    Where more was learned under a cut, and it was predicted anew, it is here again.
    """

    from_s: float
    segments: tuple[Segment, ...]
    reason: str = ""
    predicted_s: float | None = None

    @property
    def sizes(self) -> tuple[int, int]:
        """The smallest and the largest blocks."""
        sizes = [segment.block_bytes for segment in self.segments] or [0]
        return min(sizes), max(sizes)


@dataclass(frozen=True)
class Moved:
    """What moved from `from_s` to `until_s`, and for how many of these seconds each way was busy."""

    from_s: float
    until_s: float
    sent_bytes: int
    received_bytes: int
    sending_s: float
    receiving_s: float


@dataclass(frozen=True)
class Moment:
    """All transfers of some seconds; `left_out` more are not on record. `computing`: (what, from, until)."""

    name: str
    from_s: float
    until_s: float
    transfers: tuple[Transfer, ...]
    left_out: int = 0
    computing: tuple[tuple[str, float, float], ...] = ()


@dataclass(frozen=True)
class CutCompared:
    """What an iteration was predicted to take under a cut, and what it took: a mean of so many."""

    cut: CutInForce
    until_s: float
    measured_s: float | None
    count: int

    @property
    def error(self) -> float | None:
        """Of the prediction, as a share of what was measured."""
        if self.measured_s is None or self.cut.predicted_s is None:
            return None
        return self.cut.predicted_s / self.measured_s - 1


@dataclass(frozen=True)
class Chapter:
    """One worker, or one policy of an experiment. `stock_s`: an iteration in the engine's own order, predicted.

    `arena`: ids of transfers are places in the arena. `all_reduce`: a push is the way back as well. `waited_s`: seconds
    an iteration that the program waited for each gradient; where that is not on record `queued_s` has how long each
    waited for the wire.
    """

    name: str
    laps: Sequence[Lap] = ()
    moments: Sequence[Moment] = ()
    cuts: Sequence[CutInForce] = ()
    traffic: Sequence[Moved] = ()
    networks: Sequence[tuple[float, Network]] = ()
    waited_s: Mapping[str, float] = field(default_factory=dict)
    queued_s: Mapping[str, float] = field(default_factory=dict)
    stock_s: float | None = None
    arena: bool = True
    all_reduce: bool = False
    arms: Sequence[ArmStatus] = ()
    """What the job could do, as believed at its end, the fastest first."""
    notes: Sequence[str] = ()

    @property
    def recut_s(self) -> float | None:
        """When blocks last changed while it trained; a cut that was only predicted anew is in the list once more."""
        pairs = zip((None, *self.cuts), self.cuts, strict=False)
        since_s = [cut.from_s for before, cut in pairs if before is None or before.segments != cut.segments]
        began_s = self.laps[0].end_s - self.laps[0].period_s if self.laps else 0.0
        return since_s[-1] if since_s and since_s[-1] > began_s else None

    @property
    def rests_from(self) -> int:
        """The first of the iterations at rest."""
        return rests_from([lap.end_s - lap.period_s for lap in self.laps], self.recut_s)

    @property
    def times(self) -> Times | None:
        """What is counted of its iterations."""
        return times_of([([lap.period_s for lap in self.laps], self.rests_from)]) if self.laps else None

    def compared(self) -> list[CutCompared]:
        """Each cut that was in force, with what iterations took under it."""
        rows = []
        ends = [*(cut.from_s for cut in self.cuts[1:]), float("inf")]
        for cut, until_s in zip(self.cuts, ends, strict=False):
            # The first one is of both cuts.
            periods = [
                lap.period_s for lap in self.laps if cut.from_s < lap.end_s - lap.period_s and lap.end_s <= until_s
            ]
            measured_s = fmean(periods) if len(periods) >= LEAST_MEASURED else None
            rows.append(CutCompared(cut, until_s, measured_s, len(periods)))
        return rows


@dataclass(frozen=True)
class Story:
    """A run. `facts` are a few lines about all of it, `settings` what was set; `results` those of an experiment."""

    title: str
    facts: Sequence[str]
    chapters: Sequence[Chapter]
    settings: Mapping[str, str] = field(default_factory=dict)
    results: Results | None = None
