"""Section `simulator` of a config: the simulated machines beyond the cluster.

Rule of this file: keys, their defaults and checks. Rates are bits per second as in the rest of a config.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from typing_extensions import Self

from prophet_scheduler.core.units import parse_size
from prophet_scheduler.lab.schema import Count, NotNegative, Rate, Strict
from prophet_scheduler.simulate.collectives import COLLECTIVES

PARAMETER_SERVER = "parameter-server"
ASYNCHRONOUS = "asynchronous"
FSDP2 = "fsdp2"


def _known_exchange(value: str) -> str:
    known = (PARAMETER_SERVER, ASYNCHRONOUS, FSDP2, *COLLECTIVES)
    if value not in known:
        raise ValueError(f"{value!r} is no exchange; the known ones are {', '.join(known)}")
    return value


def _parse_burst(value: object) -> object:
    return value if value in ("testbed", 0) else parse_size(value)


class SimulatorConfig(Strict):
    """Costs of simulated machines. The defaults are the testbed's on two cores; docs/simulator.md has the method."""

    exchange: Annotated[str, AfterValidator(_known_exchange)] = PARAMETER_SERVER
    shards: Count | None = None
    """Ranks that share the parameters with FSDP2; the default is all workers, fewer are HSDP, 1 is `replicate()`."""
    keep: bool = False
    """True if FSDP2 keeps parameters after forward (reshard_after_forward=False)."""
    overhead_s: NotNegative = 0.0001
    """Overhead of a message with data, beside its bytes."""
    latency_s: NotNegative = 0.00014
    """Time from the departure of a message's last byte to the receiver's reaction."""
    sum_rate: Rate | None = None
    """Bits per second that a server (or a worker of a collective) adds up; the default is no limit."""
    server_overhead_s: NotNegative = 0.0
    """Processor time of a parameter server for a message with data, in and out, beside the bytes that it sums."""
    operation_s: NotNegative = 0.0
    """Processor time of the workers for a collective's operation, one operation after another. Contenders of
    DistributedDataParallel default to gloo's value, here and for `operation_rate`."""
    operation_rate: Rate | None = None
    """Bits per second of a collective's operations that processors move and add while the wire carries others; the
    default is no limit."""
    burst: Annotated[Literal["testbed"] | int, BeforeValidator(_parse_burst)] = "testbed"
    """Bytes that a link may catch up at once after idling: `testbed` as its token buckets allow, 0 for a wire."""
    jitter: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Scatter of computing times: the standard deviation of their logarithm, drawn for each worker and iteration."""

    @model_validator(mode="after")
    def _shards_in_fsdp2(self) -> Self:
        if self.exchange != FSDP2 and (self.shards is not None or self.keep):
            raise ValueError(f"shards and keep are of exchange: {FSDP2}; leave them out")
        return self
