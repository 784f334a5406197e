"""Profile of a job from a trace of torch.profiler (Kineto's JSON): for jobs that have not run under Prophet.

Rule of this file: turn a trace's events into a Profile. Times in a trace are microseconds.

Autograd adds each gradient to `.grad` in an operation of its own. On a GPU, such an operation only launches kernels:
the gradient is there once the kernels launched before have ended. A backward operation has the sequence number of its
forward operation, which shows when the layer ran. If several backward passes precede a step of the optimizer, the last
one counts, and all other computing counts as forward.
"""

from __future__ import annotations

import gzip
import itertools
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import Any

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.files import MOST_READ_BYTES
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.models.profiles import GZIP

_BACKWARD = "autograd::engine::evaluate_function: "
_GRADIENT = "torch::autograd::AccumulateGrad"
_STEP = "Optimizer.step#"
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_ITEM_BYTES = {"float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2}
_MICROSECOND = 1e-6


@dataclass(frozen=True)
class _Event:
    """One event of a trace. `ph` is X if it has a duration."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    args: dict[str, Any] = field(default_factory=dict)

    @property
    def end(self) -> float:
        return self.ts + self.dur


@dataclass(frozen=True)
class _File:
    traceEvents: list[_Event]


@dataclass
class _Pass:
    """Backward pass of an iteration. `forward` is when the iteration began. Each gradient has its event, and the number
    of its forward operation.
    """

    forward: float
    start: float
    gradients: list[tuple[_Event, int]] = field(default_factory=list)


def profile_of_trace(content: bytes, path: Path, sizes: Sequence[int] = ()) -> Profile:
    """Return the profile of the job in a trace, the median of its iterations. `path` is for the name and for messages.

    `sizes` has the bytes of the gradients in forward order, for a trace without their shapes. Raises UserError.
    """
    events = _events(content, path)
    passes = [each for each in _last_passes(events) if each.gradients]
    if not passes:
        raise UserError(f"{path}: its trace has no backward pass; profile at least two iterations")
    # The first one may have begun before the trace.
    passes = passes[1:] or passes
    usual, _ = Counter(len(each.gradients) for each in passes).most_common(1)[0]
    passes = [each for each in passes if len(each.gradients) == usual]
    ready, ran = _Ready(events), dict(_forward_operations(events))
    times = [list(_times(each, ran, ready)) for each in passes]
    rows = []
    for place, (event, _) in enumerate(reversed(passes[-1].gradients)):
        generation_s, forward_s = (median(each[place][part] for each in times) * _MICROSECOND for part in (0, 1))
        known = ("", sizes[place]) if len(sizes) == usual else _shape_of(event)
        if known is not None:
            rows.append(GradientProfile(f"gradient{place} {known[0]}".strip(), known[1], generation_s, forward_s))
    if not rows:
        raise UserError(
            f"{path}: its trace has no shapes of gradients; record it with torch.profiler.profile(record_shapes=True)"
        )
    left_out = usual - len(rows)  # Sparse gradients have no shape there.
    name = path.name.partition(".")[0]
    return Profile(f"{name} (without {left_out} sparse gradients)" if left_out else name, tuple(rows))


def _events(content: bytes, path: Path) -> list[_Event]:
    """Return the events with a duration, by their start."""
    from pydantic import TypeAdapter, ValidationError

    try:
        if content.startswith(GZIP):
            content = gzip.GzipFile(fileobj=BytesIO(content)).read(MOST_READ_BYTES)
        events = TypeAdapter(_File).validate_json(content).traceEvents
    except (OSError, EOFError, ValidationError):
        raise UserError(f"{path}: is neither a profile nor a trace of torch.profiler") from None
    # An annotation is there a second time, as the GPU saw it.
    timed = (each for each in events if each.ph == "X" and each.cat != "gpu_user_annotation")
    return sorted(timed, key=lambda event: event.ts)


def _last_passes(events: Sequence[_Event]) -> Iterator[_Pass]:
    """Return each iteration's last backward pass. An iteration ends with a step of an optimizer, or with the trace."""
    forward, last = events[0].ts if events else 0.0, None
    top = number = -1
    until = 0.0
    for event in events:
        if event.name.startswith(_STEP):
            if last is not None:
                yield last
            forward, last = event.end, None
        elif event.name == _GRADIENT:
            if last is not None:
                last.gradients.append((event, number))
        elif event.name.startswith(_BACKWARD) and not event.name.endswith("AccumulateGrad"):
            number = event.args.get("Sequence number", -1)
            # Numbers fall within a pass. A pass within another, of a checkpointed layer, is a part of it.
            if last is None or (number > top and event.ts >= until):
                last, top, until = _Pass(forward, event.ts), number, 0.0
            until = max(until, event.end)
    if last is not None:
        yield last


def _forward_operations(events: Sequence[_Event]) -> Iterator[tuple[int, float]]:
    """Return the number and the start of each forward operation. Of several with a number, the last one ran the
    layer.
    """
    for event in events:
        number = event.args.get("Sequence number")
        if number is not None and not event.args.get("Fwd thread id") and not event.name.startswith(_BACKWARD):
            yield number, event.ts


class _Ready:
    """Times at which a GPU has done what was launched before."""

    def __init__(self, events: Sequence[_Event]) -> None:
        ends = {
            event.args.get("correlation"): event.end
            for event in events
            if event.cat in _ON_GPU and "nccl" not in event.name.lower()  # Backward does not wait for those.
        }
        launches = [event for event in events if event.cat not in _ON_GPU and event.args.get("correlation") in ends]
        self._launched = [event.ts for event in launches]
        self._ended = list(itertools.accumulate((ends[event.args["correlation"]] for event in launches), max))

    def at(self, time: float) -> float:
        """Return when all kernels that were launched up to `time` have ended; without a GPU, `time`."""
        place = bisect_right(self._launched, time)
        return max(time, self._ended[place - 1]) if place else time


def _times(of: _Pass, ran: Mapping[int, float], ready: _Ready) -> Iterator[tuple[float, float]]:
    """Return the generation and the forward time of each gradient, in forward order."""
    start = ready.at(of.start)
    began = [ready.at(of.forward)]
    for _, number in of.gradients[-2::-1]:
        began.append(min(start, max(began[-1], ready.at(ran.get(number, 0.0)))))
    for (event, _), (begin, end) in zip(reversed(of.gradients), itertools.pairwise([*began, start]), strict=True):
        yield ready.at(event.ts) - start, end - begin


def _shape_of(event: _Event) -> tuple[str, int] | None:
    """Return a gradient's shape in words, and its bytes; None if they are not on record."""
    try:
        shape, kind = event.args["Input Dims"][0], event.args["Input type"][0]
        return "x".join(map(str, shape)), math.prod(shape) * _ITEM_BYTES[kind]
    except (LookupError, TypeError):
        return None
