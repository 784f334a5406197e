"""Error of the simulator, from experiments run both for real and on the virtual clock.

Rule of this file: read and evaluate simulator-errors.json; measure nothing. `make pages` writes that file from the
stored validation runs (docs/results/validation.md).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from prophet_scheduler.engines.registry import engine_of
from prophet_scheduler.lab.simulator_config import FSDP2

FILE = Path(__file__).with_name("simulator-errors.json")


def prediction_error(base: str) -> tuple[float, float] | tuple[None, None]:
    """Return the median and maximum deviation of real from simulated times of `base`, a policy or variant, as shares of
    the latter. If `base` was never compared, they are those of all others on its engine; None if there are none.
    """
    ratios = _ratios()
    alike = [base] if base in ratios else [other for other in ratios if _engine_of(other) == _engine_of(base)]
    off = [abs(ratio - 1) for other in alike for ratio in ratios[other]]
    return (median(off), max(off)) if off else (None, None)


def _engine_of(base: str) -> str:
    return FSDP2 if base.startswith(FSDP2) else engine_of(base).name


@functools.cache
def _ratios() -> Mapping[str, Sequence[float]]:
    """Return the ratios of real to simulated time, by policy or variant, one per cell."""
    ratios: Mapping[str, Sequence[float]] = json.loads(FILE.read_text(encoding="utf-8"))["ratios"]
    return ratios
