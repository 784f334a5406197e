"""A job's gradients: their sizes, when each is generated and needed, and the steps in which they appear.

Rule of this file: immutable values and their validation. Units are bytes and seconds. Index 0 is always the gradient of
the first layer: the most urgent one, and the last one generated.

In a step (Prophet, ICPP 2021, section 2.2), many gradients appear at nearly the same moment; then none do for a while.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.units import MOST, MOST_S

if TYPE_CHECKING:
    from numpy.typing import NDArray

PROFILE_SCHEMA: Literal[1] = 1


@dataclass(frozen=True)
class GradientProfile:
    """One gradient, generated `generation_s` after backward began. `forward_s` is the forward time of its layer."""

    name: str
    size_bytes: int
    generation_s: float
    forward_s: float = 0.0


@dataclass(frozen=True)
class Profile:
    """A job's gradients in priority order, with the stepwise generation times (paper, section 2.2).

    `gradients[0]` is the most urgent and generated last, so `generation_s` never rises with the index. Raises UserError
    if it does, or if a size or a time is invalid.
    """

    name: str
    gradients: tuple[GradientProfile, ...]
    ids: tuple[int, ...] = ()
    """Ids of the gradients as in the hook's events, one per gradient; empty means 0, 1, 2, ..."""

    def __post_init__(self) -> None:
        where = f"profile {self.name!r}"
        if not self.gradients:
            raise UserError(f"{where}: 'gradients' is empty; record a profile of at least one gradient")
        previous = math.inf
        for index, gradient in enumerate(self.gradients):
            at = f"{where}: gradients[{index}] ({gradient.name})"
            if not 0 < gradient.size_bytes <= MOST:
                raise UserError(f"{at}: 'bytes' is {gradient.size_bytes}; it must be above 0, and at most {MOST:g}")
            for key in ("generation_s", "forward_s"):
                value = getattr(gradient, key)
                if not 0 <= value <= MOST_S:
                    raise UserError(f"{at}: '{key}' is {value}; it must be 0 or more seconds, and at most {MOST_S:g}")
            if gradient.generation_s > previous:
                raise UserError(
                    f"{at}: 'generation_s' is {gradient.generation_s}, above that of the more urgent gradient before "
                    "it; list gradients from the first layer (generated last) to the last layer"
                )
            previous = gradient.generation_s
        if self.ids and len(self.ids) != len(self.gradients):
            raise UserError(f"{where}: {len(self.ids)} ids for {len(self.gradients)} gradients")

    @property
    def gradient_ids(self) -> tuple[int, ...]:
        return self.ids or tuple(range(len(self.gradients)))

    @property
    def size_by_id(self) -> dict[int, int]:
        """Bytes of each gradient id."""
        return {id_: g.size_bytes for id_, g in zip(self.gradient_ids, self.gradients, strict=True)}

    @property
    def rank_by_id(self) -> dict[int, int]:
        """Index of each gradient id in forward order; 0 for the first layer."""
        return {id_: rank for rank, id_ in enumerate(self.gradient_ids)}

    @property
    def generation_by_id(self) -> dict[int, float]:
        """Generation time of each gradient id, in seconds after backward began."""
        return {id_: g.generation_s for id_, g in zip(self.gradient_ids, self.gradients, strict=True)}

    def with_forward(self, forward_s: Mapping[int, float]) -> Profile:
        """Return the profile with these forward times (seconds by id). Other gradients keep theirs."""
        rows = zip(self.gradient_ids, self.gradients, strict=True)
        gradients = tuple(replace(row, forward_s=forward_s.get(id_, row.forward_s)) for id_, row in rows)
        return replace(self, gradients=gradients)

    @property
    def total_bytes(self) -> int:
        return sum(g.size_bytes for g in self.gradients)

    @property
    def backward_s(self) -> float:
        """Generation time of gradient 0, the end of the backward pass; the paper's c(0)."""
        return self.gradients[0].generation_s

    @property
    def forward_s(self) -> float:
        return sum(g.forward_s for g in self.gradients)


@dataclass(frozen=True)
class Step:
    """Gradients with indices `first` to `last` (`first` is the most urgent) that appear together.

    `time_s` is when the last of them is generated, after backward began; `gap_s` is the time since the step before.
    """

    first: int
    last: int
    time_s: float
    gap_s: float


def find_steps(profile: Profile) -> list[Step]:
    """Return the stepwise pattern of a profile (paper, section 2.2), most urgent step first."""
    return split_times(np.array([gradient.generation_s for gradient in profile.gradients]))


def split_times(times: NDArray[Any]) -> list[Step]:
    """Split descending times into steps at the gaps that are much larger than those within a step.

    The threshold lies in the widest break of the sorted gaps, taken as ratios. Gaps below 1/500 of the total are noise
    of the system's scheduler and count as equal. Without a clear break (a factor of 3), each gap above 1/500 separates
    steps.
    """
    gaps = times[:-1] - times[1:]
    floor = max(float(times[0] - times[-1]) / 500, 1e-9)
    ranked = np.sort(np.maximum(gaps, floor))
    threshold = floor
    if len(ranked) > 1:
        ratios = ranked[1:] / ranked[:-1]
        widest = int(np.argmax(ratios))
        if ratios[widest] >= 3:
            threshold = float(np.sqrt(ranked[widest] * ranked[widest + 1]))
    cuts = [0, *(int(i) + 1 for i in np.flatnonzero(gaps > threshold)), len(times)]
    steps = []
    for first, end in itertools.pairwise(cuts):
        before = float(times[end]) if end < len(times) else 0.0
        steps.append(Step(first, end - 1, float(times[first]), float(times[first]) - before))
    return steps
