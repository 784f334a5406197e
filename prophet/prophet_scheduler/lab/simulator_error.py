"""How far off the simulator is: measured by running the same experiments for real and on the virtual clock.

Rule of this file: reading simulator-errors.json, which `make pages` makes from the kept validation runs
(docs/results/validation.md), and what follows from it; nothing is measured here.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

from pydantic import TypeAdapter

from prophet_scheduler.engines.registry import engine_of
from prophet_scheduler.lab.records import read

FILE = Path(__file__).with_name("simulator-errors.json")


@dataclass(frozen=True, kw_only=True)
class SimulatorErrors:
    """simulator-errors.json. `ratios`: real over simulated iteration times, one a cell, by policy or variant."""

    schema: Literal[1] = 1
    ratios: Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class PredictionError:
    """Of the cells that were run both ways, how far real times were off, as a part of the simulated ones.

    `usual`: half of the cells are nearer. `cells` are how many there were.
    """

    usual: float
    worst: float
    cells: int


def prediction_error(base: str) -> PredictionError | None:
    """Of `base`, a policy or a variant of an engine; where it was never compared, of all others on its engine.

    None where nothing on that engine was.
    """
    ratios = _ratios()
    own = ratios.get(base) or [
        ratio for other, several in ratios.items() if engine_of(other) is engine_of(base) for ratio in several
    ]
    if not own:
        return None
    off = [abs(ratio - 1) for ratio in own]
    return PredictionError(median(off), max(off), len(off))


@functools.cache
def _ratios() -> Mapping[str, Sequence[float]]:
    return read(FILE, TypeAdapter(SimulatorErrors).validate_python, "the simulator's errors").ratios
