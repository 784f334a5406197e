"""Environment variables that configure Prophet in a job under any policy: one constant each.

Rule of this file: names, defaults and parsing. docs/enabling.md has the same list for users. Settings of one policy
alone are in its file in policies/. Each value in this file that begins with PROPHET_ is a known name. A job warns of
any other (policies, unknown_variables).
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
"""Policy of a BytePS job. If unset, Prophet does not run."""
MLFABRIC = "mlfabric"
"""Value of BYTEPS_SCHEDULER for asynchronous training with a coordinator."""
BYTEPS_ENABLE_ASYNC = "BYTEPS_ENABLE_ASYNC"
"""BytePS's own variable: 1 for asynchronous servers and workers."""
DDP_SCHEDULER = "PROPHET_SCHEDULER"
"""Policy of a DistributedDataParallel job."""
OBSERVE = "observe"
"""Value of PROPHET_SCHEDULER for a job that Prophet only watches."""
DDP_NCCL = "PROPHET_DDP_NCCL"
"""1 lets Prophet take over DistributedDataParallel on GPUs too, which has run on one GPU only."""
PARTITION_BYTES = "PROPHET_PARTITION_BYTES"
"""Size in bytes of all blocks, unless BYTEPS_PARTITION_BYTES is set."""
WATCHDOG_S = "PROPHET_WATCHDOG_S"
"""Seconds that a ready task may be held while nothing moves, before it is released and reported."""
MONITOR_S = "PROPHET_MONITOR_S"
"""Seconds between two estimates of the network."""
FUSION = "PROPHET_FUSION"
"""0 sends small gradients separately; 1 lets them travel as one tensor."""
CACHE = "PROPHET_CACHE"
"""Folder that keeps what a job learned for its next start; "off" for none."""
PROFILE_IN = "PROPHET_PROFILE_IN"
"""File with an initial profile, as written by PROPHET_PROFILE_OUT."""
PROFILE_OUT = "PROPHET_PROFILE_OUT"
"""File for the learned profile, written when the job ends."""
EVENTS_OUT = "PROPHET_EVENTS_OUT"
"""File (.npz, core/event_record.py) for the newest events and their plans, written when the job ends."""
STATUS_OUT = "PROPHET_STATUS_OUT"
"""File (JSON) for what Prophet did, written when the job ends."""
STATUS = "PROPHET_STATUS"
"""0 disables the socket that reports what Prophet does while the job runs (watch/sockets.py)."""
QUIET = "PROPHET_QUIET"
"""1 omits the lines at the start and the end in which Prophet says that it works (frontends/lines.py)."""
RECORD = "PROPHET_RECORD"
"""Folder in which each worker records what happens while the job runs (watch/rows.py)."""
RECORD_COMMAND = "PROPHET_RECORD_COMMAND"
"""1 records the job's command line too, which may contain secrets."""
METRICS_PORT = "PROPHET_METRICS_PORT"
"""Port of a Prometheus page on a machine's first process; process n uses this port plus n. Unset for no page."""
METRICS_HOST = "PROPHET_METRICS_HOST"
"""Address of that page. By default only this machine can reach it."""
STALL_S = "PROPHET_STALL_S"
"""Seconds without a finished transfer, while some are in flight, after which the process exits with status 75."""
COORDINATOR = "PROPHET_COORDINATOR"
"""HOST:PORT of the job's MLfabric coordinator. If unset, updates go in arrival order."""
COORDINATOR_TOKEN_FILE = "PROPHET_COORDINATOR_TOKEN_FILE"
"""The coordinator's token file, or one line of it: `TENANT TOKEN`."""
COORDINATOR_TENANT = "PROPHET_COORDINATOR_TENANT"
"""Tenant in that file to which this job belongs; not needed if the file has only one."""
COORDINATOR_BOUND_S = "PROPHET_COORDINATOR_BOUND_S"
"""Seconds that the coordinator may be silent before updates go in arrival order."""
REPLICA = "PROPHET_REPLICA"
"""File in which worker 0 of an asynchronous job keeps a replica of the model."""
RESUME = "PROPHET_RESUME"
"""Initial model of an asynchronous job: the file of a replica, on worker 0's machine."""
NODE = "PROPHET_NODE"
"""Name of this machine's NIC for the coordinator, the same for all workers behind it; by default the host's name."""

OFF = "off"
"""Value of PROPHET_CACHE: keep no results, and use none that were kept."""

BYTEPS_PARTITION_BYTES = "BYTEPS_PARTITION_BYTES"
BYTEPS_LOCAL_RANK = "BYTEPS_LOCAL_RANK"
BYTEPS_LOCAL_SIZE = "BYTEPS_LOCAL_SIZE"
LOCAL_RANK = "LOCAL_RANK"
DMLC_NUM_SERVER = "DMLC_NUM_SERVER"
DMLC_NUM_WORKER = "DMLC_NUM_WORKER"
DMLC_WORKER_ID = "DMLC_WORKER_ID"
CHOSEN = "PROPHET_CHOSE_PARTITION_BYTES"
"""Size that Prophet, not the user, gave to BytePS in a process whose environment this one inherited."""
USER_NAMESPACE = "PROPHET_USER_NAMESPACE"
"""Set in a command that has restarted in a user namespace (lab/testbed/namespaces.py)."""
VALIDATE = "PROPHET_VALIDATE"
"""Set by tests: the front ends check the invariants of all gradients at each round and step."""
LAB_BUCKET_CAP_MB = "PROPHET_LAB_BUCKET_CAP_MB"
LAB_DELAY_BOUND = "PROPHET_LAB_DELAY_BOUND"
LAB_BATCH = "PROPHET_LAB_BATCH"
LAB_RATES = "PROPHET_LAB_RATES"
"""Variables from `prophet run` to the processes of an experiment; the engine's description explains them."""

PREFIX = "PROPHET_"
"""Prefix of all of Prophet's own variables."""
HANDED_ON = frozenset({CHOSEN, USER_NAMESPACE, VALIDATE, LAB_BUCKET_CAP_MB, LAB_DELAY_BOUND, LAB_BATCH, LAB_RATES})
"""Variables that Prophet's own processes pass to each other. They are no settings of a job."""
NAMES = frozenset(
    text for text in tuple(globals().values()) if isinstance(text, str) and text.startswith(PREFIX) and text != PREFIX
)
"""Names with the prefix that Prophet knows under any policy: the constants above."""

DEFAULT_PARTITION_BYTES = 128 * 1024
"""Default for policies with blocks of one size. Bytes in flight delay an urgent gradient, so small blocks are best as
long as the cost per message is hidden (docs/decisions/partition-size.md)."""
LEAST_PARTITION_BYTES = 4096
MOST_PARTITION_BYTES = 2**31 - 1
"""Maximum of BytePS, which parses the number into an int."""
DEFAULT_WATCHDOG_S = 1.0
DEFAULT_MONITOR_S = 5.0
DEFAULT_METRICS_HOST = "127.0.0.1"
MOST_PORT = 65535


@dataclass(frozen=True)
class Settings:
    """Settings of one training process. Sizes are bytes, times seconds."""

    policy: str
    partition_bytes: int | None = None
    """Size of all blocks if the user set one. BytePS's own variable takes precedence."""
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
    """True for a status socket, the default in a job."""
    says: bool = False
    """True for lines at the start and the end that say that Prophet works, the default in a job."""
    record: Path | None = None
    record_command: bool = False
    metrics_port: int | None = None
    """Port of this process."""
    metrics_host: str = DEFAULT_METRICS_HOST

    @property
    def outputs(self) -> dict[str, Path]:
        """Files to write when the job ends, by variable."""
        files = {PROFILE_OUT: self.profile_out, EVENTS_OUT: self.events_out, STATUS_OUT: self.status_out}
        return {name: path for name, path in files.items() if path is not None}

    @property
    def watched(self) -> bool:
        """True if the process reports anything while it runs or at its end."""
        return self.status or self.says or self.record is not None or self.metrics_port is not None


def number(text: str, where: str, least: float) -> float:
    """Return the number in `text`, finite and at least `least`. Raises UserError naming `where` the text is from."""
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
    """Return True if BytePS's servers answer only after all workers have pushed, not each worker at once."""
    return environ.get(BYTEPS_ENABLE_ASYNC, "0") in ("", "0")


def users_own_partition_bytes(environ: Mapping[str, str]) -> str | None:
    """Return the user's own BYTEPS_PARTITION_BYTES; None if it is unset, or if Prophet set it."""
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
    # BytePS parses invalid text as 0, and then loops forever, cutting a tensor into parts of 0 bytes.
    if not text.isdecimal() or not 0 < int(text) <= MOST_PARTITION_BYTES:
        raise UserError(
            f"{BYTEPS_PARTITION_BYTES} is {text!r}; it must be a whole number of bytes, 1 to {MOST_PARTITION_BYTES}"
        )
    return int(text)


def _for_this_rank(path: Path, rank: str) -> Path:
    """Return the file of a process. Processes of a machine share one environment, so the file names of all but the
    first have their number before the suffix.
    """
    return path if rank in ("", "0") else path.with_name(f"{path.stem}.{rank}{path.suffix}")


def _cache(environ: Mapping[str, str]) -> Path | None:
    """Return the folder, by default in the user's cache folder (XDG Base Directory Specification); None for none."""
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
        raise UserError(f"{METRICS_PORT} is {text!r}; process {rank} here would need a port above {MOST_PORT}")
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
    """Read the settings of this process. Raises UserError naming the invalid variable.

    `scheduler` and `local_rank` are the engine's variables for the policy and for a process's number on its machine.
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
        raise UserError(f"{RESUME} is for asynchronous jobs, {SCHEDULER}={MLFABRIC}; this job would start without it")
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
    """Return True if this process is on the job's worker machine 0, or if BytePS's DMLC_WORKER_ID is not set."""
    return environ.get(DMLC_WORKER_ID, "0") in ("", "0")
