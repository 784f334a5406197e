"""Types of results.json and of advice, and validated reading of all files that an experiment writes, also older ones.

Rule of this file: types of JSON output, and one reader for each kind of record; results.py and advice.py compute it.
Times are seconds. docs/schemas/ has the JSON schemas (`make pages`). A schema only gains keys: unknown keys are
ignored, and keys that an older file lacks have defaults here. Unset fields are not written, so rewriting a file does
not change it. Schema 1 has only medians; schema 2 has every iteration and leads with means.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.files import parse_json, read_text, write_whole
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.status import AgentStatus
from prophet_scheduler.lab.iterations import Kept, Times
from prophet_scheduler.lab.jobs.record import WorkerRecord
from prophet_scheduler.lab.schema import key_of
from prophet_scheduler.models.profiles import ProfileFile
from prophet_scheduler.watch.rows import RecordRow
from prophet_scheduler.watch.status import LiveStatus

SCHEMA: Literal[2] = 2
"""Schema of new results.json files; schema 1 can still be read."""
RESULTS_FILE = "results.json"
"""File name in an experiment's folder."""
RECORD_FILES = "worker*.jsonl"
"""File names in a folder written by PROPHET_RECORD."""
T = TypeVar("T")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


class AgentCost(_Part):
    """Cost and actions of Prophet. `cpu_share` is the agent thread's CPU time as a share of the training time, if there
    is an agent thread."""

    cpu_share: float
    plans: int
    watchdog_releases: int
    push_credit: int | None = None
    partition_bytes: int | None = None
    network: Network | None = None


class LossAt(_Part):
    """Loss at a time, in seconds since the first worker started."""

    time_s: float
    loss: float


class ConvergenceResult(_Part):
    """Result of a job that records loss against time. Counts are sums over all workers and repeats."""

    target_loss: float
    time_to_loss_s: float | None = None
    """Median of all repeats; None if any repeat did not reach the target loss."""
    times_to_loss_s: list[float | None] = []
    update_s: float | None = None
    """Seconds from one applied update to the next, over all workers together."""
    least_loss: float | None = None
    greatest_delay: int | None = None
    """Greatest delay of an update that a coordinator counted."""
    sent: int | None = None
    dropped: int | None = None
    uncoordinated: int | None = None
    """Number of updates sent without a grant."""
    applied_otherwise: int | None = None
    """Number of workers that sent more or fewer updates than the server had applied at the end."""
    curve: list[LossAt] = []


class PolicyResult(_Part):
    """Result of one policy in one cell. A policy that never finished has an `error` and no times."""

    iteration_s: Times | None = None
    iterations: list[list[Kept]] = []
    """Seconds of every iteration from the job's first, by repeat and worker; empty in a file of schema 1."""
    samples_per_s: float | None = None
    """Samples per second of all workers together, from the mean iteration."""
    wait_s: float | None = None
    """Seconds of the mean iteration beyond compute, if known."""
    repeats: list[float] = []
    """Median of each repeat."""
    processor_utilisation: float | None = None
    """Share of time in which a simulated worker computes."""
    start_s: float | None = None
    """Seconds from the start of a process to the end of its first iteration."""
    processor_s: float | None = None
    """CPU seconds per iteration over all threads of a worker; in a replay only those of the exchange."""
    weights_sha256: str | list[str] | None = None
    """Hash of the final weights; a list if the repeats ended with different weights."""
    agent: AgentCost | None = None
    given_back: str | None = None
    """Reason why DistributedDataParallel got its own reducer back, in a repeat where it was faster than Prophet."""
    accuracy: float | None = None
    """Lowest accuracy of all workers and repeats."""
    error: str | None = None
    ended_after_s: float | None = None
    """Seconds from the first fault to the end of a run that failed after it; the maximum over all repeats."""
    log_tail: dict[str, list[str]] = {}
    narrow_link: str | None = None
    """This policy's narrow link if it differs from the cell's."""
    same_weights_as_stock: bool | None = None
    """True if the final weights equal stock's. None if not compared, or if a difference means nothing: sums of more
    than two gradients depend on timing."""
    convergence: ConvergenceResult | None = None

    @property
    def time_s(self) -> float | None:
        """Seconds of the mean iteration (the median in a file of schema 1); None if the policy failed."""
        return None if self.iteration_s is None else self.iteration_s.headline

    @property
    def rest_s(self) -> float | None:
        """Seconds of the mean iteration at rest (the median in a file of schema 1); None if the policy failed."""
        return None if self.iteration_s is None else self.iteration_s.rest

    def iterations_s(self) -> list[list[float]]:
        """Return the seconds of each repeat's iterations from the first, averaged over the workers."""
        return [[fmean(times_s) for times_s in zip(*workers, strict=False)] for workers in self.iterations]


class CellResult(_Part):
    """Result of one point of a sweep. `ratios` are stock's iteration time over each policy's: above 1 is a gain."""

    setting: dict[str, JsonValue]
    """Varied values by the last part of their keys; `bandwidth` is in bits per second."""
    emulated: str = ""
    narrow_link: str | None = None
    links: dict[str, float] = {}
    """Rates in bits per second, as the testbed measured them before the first run."""
    round_trips: dict[str, float] = {}
    """By node, the round trip to the testbed's own node in seconds, measured before the first run."""
    compute_s: float | None = None
    lower_bound_s: float | None = None
    bound_is_measured: bool = False
    """True if the lower bound uses a rate that the testbed measured on an unshaped link."""
    policies: dict[str, PolicyResult]
    ratios: dict[str, float] = {}

    def measured(self, name: str) -> PolicyResult | None:
        """Return the policy of that name; None if it does not exist or failed."""
        policy = self.policies.get(name)
        return None if policy is None or policy.iteration_s is None else policy

    @property
    def times_s(self) -> dict[str, float]:
        """Times (`time_s`) of the policies that did not fail."""
        return {name: policy.time_s for name, policy in self.policies.items() if policy.time_s is not None}

    @property
    def rests_s(self) -> dict[str, float]:
        """Times at rest (`rest_s`) of the policies that did not fail."""
        return {name: policy.rest_s for name, policy in self.policies.items() if policy.rest_s is not None}


class Results(_Part):
    """Content of results.json."""

    schema_: Literal[1, 2] = Field(default=SCHEMA, alias="schema")
    config: dict[str, JsonValue]
    """Content of the config file."""
    repeats: int | None = None
    cells: list[CellResult]

    def as_json(self) -> dict[str, Any]:
        """Return the content to write, without unset fields."""
        return self.model_dump(by_alias=True, exclude_unset=True)


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """Predicted effect of a change.

    `gain` is the factor in samples per second over the present job. `error` and `worst_error` are the median and
    maximum deviation of real from simulated iterations, as shares, where both are known; None if nothing was compared.
    """

    change: str
    words: str
    iteration_s: float
    gain: float
    helps: bool
    error: float | None
    worst_error: float | None
    leaves_out: str = ""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Output of `prophet advise --json`. Times are seconds, `waits` is a share of `iteration_s`.

    `iteration_s` is the measured time if known, else `simulated_s`. `assumed` lists, as sentences, the assumptions made
    where facts of the job are unknown.
    """

    schema: Literal[1] = 1
    job: str
    policy: str
    setting: Mapping[str, JsonValue] = field(default_factory=dict)
    workers: int
    servers: int
    iteration_s: float
    simulated_s: float
    measured_s: float | None
    error: float | None
    worst_error: float | None
    computing_s: float
    bound_s: float | None
    waits: float
    network_holds_back: bool
    suggestions: Sequence[Suggestion]
    assumed: Sequence[str] = ()


def is_run(folder: Path) -> bool:
    """True for a folder of `prophet run`, False for one of PROPHET_RECORD. Raises UserError for any other."""
    if (folder / RESULTS_FILE).is_file():
        return True
    if any(folder.glob(RECORD_FILES)):
        return False
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; give one that `prophet run` or PROPHET_RECORD has left")
    neither = "neither a results.json, as `prophet run` leaves it, nor a worker0.jsonl, as PROPHET_RECORD does"
    raise UserError(f"{folder} has {neither}")


def write_results(results: Results, path: Path) -> None:
    """Write results.json completely or not at all."""
    write_whole(json.dumps(results.as_json(), indent=2, allow_nan=False) + "\n", path)


def read_results(path: Path) -> Results:
    """Read a results.json of this or an older schema. Raises UserError that names the file and the key."""
    return read(path, Results.model_validate, "results", (1, SCHEMA))


_WORKER = TypeAdapter(WorkerRecord)
_STATUS = TypeAdapter(AgentStatus)


def read_worker(path: Path) -> WorkerRecord:
    """Read a worker's record file. Raises UserError."""
    return read(path, _WORKER.validate_python, "a worker's result")


def read_status(path: Path) -> AgentStatus:
    """Read the status file that Prophet wrote in a worker. Raises UserError."""
    return read(path, _STATUS.validate_python, "a status of Prophet")


def read(path: Path, check: Callable[[Any], T], what: str, schemas: Sequence[int] = (1,)) -> T:
    """Read and check a JSON file of the project. Raises UserError: one line with file and key."""
    try:
        raw = parse_json(read_text(path))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError:
        raise UserError(f"{path}: cannot be read as {what} (it is not JSON)") from None
    if isinstance(raw, Mapping) and raw.get("schema", 1) not in schemas:
        known = " and ".join(map(str, schemas))
        raise UserError(f"{path}: 'schema' is {raw['schema']!r}; this Prophet reads schema {known}")
    try:
        return check(raw)
    except (ValueError, UserError) as error:
        raise UserError(f"{path}: cannot be read as {what} ({first_error(error)})") from None


def first_error(error: Exception) -> str:
    """Return pydantic's first error as `key: message`, or the message of any other exception."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    return f"{key_of(first['loc']) or 'the whole'}: {first['msg'][0].lower()}{first['msg'][1:]}"


_LIVE = TypeAdapter(LiveStatus)
_ROW: TypeAdapter[RecordRow] = TypeAdapter(Annotated[RecordRow, Field(discriminator="kind")])


def live_status(document: Mapping[str, Any]) -> LiveStatus:
    """Return the status from a worker's status socket. Raises ValidationError for anything else."""
    return _LIVE.validate_python(document)


def record_row(line: bytes) -> RecordRow:
    """Parse a line of a job's record. Raises ValueError or UserError for anything else."""
    return _ROW.validate_python(parse_json(line.decode()))


RECORDS: Sequence[tuple[str, TypeAdapter[Any]]] = (
    ("results", TypeAdapter(Results)),
    ("worker", _WORKER),
    ("status", _STATUS),
    ("profile", TypeAdapter(ProfileFile)),
    ("advice", TypeAdapter(Advice)),
    ("live", _LIVE),
    ("record", _ROW),
)
"""Every kind of file for other programs to read, with the name of its schema in docs/schemas/."""
