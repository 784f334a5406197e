"""results.json as a value, and the reading of everything that an experiment writes: checked, and older files too.

Rule of this file: the types of results.json and one way to read each kind of record; what the numbers are is counted in
results.py. Times are seconds. docs/schemas/ has the JSON schemas (`make schemas`). Within a schema's number keys are
only added: a key that is not known is passed over, and one that an older file lacks has a default here. What was never
set is not written, so a file that is read and written again stays the same.

results.json of schema 1 has medians alone; from 2 on it has every iteration, and leads with means.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.files import parse_json, read_text, write_whole
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.status import AgentStatus
from prophet_scheduler.lab.advice_record import Advice
from prophet_scheduler.lab.iterations import Kept, Times
from prophet_scheduler.lab.jobs.record import WorkerRecord
from prophet_scheduler.lab.schema import key_of
from prophet_scheduler.lab.testbed import RelayReport
from prophet_scheduler.models.profiles import ProfileFile
from prophet_scheduler.simulate.measures import OverTime
from prophet_scheduler.watch.rows import RecordRow
from prophet_scheduler.watch.status import LiveStatus

SCHEMA: Literal[2] = 2
"""Of results.json as it is written; the one before is read as well."""
RESULTS_FILE = "results.json"
"""In the folder of an experiment."""
T = TypeVar("T")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


class GradientTimes(_Part):
    """Means over what travels, gradients or blocks: from generation to the wire, and to the sum's being back."""

    wait_s: float
    total_s: float


class TunedSizes(_Part):
    """What a search chose, in bytes, and its trials: credit, partition size, seconds."""

    credit_bytes: int
    partition_bytes: int
    trials: list[tuple[int, int, float]] = []


class AgentCost(_Part):
    """What Prophet cost and did: `cpu_share` is the agent thread's processor time over that of training, where there is
    such a thread."""

    cpu_share: float
    plans: int
    watchdog_releases: int
    push_credit: int | None = None
    partition_bytes: int | None = None
    network: Network | None = None


class LossAt(_Part):
    """What the loss was at a time, in seconds since the first worker began."""

    time_s: float
    loss: float


class ConvergenceResult(_Part):
    """What a job that keeps its loss against time came to. Counts are of all workers and repeats."""

    target_loss: float
    time_to_loss_s: float | None = None
    """The median of all repeats; none where one of them did not get there."""
    times_to_loss_s: list[float | None] = []
    update_s: float | None = None
    """Seconds from one applied update to the next, of all workers together."""
    least_loss: float | None = None
    greatest_delay: int | None = None
    """Of updates that a coordinator counted."""
    sent: int | None = None
    dropped: int | None = None
    uncoordinated: int | None = None
    """Of those sent, how many went without a grant."""
    applied_otherwise: int | None = None
    """Workers of whose updates the server had another number at the end than they had sent."""
    curve: list[LossAt] = []


class PolicyResult(_Part):
    """One policy in one cell. One that never came to its end has an `error` and no times."""

    iteration_s: Times | None = None
    iterations: list[list[Kept]] = []
    """Seconds of every iteration from a job's first, by repeat and worker; none in a file of schema 1."""
    samples_per_s: float | None = None
    """Of all workers together, in a mean iteration."""
    wait_s: float | None = None
    """Of a mean iteration beyond computing, where that is known."""
    repeats: list[float] = []
    """The median of each repeat."""
    wait_by_gradient_s: list[float] | None = None
    processor_utilisation: float | None = None
    uplink_bytes_per_s: float | None = None
    downlink_bytes_per_s: float | None = None
    over_time: OverTime | None = None
    events: int | None = None
    tuning: TunedSizes | None = None
    start_s: float | None = None
    """From the start of a process to the end of its first iteration."""
    processor_s: float | None = None
    """Processor seconds of an iteration, all threads of a worker; a replay computes nothing, so the exchange's."""
    weights_sha256: str | list[str] | None = None
    """Of the final model; a list where repeats ended with different ones."""
    agent: AgentCost | None = None
    given_back: str | None = None
    """Why DistributedDataParallel had its own reducer back in the end, where it was faster than Prophet in a repeat."""
    accuracy: float | None = None
    """The least of all workers and repeats."""
    error: str | None = None
    ended_after_s: float | None = None
    """Where a run failed after a fault had begun: seconds from the first fault to its end, the most of all repeats."""
    log_tail: dict[str, list[str]] = {}
    narrow_link: str | None = None
    """Where it is another than the cell's."""
    same_weights_as_stock: bool | None = None
    """None where that was not compared, and where others would say nothing: sums of more than two depend on timing."""
    gradient: GradientTimes | None = None
    convergence: ConvergenceResult | None = None

    @property
    def time_s(self) -> float | None:
        """The mean iteration; None where it failed, and the median of a file of schema 1."""
        return None if self.iteration_s is None else self.iteration_s.headline

    @property
    def rest_s(self) -> float | None:
        """The same of iterations at rest."""
        return None if self.iteration_s is None else self.iteration_s.rest

    def iterations_s(self) -> list[list[float]]:
        """Seconds of every iteration of each repeat from its first, those of its workers averaged."""
        return [[fmean(times_s) for times_s in zip(*workers, strict=False)] for workers in self.iterations]


class CellResult(_Part):
    """One point of a sweep. `ratios` are stock's iteration time over each policy's: above 1 is faster than stock."""

    setting: dict[str, JsonValue]
    """What was varied, by the last part of its key; `bandwidth` in bits per second."""
    emulated: str = ""
    narrow_link: str | None = None
    links: dict[str, float] = {}
    """What the testbed measured before the first run, in bits per second."""
    round_trips: dict[str, float] = {}
    """What the testbed measured before the first run, in seconds, by node: to a node of its own and back."""
    relays: dict[str, RelayReport] = {}
    """How well delayed links kept their delay during the runs, by node."""
    compute_s: float | None = None
    lower_bound_s: float | None = None
    bound_is_measured: bool = False
    """Whether a rate of the bound is what the testbed measured of a link that is not shaped."""
    policies: dict[str, PolicyResult]
    ratios: dict[str, float] = {}

    def measured(self, name: str) -> PolicyResult | None:
        """The policy of that name, None where there is none or it failed."""
        policy = self.policies.get(name)
        return None if policy is None or policy.iteration_s is None else policy

    @property
    def times_s(self) -> dict[str, float]:
        """`time_s` of each policy that did not fail."""
        return {name: policy.time_s for name, policy in self.policies.items() if policy.time_s is not None}

    @property
    def rests_s(self) -> dict[str, float]:
        """`rest_s` of each policy that did not fail."""
        return {name: policy.rest_s for name, policy in self.policies.items() if policy.rest_s is not None}


class Results(_Part):
    """results.json."""

    schema_: Literal[1, 2] = Field(default=SCHEMA, alias="schema")
    config: dict[str, JsonValue]
    """The content of the config file."""
    repeats: int | None = None
    cells: list[CellResult]

    def as_json(self) -> dict[str, Any]:
        """As it is written: what was never set is left out."""
        return self.model_dump(by_alias=True, exclude_unset=True)


def write_results(results: Results, path: Path) -> None:
    """Writes results.json as a whole or not at all."""
    write_whole(json.dumps(results.as_json(), indent=2, allow_nan=False) + "\n", path)


def read_results(path: Path) -> Results:
    """Reads a results.json of this version or an older one. Raises UserError naming the file and the key."""
    return read(path, Results.model_validate, "results", (1, SCHEMA))


_WORKER = TypeAdapter(WorkerRecord)
_STATUS = TypeAdapter(AgentStatus)


def read_worker(path: Path) -> WorkerRecord:
    """Reads what a worker left. Raises UserError."""
    return read(path, _WORKER.validate_python, "a worker's result")


def read_status(path: Path) -> AgentStatus:
    """Reads what Prophet wrote in a worker. Raises UserError."""
    return read(path, _STATUS.validate_python, "a status of Prophet")


def read(path: Path, check: Callable[[Any], T], what: str, schemas: Sequence[int] = (1,)) -> T:
    """Reads and checks a JSON file of the project. Raises UserError: one line with file and key."""
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
    """The first thing that pydantic found, as `key: what is wrong`; the message of another error."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    return f"{key_of(first['loc']) or 'the whole'}: {first['msg'][0].lower()}{first['msg'][1:]}"


_LIVE = TypeAdapter(LiveStatus)
_ROW: TypeAdapter[RecordRow] = TypeAdapter(Annotated[RecordRow, Field(discriminator="kind")])


def live_status(document: Mapping[str, Any]) -> LiveStatus:
    """What a worker's status socket has said. Raises ValidationError for what is none."""
    return _LIVE.validate_python(document)


def record_row(line: bytes) -> RecordRow:
    """A line of a job's record. Raises ValueError or UserError for what is none."""
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
"""Every kind of file that other programs may read, with the name of its schema in docs/schemas/."""
