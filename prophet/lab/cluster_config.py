"""The cluster of a config: its nodes and the bandwidth of their links.

Rule of this file: the schema of `cluster` and its checks. Rates are bits per second, times seconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from prophet.core.units import parse_rate
from prophet.lab.schema import Strict


@dataclass(frozen=True)
class Bandwidth:
    """The link of each shaped node, both ways, in bits per second; None means not shaped.

    `default` is every worker's rate, `nodes` overrides it by name, and `changes` are later rates of
    the workers as (seconds after all workers finished their first iteration, rate).
    """

    default: float | None
    nodes: Mapping[str, float] = field(default_factory=dict)
    changes: tuple[tuple[float, float], ...] = ()

    def rate(self, node: str) -> float | None:
        """The rate of `node` at the start."""
        fallback = self.default if node.startswith("worker") else None
        return self.nodes.get(node, fallback)

    def as_setting(self) -> object:
        """As results.json gives it."""
        if self.changes:
            return [{"at_s": at, "rate": rate} for at, rate in ((0.0, self.default), *self.changes)]
        if self.nodes:
            return {**({} if self.default is None else {"default": self.default}), **self.nodes}
        return self.default


def _parse_bandwidth(value: object) -> Bandwidth:
    if isinstance(value, dict):
        if not value:
            raise ValueError("names no node; write e.g. {default: 250mbit, worker0: 100mbit}")
        rates = {str(node): parse_rate(rate) for node, rate in value.items()}
        return Bandwidth(rates.pop("default", None), rates)
    if isinstance(value, list):
        points = [_rate_point(point) for point in value]
        if not points or points[0][0] != 0 or any(b <= a for (a, _), (b, _) in itertools.pairwise(points)):
            raise ValueError("a series of rates starts with at_s: 0 and goes up from there")
        return Bandwidth(points[0][1], changes=tuple(points[1:]))
    return Bandwidth(parse_rate(value))


def _rate_point(point: object) -> tuple[float, float]:
    if not isinstance(point, dict) or set(point) != {"at_s", "rate"}:
        raise ValueError(f"{point!r} is no point of a series; write e.g. {{at_s: 10, rate: 100mbit}}")
    at_s = point["at_s"]
    if isinstance(at_s, bool) or not isinstance(at_s, int | float) or not 0 <= at_s < float("inf"):
        raise ValueError(f"at_s is {at_s!r}; it must be 0 or more seconds")
    return float(at_s), parse_rate(point["rate"])


class ClusterConfig(Strict):
    """The machines, each a network namespace. Shaped are the links of the workers, unless named otherwise."""

    workers: int = Field(default=2, ge=1, le=100_000)
    servers: int = Field(default=1, ge=1, le=100_000)
    bandwidth: Annotated[Bandwidth, BeforeValidator(_parse_bandwidth)]

    @property
    def nodes(self) -> list[str]:
        servers = [f"server{index}" for index in range(self.servers)]
        return ["scheduler", *servers, *(f"worker{index}" for index in range(self.workers))]

    @model_validator(mode="after")
    def _nodes_exist(self) -> Self:
        unknown = sorted(set(self.bandwidth.nodes) - set(self.nodes))
        if unknown:
            raise ValueError(f"bandwidth names {unknown[0]!r}; the nodes are default, {', '.join(self.nodes)}")
        return self
