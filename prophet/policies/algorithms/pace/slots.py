"""The best preemptive schedule in time slots, as the paper finds it: a linear program with whole-number solutions.

Rule of this file: constraints 3, 6, 7 and 8 of the paper and a search over its objective; schedule.py gets the same
optimum in O(n log n) without a solver and is what the policy uses. Needs scipy.

The paper (section IV-B) turns min max {t x_i(t) + tail(i)} into one linear program by giving the item (t, i) the
weight (TN)^(t + tail(i)), with T slots and N transfers, so that a sum of weights orders schedules as their sorted
items do. With 400 slots and 157 transfers (ResNet50) that is 10^1900 before any tail is added, and no solver computes
with it. Only the first item decides when the iteration ends, so the same optimum is found here by the constraints
alone:

    An iteration that ends by `end` exists if and only if constraints 3, 6, 7 and 8 have a solution in which x_i(t) =
    0 wherever t + 1 + tail(i) > end. The least such `end` is one of the finitely many t + 1 + tail(i), and whoever
    meets it meets a later one too: a binary search over them ends at the optimum of (10), and (10) is what (14) is
    made from. The paper's lambdas are x and 1 - x (12, 13); without the weights they are not needed.

Each x_i(t) is in one constraint 3 and in one constraint 6: the matrix is the incidence matrix of a bipartite graph
(transfers and slots) and totally unimodular, which is Theorem 2. So the corners of the program are whole numbers, and
the simplex method ends at a corner.

Slot t is the time from t to t + 1. The paper's y_i and its constraint 7 are one slot apart (an all-reduce may run in
the slot in which its computation ends); here it runs from its release on and ends one after its last slot, which
agrees with continuous time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from prophet.core.errors import UserError
from prophet.policies.algorithms.pace.problem import Problem
from prophet.policies.algorithms.pace.schedule import WireSegment

INTEGRAL = 1e-6
"""How near a whole number the solver's values lie; HiGHS keeps its constraints to 1e-7."""


def slot_schedule(problem: Problem) -> tuple[WireSegment, ...]:
    """The best schedule of a problem in slots (`in_slots`): its segments begin and end on whole numbers.

    Raises UserError where a release or a length is no whole number; tails may be any.
    """
    for transfer in problem.transfers:
        for key in ("release", "length"):
            value = getattr(transfer, key)
            if value != int(value):
                raise UserError(
                    f"{problem.name!r}: transfer {transfer.name!r}: '{key}' is {value}, no whole number of slots; "
                    "round the problem with in_slots"
                )
    release = np.array([transfer.release for transfer in problem.transfers], dtype=np.int64)
    length = np.array([transfer.length for transfer in problem.transfers], dtype=np.int64)
    tail = np.array([transfer.tail for transfer in problem.transfers], dtype=np.float64)
    horizon = int(release.max() + length.sum())  # a wire that never idles without need is done by then
    candidate, slot = np.nonzero(np.arange(horizon)[None, :] >= release[:, None])  # constraint 7
    ends = slot + 1 + tail[candidate]
    possible = np.unique(ends[ends >= (release + length + tail).max()])
    low, high = 0, len(possible) - 1
    feasible: NDArray[np.int64] | None = None
    while feasible is None or low < high:
        middle = (low + high) // 2
        allowed = ends <= possible[middle]
        carried = _assign(candidate[allowed], slot[allowed], length, horizon)
        if carried is None:
            low = middle + 1
        else:
            feasible, high = carried, middle
    return _segments(feasible)


def _assign(
    candidate: NDArray[np.int64], slot: NDArray[np.int64], length: NDArray[np.int64], horizon: int
) -> NDArray[np.int64] | None:
    """The transfer in each slot (-1: none), shape (horizon,), if every transfer gets its `length`; otherwise None.

    Variable k is x of transfer `candidate[k]` in slot `slot[k]`. The program serves as many slots as it can instead
    of asking whether all can be served: it always has a solution, so a program that cannot be solved is always a
    failure of the solver.
    """
    from scipy.optimize import LinearConstraint, milp
    from scipy.sparse import csc_array

    variables = np.arange(len(candidate))
    rows = np.concatenate([candidate, len(length) + slot])
    matrix = csc_array(
        (np.ones(2 * len(variables)), (rows, np.concatenate([variables, variables]))),
        shape=(len(length) + horizon, len(variables)),
    )
    limits = np.concatenate([length, np.ones(horizon, dtype=np.int64)])  # constraints 3 and 6
    # No variable is said to be whole, so HiGHS solves a linear program, by the simplex method; linprog asks it for the
    # same thing in twice the time.
    solved = milp(-np.ones(len(variables)), constraints=LinearConstraint(matrix, ub=limits), bounds=(0, 1))
    if solved.status != 0:
        raise RuntimeError(f"HiGHS did not solve a program that always has a solution: {solved.message}")
    served = np.rint(solved.x).astype(np.int64)
    if np.abs(solved.x - served).max() > INTEGRAL:
        raise RuntimeError("HiGHS ended inside an edge of a totally unimodular program")
    if served.sum() < length.sum():
        return None
    carried = np.full(horizon, -1, dtype=np.int64)
    carried[slot[served == 1]] = candidate[served == 1]
    return carried


def _segments(carried: NDArray[np.int64]) -> tuple[WireSegment, ...]:
    """Runs of the same transfer in neighbouring slots."""
    starts = np.flatnonzero(np.diff(carried, prepend=-2))
    ends = np.append(starts[1:], len(carried))
    return tuple(
        WireSegment(int(carried[start]), float(start), float(end))
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        if carried[start] >= 0
    )
