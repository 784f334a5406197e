"""How well an iteration used network and processor: the overlap coefficient, the ratio, and the utilisation.

Rule of this file: Caramel's section 3.1 as formulas of three times: of an iteration (T), of its transfers alone (N) and
of its computing alone (C), all in seconds. Measured times may make a coefficient leave [0, 1] a little; that is
not hidden here.
"""

from __future__ import annotations

import math

from prophet.core.errors import UserError


def communication_ratio(communication_s: float, computation_s: float) -> float:
    """The paper's rho = N / C: above 1 the network is the bottleneck even if all of it overlaps."""
    _check(communication_s=communication_s)
    _check_above(computation_s=computation_s)
    return communication_s / computation_s


def overlap_coefficient(iteration_s: float, communication_s: float, computation_s: float) -> float:
    """The paper's alpha = (N + C - T) / min(N, C): 1 where the shorter of the two is hidden, 0 where nothing is.

    Solved from its utilisation (section 3.1), which is C / T. Without communication there is nothing left to hide: 1.
    """
    _check(communication_s=communication_s)
    _check_above(iteration_s=iteration_s, computation_s=computation_s)
    if communication_s == 0:
        return 1.0
    return (communication_s + computation_s - iteration_s) / min(communication_s, computation_s)


def utilisation(overlap: float, ratio: float) -> float:
    """The paper's U = 1 / (1 + rho - alpha min(rho, 1)): the share of an iteration that the processor computes."""
    _check(ratio=ratio)
    slowdown = 1 + ratio - overlap * min(ratio, 1.0)
    if not slowdown > 0:
        raise UserError(f"overlap is {overlap} at a ratio of {ratio}; no iteration hides more than there is")
    return 1 / slowdown


def iteration_s(overlap: float, communication_s: float, computation_s: float) -> float:
    """The same, solved for T = N + C - alpha min(N, C)."""
    _check(communication_s=communication_s, computation_s=computation_s)
    return communication_s + computation_s - overlap * min(communication_s, computation_s)


def _check(**values: float) -> None:
    for key, value in values.items():
        if not (math.isfinite(value) and value >= 0):
            raise UserError(f"{key} is {value}; it must be 0 or more")


def _check_above(**values: float) -> None:
    for key, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise UserError(f"{key} is {value}; it must be above 0")
