"""Output of `prophet advise --json`.

Rule of this file: immutable values; advice.py makes them. Times are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import JsonValue


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """Predicted effect of a change.

    `gain` is the factor in samples a second over now. `error` and `worst_error` are the usual and the worst deviation
    of real iterations from simulated ones where both were measured, as shares; None if nothing was compared.
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
    """Output of `prophet advise --json`. Times are seconds, `waits` a share of `iteration_s`.

    `iteration_s` is the measured time if known, else `simulated_s`. `assumed` has sentences on unknown facts of the job
    and the assumptions in their place.
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
        """Change that helps most; None if none does."""
        helping = [suggestion for suggestion in self.suggestions if suggestion.helps]
        return max(helping, key=lambda suggestion: suggestion.gain, default=None)
