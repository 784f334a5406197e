"""Place of a process in a BytePS job, according to its environment.

Rule of this file: pure functions of an environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from prophet_byteps.cutting import decider
from prophet_scheduler.core import settings as names

if TYPE_CHECKING:
    from prophet_scheduler.core.choice import Shape


def _read(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    return int(text) if text.isdecimal() else default


def shape_of(environ: Mapping[str, str]) -> Shape | None:
    """Return the number of machines that talk to servers, and the number of servers; None if either is unknown."""
    from prophet_scheduler.core.choice import Shape

    counts = [_read(environ, name, 0) for name in (names.DMLC_NUM_WORKER, names.DMLC_NUM_SERVER)]
    return Shape(*counts) if all(counts) else None


def place_of(environ: Mapping[str, str]) -> tuple[int, int | None, int]:
    """Return (rank, number of processes in the job or None if unknown, rank on its machine) of this process."""
    local_rank, local_size = _read(environ, names.BYTEPS_LOCAL_RANK, 0), _read(environ, names.BYTEPS_LOCAL_SIZE, 1)
    machines, machine = _read(environ, names.DMLC_NUM_WORKER, 0), _read(environ, names.DMLC_WORKER_ID, 0)
    return machine * local_size + local_rank, machines * local_size or None, local_rank


def where_it_runs(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that tell this job from other jobs, and this worker from other workers."""
    own = ("DMLC_NUM_WORKER", "DMLC_NUM_SERVER", "DMLC_PS_ROOT_URI", "DMLC_INTERFACE", "DMLC_WORKER_ID")
    return {name: environ.get(name, "") for name in (*own, "BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE")}


def decides(environ: Mapping[str, str]) -> bool:
    """Return True if this is the process whose wishes count (cutting.py)."""
    # On the first machine, a process's rank is its local rank.
    return names.is_first_machine(environ) and place_of(environ)[2] == decider(
        _read(environ, names.BYTEPS_LOCAL_SIZE, 1)
    )
