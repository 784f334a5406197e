"""The best preemptive schedule of the transfers, computed directly: always serve the longest tail.

Rule of this file: the algorithm, its proof, and the evaluation of a schedule. The paper uses a linear program for the
same optimum (docs/policies/pace.md). Times are in the unit of the problem.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prophet_papers.algorithms.pace.problem import Problem
from prophet_scheduler.core.errors import UserError


@dataclass(frozen=True)
class WireSegment:
    """Interval from `start` to `end` in which the wire carries only the problem's transfer number `transfer`."""

    transfer: int
    start: float
    end: float


def preemptive_schedule(problem: Problem) -> tuple[WireSegment, ...]:
    """Return the schedule of the wire with which the iteration ends earliest; O(n log n).

    By Theorem 1 (problem.py), the iteration ends at max over i of C(i) + tail(i), where C(i) is the end of transfer i.
    This is the scheduling problem 1 | pmtn, r_j | Lmax: one machine, jobs with releases, preemption, and the maximum
    lateness for due dates -tail(i). It is optimal to always serve, among the released and unfinished jobs, the one with
    the earliest due date, here the longest tail (Horn, 1974); docs/policies/pace.md has the proof.

    The proof also gives the optimum without a schedule: the maximum, over sets S of transfers, of

        (least release in S) + (sum of lengths in S) + (least tail in S).

    Only a release can interrupt a transfer, so n transfers yield at most 2n - 1 segments. Whole numbers yield whole
    numbers, so this is also the optimum in time slots. Equal tails do not interrupt each other.
    """
    transfers = problem.transfers
    by_release = sorted(range(len(transfers)), key=lambda i: transfers[i].release)
    left = [transfer.length for transfer in transfers]
    ready: list[tuple[float, int]] = []  # (-tail, place in by_release)
    segments: list[WireSegment] = []
    now = 0.0
    upcoming = 0
    while ready or upcoming < len(transfers):
        if not ready:
            now = max(now, transfers[by_release[upcoming]].release)
        while upcoming < len(transfers) and transfers[by_release[upcoming]].release <= now:
            heapq.heappush(ready, (-transfers[by_release[upcoming]].tail, upcoming))
            upcoming += 1
        current = by_release[ready[0][1]]
        interrupted = transfers[by_release[upcoming]].release if upcoming < len(transfers) else math.inf
        end = now + left[current]
        if end <= interrupted:
            heapq.heappop(ready)
        else:
            end = interrupted
            left[current] = max(0.0, left[current] - (end - now))
        if segments and segments[-1].transfer == current and segments[-1].end == now:
            segments[-1] = WireSegment(current, segments[-1].start, end)
        else:
            segments.append(WireSegment(current, now, end))
        now = end
    return tuple(segments)


def iteration_time(problem: Problem, segments: Sequence[WireSegment], resume: float = 0.0) -> float:
    """Return the end of the iteration if the wire carries `segments` in the order of their starts.

    Each segment starts when its transfer is released and the wire is free, as in the paper's priority queue (section
    VI-A: a segment's priority is its start), so a feasible schedule ends when it says. `resume` is the cost of resuming
    an interrupted transfer, in the problem's unit: an all-reduce cannot be interrupted, so each segment is an
    all-reduce of its own, and the paper's model neglects the overhead of further segments.

    Raises UserError if the segments of a transfer do not add up to its length.
    """
    transfers = problem.transfers
    carried = [0.0] * len(transfers)
    ends: list[float | None] = [None] * len(transfers)
    now = 0.0
    for segment in sorted(segments, key=lambda s: s.start):
        transfer = transfers[segment.transfer]
        now = max(now, transfer.release) + (segment.end - segment.start)
        if ends[segment.transfer] is not None:
            now += resume
        ends[segment.transfer] = now
        carried[segment.transfer] += segment.end - segment.start
    finish = problem.floor
    for transfer, length, end in zip(transfers, carried, ends, strict=True):
        if end is None or not math.isclose(length, transfer.length, rel_tol=1e-9, abs_tol=1e-12):
            raise UserError(
                f"{problem.name!r}: transfer {transfer.name!r} needs {transfer.length:g}, the schedule gives it "
                f"{length:g}; use a schedule made for this problem"
            )
        finish = max(finish, end + transfer.tail)
    return finish


def least_time_of_chain(release: NDArray[np.float64], length: NDArray[np.float64], tail: NDArray[np.float64]) -> float:
    """Return the end of the iteration under the best schedule, in O(n), if later releases are more urgent: releases and
    tails, shape (n,), both rise.

    This holds for a chain of layers: backward releases the last layer first, and forward needs it last. In the optimum
    of `preemptive_schedule`, the best set for a given least release and least tail is then all transfers from some
    place k on, which leaves max over k of release(k) + (sum of lengths from k on) + tail(k).
    """
    to_the_end = np.cumsum(length[::-1])[::-1]
    return float(np.max(release + to_the_end + tail))
