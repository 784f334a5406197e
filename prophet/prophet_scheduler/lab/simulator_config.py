"""Section `simulator` of a config: properties of the simulated machines that `cluster` does not have.

Rule of this file: keys, their defaults and checks. Rates are bits per second, as in the rest of a config.
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
    sum_rate: Rate | None = None
    """Bits per second at which a server (or a worker in a collective) adds; None for no limit."""
    server_overhead_s: NotNegative = 0.0
    """CPU time of a parameter server per message with data, in and out, besides summing its bytes."""
    operation_s: NotNegative = 0.0
    """CPU time of the workers per collective operation, one operation after another. Contenders of
    DistributedDataParallel default to gloo's value, here and for `operation_rate`."""
    operation_rate: Rate | None = None
    """Bits per second of collective operations that the CPU moves and adds while the wire carries others; None for no
    limit."""
    burst: Annotated[Literal["testbed"] | int, BeforeValidator(_parse_burst)] = "testbed"
    """Bytes that a link may send at once after idling: `testbed` for what its token buckets allow, 0 for a wire."""
    jitter: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Scatter of compute times: the standard deviation of their logarithm, drawn for each worker and iteration."""

    @model_validator(mode="after")
    def _shards_in_fsdp2(self) -> Self:
        if self.exchange != FSDP2 and (self.shards is not None or self.keep):
            raise ValueError(f"shards and keep need exchange: {FSDP2}; leave them out")
        return self
