"""Times of iterations: how each one is kept, what is counted of them, and the columns in which tables show that.

Rule of this file: arithmetic on seconds, and words; whose iterations they are is others' business. Whoever counts in
results.json, draws a table or writes a page takes it from here, so that a word means the same everywhere.

A mean is all time over all iterations, so that a throughput follows from it: a median hides what learning and stalls
cost. It leaves out the iterations in which an engine starts; the first 50 and the first 100 are a job's very first.
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
"""Iterations that an engine itself needs to start, and no mean has in it: with the first connections are made and
memory is registered, and the second is the first with the buckets that DDP makes anew."""
LEAST_AT_REST = 5
"""Iterations from which it can be told what one takes at rest."""
MOST_KEPT_BYTES = 1 << 26
"""Of what one text of kept iterations unpacks to."""
SECONDS = np.dtype("<f4")


def packed(times_s: Iterable[float]) -> str:
    """The text in which iterations are kept: base64 of zlib of little-endian 32-bit floats, seconds, in order."""
    return base64.b64encode(zlib.compress(np.asarray(times_s, SECONDS).tobytes(), 9)).decode()


def unpacked(text: str) -> tuple[float, ...]:
    """The seconds that `packed` was given, to 32 bits. Raises ValueError for any other text."""
    try:
        unpacking = zlib.decompressobj()
        content = unpacking.decompress(base64.b64decode(text, validate=True), MOST_KEPT_BYTES)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"it is no base64 of zlib ({error})") from None
    if not unpacking.eof or len(content) % SECONDS.itemsize:
        raise ValueError("it is cut short")
    times_s = np.frombuffer(content, SECONDS)
    if not (np.isfinite(times_s) & (times_s >= 0)).all():
        raise ValueError("it has times that cannot be")
    return tuple(times_s.tolist())


def rounded(times_s: Iterable[float]) -> tuple[float, ...]:
    """The same as they will be read again."""
    return tuple(np.asarray(times_s, SECONDS).tolist())


def _validated(value: Any) -> tuple[float, ...]:
    if isinstance(value, tuple):
        return rounded(value)
    if not isinstance(value, str):
        raise ValueError("it is no text")
    return unpacked(value)


KEPT_SCHEMA = {"type": "string", "contentEncoding": "base64", "description": packed.__doc__}
Kept = Annotated[
    tuple[float, ...],
    PlainValidator(_validated),
    PlainSerializer(packed, return_type=str),
    WithJsonSchema(KEPT_SCHEMA),
]
"""Seconds of all iterations of one worker; `packed` in a file."""


class Times(BaseModel):
    """Seconds of an iteration, of all workers and repeats. A file of schema 1 has the median and its neighbours alone,
    of the iterations after the config's warm-up."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    median: float
    p10: float
    p90: float
    mean: float | None = None
    """Of all iterations but those in which the engine starts, as the median is and what lies around it."""
    first_50: float | None = None
    """The mean of a job's first 50, starting and learning in it; none where a run is shorter."""
    first_100: float | None = None
    at_rest: float | None = None
    """The mean of those since blocks last changed, or of the last half (`rests_from`)."""

    @property
    def headline(self) -> float:
        """The mean; the median where nothing else was kept."""
        return self.median if self.mean is None else self.mean

    @property
    def rest(self) -> float:
        """The mean at rest; the median where nothing else was kept."""
        return self.median if self.at_rest is None else self.at_rest


def rests_from(starts_s: Sequence[float], changed_s: float | None) -> int:
    """Of iterations that begin at `starts_s` the first one at rest, the only rule for that.

    It is the first after blocks last changed, at `changed_s`. Where nothing is known of that, or LEAST_AT_REST have not
    come since, the last half is taken to be at rest.
    """
    first = len(starts_s) if changed_s is None else bisect_left(starts_s, changed_s)
    return first if len(starts_s) - first >= LEAST_AT_REST else len(starts_s) // 2


def counted(times_s: Sequence[float]) -> Sequence[float]:
    """Those of a worker's iterations that a mean has in it."""
    return times_s[min(STARTING, len(times_s) - 1) :]


def times_of(workers: Sequence[tuple[Sequence[float], int]]) -> Times:
    """What is counted of each worker's iterations in each repeat, each with the first one at rest."""
    low, middle, high = np.percentile(_together(counted(times_s) for times_s, _ in workers), [10, 50, 90]).tolist()
    shortest = min(len(times_s) for times_s, _ in workers)
    firsts = {
        f"first_{count}": _mean(times_s[:count] for times_s, _ in workers) for count in (50, 100) if count <= shortest
    }
    mean_s = _mean(counted(times_s) for times_s, _ in workers)
    at_rest_s = _mean(times_s[first:] for times_s, first in workers)
    return Times(median=middle, p10=low, p90=high, mean=mean_s, at_rest=at_rest_s, **firsts)


def _together(parts: Iterable[Sequence[float]]) -> Any:
    return np.concatenate([np.asarray(part) for part in parts])


def _mean(parts: Iterable[Sequence[float]]) -> float:
    return float(_together(parts).mean())


def time_columns(
    several: Sequence[Times | None], form: Callable[[float], str] = "{:.3f}".format, unit: str = " (s)"
) -> tuple[list[str], list[list[str]]]:
    """The columns of every table of iteration times: their headings, and a row for each of `several`.

    The mean leads; what none of them has is left out, so that a table of what is known by its medians has these alone.
    """
    fields = ("mean", "first_50", "first_100", "at_rest", "median")
    known = [field for field in fields if any(getattr(times, field, None) is not None for times in several)]
    headings = [field.replace("_", " ") for field in known]
    rows = []
    for times in several:
        values = [getattr(times, field, None) for field in known]
        cells = ["-" if value is None else form(value) for value in values]
        rows.append([*cells, "-" if times is None else f"{form(times.p10)}-{form(times.p90)}"])
    return [heading + unit * (place == 0) for place, heading in enumerate(headings)] + ["p10-p90"], rows


MEANS = "What an iteration takes is a mean, of all but each worker's first two, in which engines start."
AT_REST = "What an iteration takes is a mean at rest: since blocks last changed, or of a run's last half."
MEDIANS = "What an iteration takes is a median, of those after a warm-up: of these runs nothing else was kept."


def basis(several: Sequence[Times], at_rest: bool = False) -> str:
    """What the numbers of a page or a table are, in a sentence. `at_rest`: it shows nothing else."""
    medians = sum(times.mean is None for times in several)
    if medians == len(several):
        return MEDIANS
    more = " Where there is no mean it is a median: of those runs nothing else was kept." if medians else ""
    return (AT_REST if at_rest else MEANS) + more
