"""Iteration times: how they are stored, their means and quantiles, and their columns in tables.

Rule of this file: arithmetic on seconds, and the words for it, shared by results.json, tables and pages. A mean is the
total time over the number of iterations, so it gives the throughput; a median would hide stalls and the cost of
learning. Means exclude the iterations in which an engine starts, except those of the first 50 and first 100 iterations.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, PlainSerializer, PlainValidator, WithJsonSchema

STARTING = 2
"""Number of iterations in which an engine starts, left out of means: the first connects and registers memory, and the
second is the first with DDP's rebuilt buckets."""
LEAST_AT_REST = 5
"""Minimum number of iterations for a mean at rest."""
MOST_KEPT_BYTES = 1 << 26
"""Maximum size of a `Kept` text after unpacking."""
SECONDS = np.dtype("<f4")


def packed(times_s: Iterable[float]) -> str:
    """Iteration times as text: base64 of zlib of little-endian 32-bit floats, in seconds, in order."""
    return base64.b64encode(zlib.compress(np.asarray(times_s, SECONDS).tobytes(), 9)).decode()


def unpacked(text: str) -> tuple[float, ...]:
    """Return the seconds in a text from `packed`, as 32-bit floats. Raises ValueError for any other text."""
    try:
        unpacking = zlib.decompressobj()
        content = unpacking.decompress(base64.b64decode(text, validate=True), MOST_KEPT_BYTES)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"it is not base64 of zlib ({error})") from None
    if not unpacking.eof or len(content) % SECONDS.itemsize:
        raise ValueError("it is cut short")
    times_s = np.frombuffer(content, SECONDS)
    if not (np.isfinite(times_s) & (times_s >= 0)).all():
        raise ValueError("it has impossible times")
    return tuple(times_s.tolist())


def rounded(times_s: Iterable[float]) -> tuple[float, ...]:
    """Return the times rounded as in a file."""
    return tuple(np.asarray(times_s, SECONDS).tolist())


def _validated(value: Any) -> tuple[float, ...]:
    if not isinstance(value, str | tuple):
        raise ValueError("it is not text")
    return rounded(value) if isinstance(value, tuple) else unpacked(value)


Kept = Annotated[
    tuple[float, ...],
    PlainValidator(_validated),
    PlainSerializer(packed, return_type=str),
    WithJsonSchema({"type": "string", "contentEncoding": "base64", "description": packed.__doc__}),
]
"""Seconds of all iterations of one worker; in a file as `packed` text."""


class Times(BaseModel):
    """Statistics of an iteration's seconds over all workers and repeats. A file of schema 1 has only the median, p10
    and p90, of the iterations after the config's warm-up."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    median: float
    p10: float
    p90: float
    mean: float | None = None
    """Mean of all iterations except those in which the engine starts; the median, p10 and p90 exclude them too."""
    first_50: float | None = None
    """Mean of a job's first 50 iterations, including starting and learning; None if a run is shorter."""
    first_100: float | None = None
    at_rest: float | None = None
    """Mean of the iterations since blocks last changed, or of the last half (`rests_from`)."""

    @property
    def headline(self) -> float:
        """Mean, or the median if the mean is not known."""
        return self.median if self.mean is None else self.mean

    @property
    def rest(self) -> float:
        """Mean at rest, or the median if the mean is not known."""
        return self.median if self.at_rest is None else self.at_rest


def rests_from(starts_s: Sequence[float], changed_s: float | None) -> int:
    """Index of the first iteration at rest, among those that start at `starts_s`: the first after blocks last changed
    (`changed_s`). If that is unknown, or fewer than LEAST_AT_REST iterations followed, the last half is at rest.
    """
    first = len(starts_s) if changed_s is None else bisect_left(starts_s, changed_s)
    return first if len(starts_s) - first >= LEAST_AT_REST else len(starts_s) // 2


def counted(times_s: Sequence[float]) -> Sequence[float]:
    """Return a worker's iterations without those in which the engine starts (but at least the last one)."""
    return times_s[min(STARTING, len(times_s) - 1) :]


def times_of(workers: Sequence[tuple[Sequence[float], int]]) -> Times:
    """Return the Times over all workers and repeats, each given as (iterations, index of the first at rest)."""
    all_s = np.concatenate([counted(times_s) for times_s, _ in workers])
    low, middle, high = np.percentile(all_s, [10, 50, 90]).tolist()
    shortest = min(len(times_s) for times_s, _ in workers)
    firsts = {
        f"first_{count}": _mean(times_s[:count] for times_s, _ in workers) for count in (50, 100) if count <= shortest
    }
    at_rest_s = _mean(times_s[first:] for times_s, first in workers)
    return Times(median=middle, p10=low, p90=high, mean=float(all_s.mean()), at_rest=at_rest_s, **firsts)


def _mean(parts: Iterable[Sequence[float]]) -> float:
    return float(np.concatenate(list(parts)).mean())


def time_columns(
    several: Sequence[Times | None], form: Callable[[float], str] = "{:.3f}".format, unit: str = " (s)"
) -> tuple[list[str], list[list[str]]]:
    """Return the columns of a table of iteration times, mean first: the headings, and a row for each of `several`.

    Columns without any value are left out, so a table of schema 1 has only medians and p10-p90.
    """
    fields = ("mean", "first_50", "first_100", "at_rest", "median")
    known = [field for field in fields if any(getattr(times, field, None) is not None for times in several)]
    rows = []
    for times in several:
        values = [getattr(times, field, None) for field in known]
        cells = ["-" if value is None else form(value) for value in values]
        rows.append([*cells, "-" if times is None else f"{form(times.p10)}-{form(times.p90)}"])
    headings = [field.replace("_", " ") + unit * (place == 0) for place, field in enumerate(known)]
    return [*headings, "p10-p90"], rows


MEANS = "What an iteration takes is a mean, of all but each worker's first two, in which engines start."
AT_REST = "What an iteration takes is a mean at rest: since blocks last changed, or of a run's last half."
MEDIANS = "What an iteration takes is a median, of those after a warm-up: of these runs nothing else was kept."


def basis(several: Sequence[Times], at_rest: bool = False) -> str:
    """Return a sentence on what the numbers of a page or table mean. `at_rest`: they are all means at rest."""
    medians = sum(times.mean is None for times in several)
    if medians == len(several):
        return MEDIANS
    more = " Where there is no mean it is a median: of those runs nothing else was kept." if medians else ""
    return (AT_REST if at_rest else MEANS) + more
