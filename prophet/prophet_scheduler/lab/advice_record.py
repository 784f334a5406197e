"""What `prophet advise --json` prints.

Rule of this file: immutable values; what they come from is advice.py's. Times are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import JsonValue


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """What a change would come to.

    `gain`: times as many samples a second as now. `error` and `worst_error` are how far real iterations were from
    simulated ones where both were measured, as shares: usually, and at worst; None where nothing was compared.
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
    """What `prophet advise --json` prints. Times are seconds, `waits` a share of `iteration_s`.

    `iteration_s` is what was measured, where that is known, and otherwise `simulated_s`. `assumed` are sentences on
    what is not known of the job, and what was taken for it.
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
        """The change that helps most; None where none does."""
        helping = [suggestion for suggestion in self.suggestions if suggestion.helps]
        return max(helping, key=lambda suggestion: suggestion.gain, default=None)
