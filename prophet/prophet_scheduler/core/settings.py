"""The few environment variables that tune Prophet in a job, whatever its policy: one constant each.

Rule of this file: names, defaults and parsing; docs/enabling.md lists the same table for people. What only one policy
has is in its file in policies/. A constant of this file whose text begins with PROPHET_ is a name that Prophet
knows; a job warns of any other (policies, unknown_variables).
"""

from __future__ import annotations

import ipaddress
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from prophet_scheduler.core.errors import UserError

SCHEDULER = "BYTEPS_SCHEDULER"
"""Policy of the job; unset means that nothing of Prophet runs."""
MLFABRIC = "mlfabric"
"""Value of that variable for asynchronous training with a coordinator."""
BYTEPS_ENABLE_ASYNC = "BYTEPS_ENABLE_ASYNC"
"""BytePS's own: 1 for servers and workers that are not in step."""
DDP_SCHEDULER = "PROPHET_SCHEDULER"
"""The policy of a job of DistributedDataParallel."""
OBSERVE = "observe"
"""Value of that variable for a job that Prophet only watches."""
DDP_NCCL = "PROPHET_DDP_NCCL"
"""1 lets Prophet take over DistributedDataParallel on GPUs too, which has not been run on any yet."""
PARTITION_BYTES = "PROPHET_PARTITION_BYTES"
"""One size in bytes for all blocks, unless BYTEPS_PARTITION_BYTES is set."""
WATCHDOG_S = "PROPHET_WATCHDOG_S"
"""Seconds that a ready task may be held with nothing moving before it is released and reported."""
MONITOR_S = "PROPHET_MONITOR_S"
"""Seconds between two judgements of the network."""
FUSION = "PROPHET_FUSION"
"""0 keeps small gradients apart; 1 lets them travel as one tensor."""
CACHE = "PROPHET_CACHE"
"""Folder in which what a job learned is kept for its next start; off for none."""
PROFILE_IN = "PROPHET_PROFILE_IN"
"""File with a profile to begin with, as PROPHET_PROFILE_OUT leaves it."""
PROFILE_OUT = "PROPHET_PROFILE_OUT"
"""File for the learned profile, written when the job ends."""
EVENTS_OUT = "PROPHET_EVENTS_OUT"
"""File (.npz, core/event_record.py) for the newest events and their plans, written when the job ends."""
STATUS_OUT = "PROPHET_STATUS_OUT"
"""File (JSON) for what Prophet did, written when the job ends."""
STATUS = "PROPHET_STATUS"
"""0 for no socket that says what Prophet does while the job runs (watch/sockets.py)."""
QUIET = "PROPHET_QUIET"
"""1 leaves out the lines at the start and the end that say that Prophet works (frontends/lines.py)."""
RECORD = "PROPHET_RECORD"
"""Folder in which each worker writes what happens while the job runs (watch/rows.py)."""
RECORD_COMMAND = "PROPHET_RECORD_COMMAND"
"""1 has the record begin with the job's command line, which may have secrets in it."""
METRICS_PORT = "PROPHET_METRICS_PORT"
"""Port of a page of figures for Prometheus, plus the process's number on its machine; unset for none."""
METRICS_HOST = "PROPHET_METRICS_HOST"
"""Address at which that page is; this machine alone can see it unless that is set."""
STALL_S = "PROPHET_STALL_S"
"""Seconds without a finished transfer, while some are under way, after which the process ends with status 75."""
COORDINATOR = "PROPHET_COORDINATOR"
"""HOST:PORT of the job's MLfabric coordinator; unset means that updates go in arrival order."""
COORDINATOR_TOKEN_FILE = "PROPHET_COORDINATOR_TOKEN_FILE"
"""The coordinator's file of tokens, or a line of it: `TENANT TOKEN`."""
COORDINATOR_TENANT = "PROPHET_COORDINATOR_TENANT"
"""Tenant of that file that this job is; not needed if it has one alone."""
COORDINATOR_BOUND_S = "PROPHET_COORDINATOR_BOUND_S"
"""Seconds that the coordinator may be silent before updates go in arrival order."""
AGGREGATE = "PROPHET_AGGREGATE"
"""0 keeps this worker of an asynchronous job from summing others' updates, and from sending its own to be summed."""
STALENESS = "PROPHET_STALENESS"
"""Rounds by which a worker of a job with a coordinator may lead the slowest; 0 is in step, unset is no bound."""
REPLICA = "PROPHET_REPLICA"
"""HOST:PORT of the job's `prophet replicate`, which keeps a copy of the model of an asynchronous job."""
RESUME = "PROPHET_RESUME"
"""Model that an asynchronous job begins with: that of the replica at HOST:PORT, or of the file of one."""
NODE = "PROPHET_NODE"
"""Name of this machine's NIC for the coordinator; workers behind one NIC have one name. The host's name where unset."""

OFF = "off"
"""Value of PROPHET_CACHE: nothing is kept, and kept results are not used."""

BYTEPS_PARTITION_BYTES = "BYTEPS_PARTITION_BYTES"
BYTEPS_LOCAL_RANK = "BYTEPS_LOCAL_RANK"
BYTEPS_LOCAL_SIZE = "BYTEPS_LOCAL_SIZE"
LOCAL_RANK = "LOCAL_RANK"
DMLC_NUM_SERVER = "DMLC_NUM_SERVER"
DMLC_NUM_WORKER = "DMLC_NUM_WORKER"
DMLC_WORKER_ID = "DMLC_WORKER_ID"
CHOSEN = "PROPHET_CHOSE_PARTITION_BYTES"
"""Size that Prophet handed to BytePS in a process whose environment this one has. It is nobody's wish."""
USER_NAMESPACE = "PROPHET_USER_NAMESPACE"
"""Mark of a command that has been started again in a user namespace (lab/testbed/namespaces.py)."""
VALIDATE = "PROPHET_VALIDATE"
"""Nor this: tests set it, and the front ends check at each round and step what must hold of all gradients."""
LAB_BUCKET_CAP_MB = "PROPHET_LAB_BUCKET_CAP_MB"
LAB_DELAY_BOUND = "PROPHET_LAB_DELAY_BOUND"
LAB_BATCH = "PROPHET_LAB_BATCH"
LAB_RATES = "PROPHET_LAB_RATES"
"""Variables from `prophet run` to the processes of an experiment; the engine's description explains them."""

PREFIX = "PROPHET_"
"""Prefix of all of Prophet's own variables."""
HANDED_ON = frozenset({CHOSEN, USER_NAMESPACE, VALIDATE, LAB_BUCKET_CAP_MB, LAB_DELAY_BOUND, LAB_BATCH, LAB_RATES})
"""Variables between Prophet's own processes, no settings of a job."""
NAMES = frozenset(
    text for text in tuple(globals().values()) if isinstance(text, str) and text.startswith(PREFIX) and text != PREFIX
)
"""Names with the prefix that are known whatever the policy: the constants above."""

DEFAULT_PARTITION_BYTES = 128 * 1024
"""Default for policies with blocks of one size. Bytes in flight delay an urgent gradient, so small is good as long as
the cost of a message is hidden (docs/decisions/partition-size.md)."""
LEAST_PARTITION_BYTES = 4096
MOST_PARTITION_BYTES = 2**31 - 1
"""BytePS reads the number into an int."""
DEFAULT_WATCHDOG_S = 1.0
DEFAULT_MONITOR_S = 5.0
DEFAULT_METRICS_HOST = "127.0.0.1"
MOST_PORT = 65535


@dataclass(frozen=True)
class Settings:
    """Settings of one training process. Sizes in bytes, times in seconds."""

    policy: str
    partition_bytes: int | None = None
    """Size of all blocks, if the user has set one; BytePS's own variable comes first."""
    watchdog_s: float = DEFAULT_WATCHDOG_S
    monitor_s: float = DEFAULT_MONITOR_S
    fusion: bool = True
    cache: Path | None = None
    profile_in: Path | None = None
    profile_out: Path | None = None
    events_out: Path | None = None
    status_out: Path | None = None
    stall_s: float | None = None
    nccl: bool = False
    status: bool = False
    """True for a status socket, which a job has by default."""
    says: bool = False
    """True for lines at the start and the end that say that it works, which a job has by default."""
    record: Path | None = None
    record_command: bool = False
    metrics_port: int | None = None
    """Port of this process."""
    metrics_host: str = DEFAULT_METRICS_HOST

    @property
    def outputs(self) -> dict[str, Path]:
        """Files to write when the job ends, by their variables."""
        files = {PROFILE_OUT: self.profile_out, EVENTS_OUT: self.events_out, STATUS_OUT: self.status_out}
        return {name: path for name, path in files.items() if path is not None}

    @property
    def watched(self) -> bool:
        """True if the process reports anything while it runs or at its end."""
        return self.status or self.says or self.record is not None or self.metrics_port is not None


def number(text: str, where: str, least: float) -> float:
    """Return the number in `text`, finite and at least `least`. Raises UserError that names `where` it stands."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not (value >= least and math.isfinite(value)):
        raise UserError(f"{where} is {text!r}; it must be a number of at least {least:g}")
    return value


def _number(environ: Mapping[str, str], name: str, default: float, least: float) -> float:
    text = environ.get(name)
    return default if text is None else number(text, name, least)


def in_step(environ: Mapping[str, str]) -> bool:
    """Return True if BytePS's servers answer once all workers have sent, and not each at once."""
    return environ.get(BYTEPS_ENABLE_ASYNC, "0") in ("", "0")


def users_own_partition_bytes(environ: Mapping[str, str]) -> str | None:
    """Return the user's own BYTEPS_PARTITION_BYTES; None if Prophet set it, or nobody."""
    text = environ.get(BYTEPS_PARTITION_BYTES)
    return None if text == environ.get(CHOSEN) else text


def _partition_bytes(environ: Mapping[str, str], of_byteps: bool) -> int | None:
    own = environ.get(PARTITION_BYTES)
    size = None if own is None else int(number(own, PARTITION_BYTES, LEAST_PARTITION_BYTES))
    if size is not None and size > MOST_PARTITION_BYTES:
        raise UserError(f"{PARTITION_BYTES} is {own!r}; it must be a number of at most {MOST_PARTITION_BYTES}")
    text = users_own_partition_bytes(environ) if of_byteps else None
    if text is None:
        return size
    # BytePS takes what it cannot read for 0, and then never ends cutting a tensor into parts of 0 bytes.
    if not text.isdecimal() or not 0 < int(text) <= MOST_PARTITION_BYTES:
        raise UserError(
            f"{BYTEPS_PARTITION_BYTES} is {text!r}; it must be a whole number of bytes, 1 to {MOST_PARTITION_BYTES}"
        )
    return int(text)


def _for_this_rank(path: Path, rank: str) -> Path:
    """Return the file of a process. Processes of one machine have one environment, so the number of each but the first
    comes before the suffix.
    """
    return path if rank in ("", "0") else path.with_name(f"{path.stem}.{rank}{path.suffix}")


def _cache(environ: Mapping[str, str]) -> Path | None:
    """Return the folder, by default in the user's cache folder, if there is one (XDG Base Directory Specification)."""
    text = environ.get(CACHE, "")
    if text:
        return None if text == OFF else Path(text).absolute()
    xdg, home = environ.get("XDG_CACHE_HOME", ""), environ.get("HOME", "")
    base = Path(xdg) if xdg.startswith("/") else Path(home, ".cache") if home.startswith("/") else None
    return base / "prophet" / "jobs" if base is not None else None


def _metrics_port(environ: Mapping[str, str], rank: str) -> int | None:
    text = environ.get(METRICS_PORT)
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and 0 < int(text) <= MOST_PORT):
        raise UserError(f"{METRICS_PORT} is {text!r}; it must be a port, 1 to {MOST_PORT}")
    port = int(text) + (int(rank) if rank.isdecimal() else 0)
    if port > MOST_PORT:
        raise UserError(f"{METRICS_PORT} is {text!r}; process {rank} of this machine has no port so far above it")
    return port


def _metrics_host(environ: Mapping[str, str]) -> str:
    text = environ.get(METRICS_HOST) or DEFAULT_METRICS_HOST
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise UserError(f"{METRICS_HOST} is {text!r}; it must be an address such as 127.0.0.1 or 0.0.0.0") from None


def from_environ(
    environ: Mapping[str, str] = os.environ, scheduler: str = SCHEDULER, local_rank: str = BYTEPS_LOCAL_RANK
) -> Settings:
    """Read the settings of this process. Raises UserError naming the variable that is wrong.

    `scheduler` and `local_rank` are the variables in which its engine has the policy and a process's number.
    """

    def path(name: str) -> Path | None:
        text = environ.get(name)
        return _for_this_rank(Path(text), environ.get(local_rank, "0")) if text else None

    def switch(name: str, default: str) -> bool:
        text = environ.get(name, default)
        if text not in ("0", "1"):
            raise UserError(f"{name} is {text!r}; it must be 0 or 1")
        return text == "1"

    fusion, policy = switch(FUSION, "1"), environ[scheduler].strip().lower()
    if environ.get(RESUME) and policy != MLFABRIC:
        raise UserError(f"{RESUME} is for asynchronous jobs, {SCHEDULER}={MLFABRIC}; this one would begin without it")
    return Settings(
        policy=policy,
        partition_bytes=_partition_bytes(environ, scheduler == SCHEDULER),
        watchdog_s=_number(environ, WATCHDOG_S, DEFAULT_WATCHDOG_S, 0.01),
        monitor_s=_number(environ, MONITOR_S, DEFAULT_MONITOR_S, 0.1),
        fusion=fusion,
        cache=_cache(environ),
        profile_in=Path(environ[PROFILE_IN]) if environ.get(PROFILE_IN) else None,
        profile_out=path(PROFILE_OUT),
        events_out=path(EVENTS_OUT),
        status_out=path(STATUS_OUT),
        stall_s=_number(environ, STALL_S, 0.0, 1.0) if environ.get(STALL_S) else None,
        nccl=scheduler == DDP_SCHEDULER and switch(DDP_NCCL, "0"),
        status=switch(STATUS, "1"),
        says=not switch(QUIET, "0"),
        record=Path(environ[RECORD]).absolute() if environ.get(RECORD) else None,
        record_command=switch(RECORD_COMMAND, "0"),
        metrics_port=_metrics_port(environ, environ.get(local_rank) or "0"),
        metrics_host=_metrics_host(environ),
    )


def is_first_machine(environ: Mapping[str, str]) -> bool:
    """Return True if this process is on the job's worker machine 0, or BytePS's variable is not set."""
    return environ.get(DMLC_WORKER_ID, "0") in ("", "0")
