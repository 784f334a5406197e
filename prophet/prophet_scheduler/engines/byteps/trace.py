"""Reader of BytePS's own trace: a JSON file in Chrome's trace format, with times in microseconds of the wall clock."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.events import QueueKind
from prophet_scheduler.core.files import parse_json, read_text
from prophet_scheduler.core.transfer import Transfer
from prophet_scheduler.engines.spec import TracedWorker


def read_trace(path: Path, worker: TracedWorker) -> tuple[Transfer, ...]:
    """Return the transfers of one worker, without sizes, which the trace does not have.

    `worker` is the result of the worker that wrote the trace. Raises UserError, with one line, for any other file.
    """
    try:
        return _transfers(parse_json(read_text(path))["traceEvents"], worker)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise UserError(f"{path}: is not a trace of BytePS ({type(error).__name__}: {error})") from None


def _transfers(trace: Iterable[Any], worker: TracedWorker) -> tuple[Transfer, ...]:
    indices = {f"Comm.byteps.Gradient.{name}": index for index, name in enumerate(worker.parameters)}
    events = [e for e in trace if e["pid"] in indices]
    # The event of a whole operation, which has no stage in its name, starts when the gradient is ready.
    generated: dict[str, list[float]] = {}
    for event in sorted(events, key=lambda e: float(e["ts"])):
        if event["name"] == event["pid"]:
            generated.setdefault(event["pid"], []).append(float(event["ts"]))
    transfers = []
    for event in events:
        stage = event["name"].removeprefix(event["pid"]).lstrip(".")
        if stage not in QueueKind.__members__:
            continue
        queue, ts = QueueKind[stage], float(event["ts"])
        earlier = [time for time in generated.get(event["pid"], []) if time <= ts]
        added = earlier[-1] if queue is QueueKind.PUSH and earlier else ts
        start_s, added_s = (time / 1e6 - worker.wall_minus_steady_s for time in (ts, added))
        partition = int(event["tid"]) & 0xFFFF
        finish_s = start_s + event["dur"] / 1e6
        transfers.append(Transfer(indices[event["pid"]], partition, 0, queue, added_s, start_s, finish_s))
    return tuple(transfers)
