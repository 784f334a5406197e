"""Machines of a config: section `cluster` has the nodes, the bandwidth and delay of their links, others' traffic and
faults, section `simulator` the properties of simulated machines that a testbed does not have to be told.

Rule of this file: the schemas of both sections and their checks. Rates are bits per second, times seconds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from typing_extensions import Self

from prophet_scheduler.core.units import MOST_S, parse_rate, parse_size, parse_time
from prophet_scheduler.engines.spec import is_worker
from prophet_scheduler.lab.faults import FaultKind, JobFault, check_apart
from prophet_scheduler.lab.schema import MOST_COUNT, Count, NotNegative, Rate, Seconds, Seed, Strict
from prophet_scheduler.simulate.collectives import COLLECTIVES

NOT_SHAPED = "none"
"""Bandwidth of an unshaped link, limited only by the machine."""
PARAMETER_SERVER = "parameter-server"
ASYNCHRONOUS = "asynchronous"
FSDP2 = "fsdp2"


@dataclass(frozen=True)
class Bandwidth:
    """Link rate of each shaped node, both ways, in bits per second; None means not shaped.

    `default` is the rate of every worker; `nodes` overrides it by name. `changes` are later rates of the workers, as
    (seconds since all workers finished their first iteration, rate).
    """

    default: float | None
    nodes: Mapping[str, float | None] = field(default_factory=dict)
    changes: tuple[tuple[float, float], ...] = ()

    def rate(self, node: str) -> float | None:
        """Return the initial rate of `node`."""
        return self.nodes.get(node, self.default if is_worker(node) else None)

    def with_rates(self, rates: Mapping[str, float | None]) -> Bandwidth:
        """Return this with other initial rates of some nodes."""
        return replace(self, nodes={**self.nodes, **rates})

    def as_setting(self) -> object:
        """Return the form that results.json has."""
        if self.changes:
            return [{"at_s": at, "rate": rate} for at, rate in ((0.0, self.default), *self.changes)]
        if self.nodes:
            return {**({} if self.default is None else {"default": self.default}), **self.nodes}
        return self.default


def _parse_link(value: object) -> float | None:
    return None if value == NOT_SHAPED else parse_rate(value)


def _parse_bandwidth(value: object) -> Bandwidth:
    if isinstance(value, list):
        points = [_rate_point(point) for point in value]
        if not points or points[0][0] != 0 or any(b <= a for (a, _), (b, _) in itertools.pairwise(points)):
            raise ValueError("a series of rates starts with at_s: 0 and goes up from there")
        return Bandwidth(points[0][1], changes=tuple(points[1:]))
    if not isinstance(value, dict):
        return Bandwidth(_parse_link(value))
    if not value:
        raise ValueError("names no node; write e.g. {default: 250mbit, worker0: 100mbit}")
    rates = {str(node): _parse_link(rate) for node, rate in value.items()}
    return Bandwidth(rates.pop("default", None), rates)


def _rate_point(point: object) -> tuple[float, float]:
    if not isinstance(point, dict) or set(point) != {"at_s", "rate"}:
        raise ValueError(f"{point!r} is not a point of a series; write e.g. {{at_s: 10, rate: 100mbit}}")
    at_s = point["at_s"]
    if type(at_s) not in (int, float) or not 0 <= at_s <= MOST_S:
        raise ValueError(f"at_s is {at_s!r}; it must be 0 or more seconds")
    return float(at_s), parse_rate(point["rate"])


class Traffic(Strict):
    """Traffic of others at a node, at `rate` each way, from `from_s` to `until_s`.

    Seconds count as in Bandwidth.changes; in a simulation, from its start.
    """

    node: str
    from_s: NotNegative = 0.0
    until_s: Seconds
    rate: Rate

    @model_validator(mode="after")
    def _ends_after_it_begins(self) -> Self:
        if self.until_s <= self.from_s:
            raise ValueError(f"until_s is {self.until_s:g}; it must be above from_s, {self.from_s:g}")
        return self


class RateMix(Strict):
    """Random rates that others leave to the workers, drawn for each worker every `period_s` until `until_s`.

    `shares` are shares of the worker's rate, drawn with the probabilities `chances` (MLfabric, section 7: N1 to N3).
    The same seed draws the same rates. Seconds count as in Bandwidth.changes.
    """

    shares: list[Annotated[float, Field(gt=0, le=1)]] = Field(min_length=1)
    chances: list[Annotated[float, Field(ge=0, le=1)]] = Field(min_length=1)
    period_s: Seconds = 5.0
    until_s: Seconds
    seed: Seed = 0

    @model_validator(mode="after")
    def _chances_of_all(self) -> Self:
        if len(self.chances) != len(self.shares) or not math.isclose(sum(self.chances), 1.0, abs_tol=1e-6):
            raise ValueError(f"{len(self.shares)} shares need as many chances, which add up to 1")
        if self.until_s / self.period_s > MOST_COUNT:
            raise ValueError(f"until_s is {self.until_s:g}; that is more than {MOST_COUNT} times period_s")
        return self

    def draw(self, workers: int) -> list[tuple[float, int, float]]:
        """Return tuples (time in seconds, worker, share), by time."""
        random = np.random.default_rng([self.seed, 1])
        moments = np.arange(0.0, self.until_s, self.period_s).tolist()
        # Draw period by period, so that a longer mix starts with the rates of a shorter one. Normalize, since a chance
        # such as 1/3 cannot be written exactly.
        chances = np.array(self.chances) / sum(self.chances)
        drawn = random.choice(self.shares, size=(len(moments), workers), p=chances).tolist()
        return [(at_s, *each) for at_s, row in zip(moments, drawn, strict=True) for each in enumerate(row)]


class ClusterConfig(Strict):
    """Machines, each a network namespace. `bandwidth` applies to the workers' links, or to nodes by name."""

    workers: int = Field(default=2, ge=1, le=100_000)
    servers: int = Field(default=1, ge=1, le=100_000)
    bandwidth: Annotated[Bandwidth, BeforeValidator(_parse_bandwidth)]
    delay: Annotated[float, BeforeValidator(parse_time)] = 0.0
    """One-way delay of a frame on each worker's link, in seconds."""
    traffic: list[Traffic] = Field(default_factory=list)
    faults: list[JobFault] = Field(default_factory=list)
    rate_mix: RateMix | None = None

    @property
    def nodes(self) -> list[str]:
        servers = [f"server{index}" for index in range(self.servers)]
        return ["scheduler", *servers, *(f"worker{index}" for index in range(self.workers))]

    @model_validator(mode="after")
    def _nodes_exist(self) -> Self:
        named: dict[str, Iterable[str | None]] = {
            "bandwidth": self.bandwidth.nodes,
            "traffic": [traffic.node for traffic in self.traffic],
            "faults": [fault.node for fault in self.faults],
        }
        for key, names in named.items():
            if unknown := sorted(map(str, set(names) - {None, *self.nodes})):
                default = "default, " if isinstance(names, Mapping) else ""
                raise ValueError(f"{key} names {unknown[0]!r}; the nodes are {default}{', '.join(self.nodes)}")
        return self

    @model_validator(mode="after")
    def _events_of_a_kind_are_apart(self) -> Self:
        by_time = sorted(self.traffic, key=lambda traffic: (traffic.node, traffic.from_s))
        for before, after in itertools.pairwise(by_time):
            if before.node == after.node and after.from_s < before.until_s:
                raise ValueError(
                    f"traffic at {after.node} from {after.from_s:g} s begins before the previous one has ended"
                )
        check_apart(self.faults)
        return self

    @model_validator(mode="after")
    def _a_rate_changes_for_one_reason(self) -> Self:
        if self.rate_mix is not None:
            if self.bandwidth.changes:
                raise ValueError("rate_mix: bandwidth already changes the workers' rates; leave one of the two out")
            if any(self.bandwidth.rate(node) is None for node in self.nodes if is_worker(node)):
                raise ValueError("rate_mix: it scales the workers' bandwidth, which must be a rate for each of them")
        slow = next((fault for fault in self.faults if fault.kind is FaultKind.SLOW_LINK), None)
        if slow is not None and self.bandwidth.changes:
            raise ValueError(f"faults: the rate of {slow.node} cannot be {FaultKind.SLOW_LINK} where bandwidth changes")
        return self


def _known_exchange(value: str) -> str:
    known = (PARAMETER_SERVER, ASYNCHRONOUS, FSDP2, *COLLECTIVES)
    if value not in known:
        raise ValueError(f"{value!r} is not an exchange; the known ones are {', '.join(known)}")
    return value


def _parse_burst(value: object) -> object:
    return value if value in ("testbed", 0) else parse_size(value)


class SimulatorConfig(Strict):
    """Costs of simulated machines. Defaults are those of the testbed on two cores; docs/simulator.md has the method."""

    exchange: Annotated[str, AfterValidator(_known_exchange)] = PARAMETER_SERVER
    shards: Count | None = None
    """Number of ranks that shard the parameters in FSDP2; None for all, fewer is HSDP, 1 is `replicate()`."""
    keep: bool = False
    """True if FSDP2 keeps parameters after forward (reshard_after_forward=False)."""
    overhead_s: NotNegative = 0.0001
    """Overhead of a message with data, besides its bytes."""
    latency_s: NotNegative = 0.00014
    """Time from sending a message's last byte to the receiver's reaction."""
    burst: Annotated[Literal["testbed"] | int, BeforeValidator(_parse_burst)] = "testbed"
    """Bytes that a link may send at once after idling: `testbed` for what its token buckets allow, 0 for a wire."""
    jitter: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Scatter of compute times: the standard deviation of their logarithm, drawn for each worker and iteration."""

    @model_validator(mode="after")
    def _shards_in_fsdp2(self) -> Self:
        if self.exchange != FSDP2 and (self.shards is not None or self.keep):
            raise ValueError(f"shards and keep need exchange: {FSDP2}; leave them out")
        return self
