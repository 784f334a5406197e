"""Output of `prophet advise --json`.

Rule of this file: immutable values; advice.py computes them. Times are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import JsonValue


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """Predicted effect of a change.

    `gain` is the factor in samples per second over the present job. `error` and `worst_error` are the median and
    maximum deviation of real from simulated iterations, as shares, where both are known; None if nothing was compared.
    """

    change: str
    words: str
    iteration_s: float
    gain: float
    helps: bool
    error: float | None
    worst_error: float | None
    leaves_out: str = ""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Output of `prophet advise --json`. Times are seconds, `waits` is a share of `iteration_s`.

    `iteration_s` is the measured time if known, else `simulated_s`. `assumed` lists, as sentences, the assumptions made
    where facts of the job are unknown.
    """

    schema: Literal[1] = 1
    job: str
    policy: str
    setting: Mapping[str, JsonValue] = field(default_factory=dict)
    workers: int
    servers: int
    iteration_s: float
    simulated_s: float
    measured_s: float | None
    error: float | None
    worst_error: float | None
    computing_s: float
    bound_s: float | None
    waits: float
    network_holds_back: bool
    suggestions: Sequence[Suggestion]
    assumed: Sequence[str] = ()

    @property
    def best(self) -> Suggestion | None:
        """Suggestion with the greatest gain among those that help; None if none does."""
        helping = [suggestion for suggestion in self.suggestions if suggestion.helps]
        return max(helping, key=lambda suggestion: suggestion.gain, default=None)
