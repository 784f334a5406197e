"""Faults of a config that happen while a job trains, and their times.

Rule of this file: the schema of `cluster.faults`, its checks, and a fault in words; the runner injects faults. Times
are seconds since all workers finished their first iteration, rates bits per second.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

from pydantic import Field, model_validator
from typing_extensions import Self

from prophet_scheduler.core.enums import StrEnum
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.units import format_rate
from prophet_scheduler.lab.schema import NotNegative, Rate, Seconds, Strict
from prophet_scheduler.lab.testbed.shaping import check_bandwidth


class FaultKind(StrEnum):
    LINK_DOWN = "link-down"
    """The node's link drops everything, both ways. Without `until_s` the node never returns."""
    SLOW_LINK = "slow-link"
    """The node's link has a different rate, both ways."""
    STOPPED = "stopped"
    """The node's programs get SIGSTOP, then SIGCONT at the end, as if the machine swapped or a debugger stopped
    them."""
    KILLED = "killed"
    """The node's programs get SIGKILL; if `until_s` is set, the node's program restarts then."""
    MESSAGES_DROPPED = "messages-dropped"
    """Every role loses a share of the messages it receives, for the whole job; the engine retransmits them."""


_KEYS: Mapping[FaultKind, tuple[Sequence[str], Sequence[str]]] = {
    FaultKind.LINK_DOWN: (("node",), ("from_s", "until_s", "every_s")),
    FaultKind.SLOW_LINK: (("node", "until_s", "rate"), ("from_s", "every_s")),
    FaultKind.STOPPED: (("node", "until_s"), ("from_s", "every_s")),
    FaultKind.KILLED: (("node",), ("from_s", "until_s")),
    FaultKind.MESSAGES_DROPPED: (("percent",), ()),
}
"""Keys of each kind: (required, optional)."""


class JobFault(Strict):
    """One fault at `node`, from `from_s` to `until_s`, repeated every `every_s` seconds if that is set.

    Each FaultKind has its own keys (`_KEYS`).
    """

    kind: Annotated[FaultKind, Field(strict=False)]
    node: str | None = None
    from_s: NotNegative = 0.0
    until_s: Seconds | None = None
    every_s: Seconds | None = None
    rate: Rate | None = None
    percent: Annotated[int | None, Field(ge=1, le=99)] = None
    """Percentage of messages lost."""

    @model_validator(mode="after")
    def _keys_of_its_kind(self) -> Self:
        needed, optional = _KEYS[self.kind]
        for key in needed:
            if getattr(self, key) is None:
                raise ValueError(f"{self.kind} needs {key}; give it a value")
        if foreign := sorted(self.model_fields_set - {"kind", *needed, *optional}):
            raise ValueError(f"{foreign[0]} is not a key of {self.kind}; leave it out")
        try:
            check_bandwidth(str(self.node), self.rate)
        except UserError as error:
            raise ValueError(str(error)) from None
        if self.until_s is not None and self.until_s <= self.from_s:
            raise ValueError(f"until_s is {self.until_s:g}; it must be above from_s, {self.from_s:g}")
        if self.every_s is not None and self.until_s is not None and self.every_s <= self.until_s - self.from_s:
            lasts_s = self.until_s - self.from_s
            raise ValueError(f"every_s is {self.every_s:g}; it must be above the {lasts_s:g} s that the fault lasts")
        return self

    def times(self, first_s: float | None) -> Iterator[float]:
        """Yield the fault's starts (for `from_s`) or ends (for `until_s`) in seconds, endlessly if it repeats."""
        if first_s is None:
            return iter(())
        return iter((first_s,)) if self.every_s is None else itertools.count(first_s, self.every_s)

    def words(self) -> str:
        if self.kind is FaultKind.MESSAGES_DROPPED:
            return f"{self.percent}% of messages dropped"
        rate = "" if self.rate is None else f" to {format_rate(self.rate)}"
        until = "" if self.until_s is None else f"-{self.until_s:g}"
        again = "" if self.every_s is None else f" every {self.every_s:g}s"
        started = " and started anew" if self.kind is FaultKind.KILLED and self.until_s is not None else ""
        return f"{self.node} {self.kind}{rate} {self.from_s:g}{until}s{again}{started}"


def check_apart(faults: Sequence[JobFault]) -> None:
    """Raise ValueError if two faults of one kind at one node overlap."""
    kept = [fault for fault in faults if fault.kind is not FaultKind.MESSAGES_DROPPED]
    for before, after in itertools.combinations(sorted(kept, key=lambda fault: fault.from_s), 2):
        if (before.kind, before.node) != (after.kind, after.node):
            continue
        ended = before.until_s is not None and before.until_s <= after.from_s
        if not ended or before.every_s is not None:
            raise ValueError(
                f"faults: {after.kind} of {after.node} from {after.from_s:g} s begins before the previous one has ended"
            )
    if len(faults) - len(kept) > 1:
        raise ValueError(f"faults: {FaultKind.MESSAGES_DROPPED} appears twice; keep one")
