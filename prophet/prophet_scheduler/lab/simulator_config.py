"""What a config says of the simulated machines beyond the cluster: the section `simulator`.

Rule of this file: keys, their defaults and checks. Rates are bits per second as in the rest of a config.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from prophet_scheduler.core.units import parse_size
from prophet_scheduler.lab.schema import NotNegative, Rate, Strict

PARAMETER_SERVER = "parameter-server"
ASYNCHRONOUS = "asynchronous"
COLLECTIVES = ("ring", "shuffle", "tree", "double-tree", "recursive-doubling", "halving-doubling")


def _known_exchange(value: str) -> str:
    known = (PARAMETER_SERVER, ASYNCHRONOUS, *COLLECTIVES)
    if value not in known:
        raise ValueError(f"{value!r} is no exchange; the known ones are {', '.join(known)}")
    return value


def _parse_burst(value: object) -> object:
    return value if value in ("testbed", 0) else parse_size(value)


class SimulatorConfig(Strict):
    """The defaults are the testbed on two cores; docs/simulator.md says how they were measured."""

    exchange: Annotated[str, AfterValidator(_known_exchange)] = PARAMETER_SERVER
    overhead_s: NotNegative = 0.0001
    """What a message with data costs beside its bytes."""
    latency_s: NotNegative = 0.00014
    """From the last byte of a message leaving to the receiver acting on it."""
    sum_rate: Rate | None = None
    """Bits per second that a server (or a worker of a collective) adds up; no limit where left out."""
    server_overhead_s: NotNegative = 0.0
    """What a message with data costs a parameter server's processor, in and out, beside the bytes that it sums."""
    operation_s: NotNegative = 0.0
    """What an operation of a collective takes of the workers' processors, one after another. Contenders that are
    DistributedDataParallel's have gloo's where this and the next are left out."""
    operation_rate: Rate | None = None
    """Bits per second of a collective's operations that processors move and add while the wire carries others; no limit
    where left out."""
    burst: Annotated[Literal["testbed"] | int, BeforeValidator(_parse_burst)] = "testbed"
    """Bytes that an idle link may catch up with; `testbed` as its token buckets do, 0 for a wire."""
    jitter: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Scatter of computing times: the standard deviation of their logarithm, drawn for each worker and iteration."""
