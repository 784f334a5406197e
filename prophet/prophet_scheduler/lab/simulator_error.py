"""Error of the simulator, from experiments run both for real and on the virtual clock.

Rule of this file: read and evaluate simulator-errors.json; measure nothing. `make pages` writes that file from the
stored validation runs (docs/results/validation.md).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal, NamedTuple

from pydantic import TypeAdapter

from prophet_scheduler.engines.registry import engine_of
from prophet_scheduler.lab.records import read
from prophet_scheduler.lab.simulator_config import FSDP2

FILE = Path(__file__).with_name("simulator-errors.json")


@dataclass(frozen=True, kw_only=True)
class SimulatorErrors:
    """Content of simulator-errors.json. `ratios`: real over simulated time, by policy or variant, one per cell."""

    schema: Literal[1] = 1
    ratios: Mapping[str, Sequence[float]]


class PredictionError(NamedTuple):
    """Median and maximum deviation of real from simulated times, as shares of the latter; None if never compared."""

    usual: float | None = None
    worst: float | None = None


def prediction_error(base: str) -> PredictionError:
    """Error for `base`, a policy or variant; if it was never compared, the error of all others on its engine."""
    ratios = _ratios()
    alike = [base] if base in ratios else [other for other in ratios if _engine_of(other) == _engine_of(base)]
    off = [abs(ratio - 1) for other in alike for ratio in ratios[other]]
    return PredictionError(median(off), max(off)) if off else PredictionError()


def _engine_of(base: str) -> str:
    return FSDP2 if base.startswith(FSDP2) else engine_of(base).name


@functools.cache
def _ratios() -> Mapping[str, Sequence[float]]:
    return read(FILE, TypeAdapter(SimulatorErrors).validate_python, "the simulator's errors").ratios
