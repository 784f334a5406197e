"""Parts that job scripts share besides training: read the spec, keep time, write the result.

Rule of this file: no framework and no model. Times are seconds on the monotonic clock (time.monotonic), like those of
Prophet's events, so the two line up.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import pkgutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from prophet_scheduler.lab.job_config import JOB
from prophet_scheduler.lab.jobs.record import Convergence, Mark, WorkerRecord, progress_path, write_record


def begin(description: str | None) -> tuple[Any, Recorder, Any]:
    """Parse the command line; return the job (job_config.py), the recorder of its result, and what moves its gradients.

    The exchange implements the protocol of engines/exchange.py for the script's framework.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--spec", type=Path, required=True, help="JSON: what to train")
    parser.add_argument("--out", type=Path, required=True, help="JSON: where the result goes")
    parser.add_argument("--exchange", required=True, help="what moves the gradients, package.module:name")
    options = parser.parse_args()
    job = JOB.validate_json(options.spec.read_bytes())
    compression = {} if job.compression == "none" else {"compression": job.compression}
    return job, Recorder(options.out), pkgutil.resolve_name(options.exchange)(**compression)


class Recorder:
    """Record a job's marks and write its result."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._marks: list[dict[str, float]] = []
        self._first_done_s: float | None = None
        self._process = psutil.Process()
        self._resident_bytes: list[int] = []
        self._processor_s: list[float] = []
        self._progress = progress_path(out).open("w", encoding="utf-8", buffering=1)

    def iteration_starts(self) -> None:
        """Record the start of an iteration, before any of its work; iteration times run from call to call."""
        self._marks.append({"start": time.monotonic()})

    def backward_starts(self) -> None:
        self._marks[-1]["backward"] = time.monotonic()

    def backward_ends(self) -> None:
        """Record that the host has issued the backward pass; MXNet computes it much later."""
        self._marks[-1]["backward_end"] = time.monotonic()

    def iteration_ends(self) -> None:
        """Record the end, after step() has returned; transfers of this iteration may still be in flight."""
        if self._first_done_s is None:
            self._first_done_s = time.time() - self._process.create_time()
        self._resident_bytes.append(self._process.memory_info().rss)
        self._processor_s.append(time.process_time())
        self._progress.write(f"{time.monotonic() - self._marks[-1]['start']:.6f}\n")

    def write(
        self,
        parameters: Mapping[str, int],
        digest: str | None,
        rank: int,
        accuracy: float | None = None,
        convergence: Convergence | None = None,
    ) -> None:
        """Write the result. `parameters` are the sizes in bytes of the model's parameters by name, in order. `digest`
        is that of the final weights; None if workers may end with different weights.
        """
        marks = [Mark(**mark) for mark in self._marks]
        record = WorkerRecord(
            iteration_s=[after.start - before.start for before, after in itertools.pairwise(marks)],
            marks=marks,
            start_s=self._first_done_s,
            resident_bytes=self._resident_bytes,
            processor_s=self._processor_s,
            wall_minus_steady_s=time.time() - time.monotonic(),
            parameters=list(parameters),
            parameter_bytes=list(parameters.values()),
            weights_sha256=digest,
            rank=rank,
            accuracy=accuracy,
            convergence=convergence,
        )
        write_record(record, self._out)


def weights_sha256(weights: Mapping[str, NDArray[Any]]) -> str:
    """Return a digest of a model's weights by name; two digests are equal only if every bit is."""
    digest = hashlib.sha256()
    for name, array in sorted(weights.items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
