"""Content of a report, independent of its source.

Rule of this file: immutable values and what can be computed from them alone; no file access, no drawing. Times are
seconds since the run's start, sizes bytes, rates bytes per second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from prophet_scheduler.core.cut import Segment
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.status import ArmStatus
from prophet_scheduler.core.transfer import Transfer
from prophet_scheduler.lab.iterations import Times, rests_from, times_of
from prophet_scheduler.lab.records import Results
from prophet_scheduler.watch.rows import RatesRow

LEAST_MEASURED = 3
"""Minimum number of iterations under a cut for a measured time."""


@dataclass(frozen=True)
class Lap:
    """One iteration: its end time and its duration."""

    end_s: float
    period_s: float

    @property
    def began_s(self) -> float:
        return self.end_s - self.period_s


@dataclass(frozen=True)
class CutInForce:
    """Cut used from `from_s` on. `predicted_s` is the newest prediction of an iteration's time, None without one.

    `measured_s` is the mean of `count` iterations, None if there were too few.
    """

    from_s: float
    segments: tuple[Segment, ...]
    reason: str = ""
    predicted_s: float | None = None
    measured_s: float | None = None
    count: int = 0

    @property
    def sizes(self) -> tuple[int, int]:
        """Smallest and largest block size."""
        sizes = [segment.block_bytes for segment in self.segments] or [0]
        return min(sizes), max(sizes)

    @property
    def error(self) -> float | None:
        """Error of the prediction as a share of the measured time; None if either is missing."""
        if self.measured_s is None or self.predicted_s is None:
            return None
        return self.predicted_s / self.measured_s - 1


@dataclass(frozen=True)
class Moment:
    """All transfers of a few seconds; `left_out` more were not recorded. `computing`: (kind, from, until)."""

    name: str
    from_s: float
    until_s: float
    transfers: tuple[Transfer, ...]
    left_out: int = 0
    computing: tuple[tuple[str, float, float], ...] = ()


@dataclass(frozen=True)
class Chapter:
    """One worker, or one policy of an experiment. `stock_s`: predicted iteration time in the engine's own order.

    `arena`: transfer ids are positions in the arena. `all_reduce`: a push is also its own pull. `waited_s`: seconds per
    iteration that the program waited for each gradient.
    """

    name: str
    laps: Sequence[Lap] = ()
    moments: Sequence[Moment] = ()
    cuts: Sequence[CutInForce] = ()
    traffic: Sequence[RatesRow] = ()
    networks: Sequence[tuple[float, Network]] = ()
    waited_s: Mapping[str, float] = field(default_factory=dict)
    stock_s: float | None = None
    arena: bool = True
    all_reduce: bool = False
    arms: Sequence[ArmStatus] = ()
    """Arms of the job with the times believed at its end, fastest first."""
    notes: Sequence[str] = ()

    @property
    def recut_s(self) -> float | None:
        """Time when blocks last changed during training; None if never."""
        began_s = self.laps[0].began_s if self.laps else 0.0
        return self.cuts[-1].from_s if self.cuts and self.cuts[-1].from_s > began_s else None

    @property
    def rests_from(self) -> int:
        """Index of the first iteration at rest."""
        return rests_from([lap.began_s for lap in self.laps], self.recut_s)

    @property
    def times(self) -> Times | None:
        """Times of the iterations; None without iterations."""
        return times_of([([lap.period_s for lap in self.laps], self.rests_from)]) if self.laps else None

    def compared(self) -> list[CutInForce]:
        """Return each cut that was used, with its measured iteration time."""
        rows = []
        ends = [*(cut.from_s for cut in self.cuts[1:]), float("inf")]
        for cut, until_s in zip(self.cuts, ends, strict=False):
            # The iteration during which the cut changed belongs to both cuts and does not count.
            periods = [lap.period_s for lap in self.laps if cut.from_s < lap.began_s and lap.end_s <= until_s]
            measured_s = fmean(periods) if len(periods) >= LEAST_MEASURED else None
            rows.append(replace(cut, measured_s=measured_s, count=len(periods)))
        return rows


@dataclass(frozen=True)
class Story:
    """Content of a report. `facts` are a few lines about the whole run; only an experiment has `results`."""

    title: str
    facts: Sequence[str]
    chapters: Sequence[Chapter]
    settings: Mapping[str, str] = field(default_factory=dict)
    results: Results | None = None
