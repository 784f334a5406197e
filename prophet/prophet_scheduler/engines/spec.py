"""An engine as a value: all that the rest of Prophet has to know of it.

Rule of this file: the words of a description, and nothing of any engine. A plugin or a job script's part is named by
its dotted path (`package.module:name`), since neither may be imported where experiments are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from prophet_scheduler.core.transfer import Transfer
from prophet_scheduler.engines.topology import Topology

Framework = Literal["torch", "mxnet"]

STOCK = "stock"
"""The variant that all others are compared with: the engine whose queues Prophet's hook takes over, without Prophet. In
a config for another engine the word means that one's first variant."""


def is_worker(node: str) -> bool:
    """Return True if `node` trains."""
    return role_of(node) == "worker"


def role_of(node: str) -> str:
    """Return the role of a node: `server` for `server0`."""
    return node.rstrip("0123456789")


@dataclass(frozen=True)
class RunNetwork:
    """The network of one run as one of its processes sees it.

    `addresses` by node, the `interface` of this process's node, the run's `port`, a folder of its own for `sockets`.
    `rates`, by node, are those of links at the start, in bits per second; None where there is no limit.
    """

    workers: int
    servers: int
    addresses: Mapping[str, str]
    interface: str
    port: int
    sockets: str
    rates: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Variant:
    """One way to run an engine, by the name that a config gives.

    `env` is what it sets in every process, unless the config says otherwise; `exchanges` replace the engine's. `policy`
    is Prophet's that it trains under, None without Prophet; its workers leave Prophet's records.
    """

    name: str
    env: Mapping[str, str] = field(default_factory=dict)
    exchanges: Mapping[Framework, str] = field(default_factory=dict)
    policy: str | None = None


@dataclass(frozen=True)
class Package:
    """Distribution and Python package of an engine that no framework brings; `install` is the advice."""

    distribution: str
    install: str


class TracedWorker(Protocol):
    """A worker, as the reader of a trace needs it: names of its parameters in order, and the lead of its wall clock."""

    @property
    def parameters(self) -> Sequence[str]: ...
    @property
    def wall_minus_steady_s(self) -> float: ...


@dataclass(frozen=True)
class EngineTrace:
    """An engine's own record of its transfers, for figures of runs without Prophet's hook.

    A contender with the variable `switch` is traced; `folder` is the variable with a worker's folder, in which `file`
    appears. `settings` of a number of iterations are the variables that trace as many. `read(file, worker)` makes
    transfers of it, with what the worker's job script wrote.
    """

    frameworks: tuple[Framework, ...]
    switch: str
    folder: str
    file: Path
    settings: Callable[[int], dict[str, str]]
    read: Callable[[Path, TracedWorker], tuple[Transfer, ...]]


@dataclass(frozen=True)
class PartitionSetting:
    """The size that an engine cuts tensors to, in bytes: the `variable` that sets it, and its own `default_bytes`."""

    variable: str
    default_bytes: int


@dataclass(frozen=True, kw_only=True, eq=False)
class EngineSpec:
    """One engine: what runs it, what it needs, what it brings to an experiment."""

    name: str
    words: str
    """Its name for people."""
    exchanges: Mapping[Framework, str]
    """Dotted path of the class for job scripts (exchange.py has the protocols), by framework that it serves."""
    programs: Mapping[str, str] = field(default_factory=dict)
    """The Python code that each role runs besides the workers, which run the job script."""
    environment: Callable[[str, RunNetwork], dict[str, str]]
    """(node, network) -> what its documentation wants in the environment of this node's process."""
    prefixes: tuple[str, ...]
    """Prefixes of the variables that tune it: those of the shell are another job's."""
    names: tuple[str, ...] = ()
    """Its variables without a common prefix."""
    settings: tuple[str, ...]
    """Prefixes of the variables that a contender of it may set."""
    variants: tuple[Variant, ...]
    """Its variants in an experiment, in the order in which they are listed."""
    topology: Topology
    """Links that its bytes go through, which tell the narrow one."""
    package: Package | None = None
    hook: str | None = None
    """Dotted path of what says whether Prophet's hook fits: (framework) -> (whether, a line); None: not scheduled."""
    enable: str = ""
    """Command that starts a job of it under Prophet; empty if that takes more than one."""
    check: str | None = None
    """Dotted path of what says how far Prophet can run on it without the hook: (framework) -> rows of (item, whether it
    is as it must be, a line); None where it cannot."""
    faults: str | None = None
    """Dotted path of what says which of the engine's known faults the installed one has: () -> (whether none, a line,
    rows of a fault and what it does to a job), or None where it is not installed; None where no faults are known."""
    trace: EngineTrace | None = None
    message_loss: Callable[[int], dict[str, str]] | None = None
    """(percent) -> what makes every role lose so many of the messages that it gets, and send again what is lost; None
    where it has no such switch."""
    partition: PartitionSetting | None = None
    """Setting of the size to which it cuts tensors; None if a contender cannot set it."""
    simulated: tuple[Framework, ...] = ()
    """Frameworks in which the simulator knows it."""
    unsimulated: str
    """Why a contender that the simulator does not know has no simulation, and what to do."""

    @property
    def frameworks(self) -> tuple[Framework, ...]:
        """Frameworks that it serves; the first is the default."""
        return tuple(self.exchanges)

    @property
    def scheduled(self) -> bool:
        """True if Prophet's hook can order its transfers, and so every policy runs on it."""
        return self.hook is not None

    def has_role(self, node: str) -> bool:
        """Return True if `node` of a cluster takes part."""
        return is_worker(node) or role_of(node) in self.programs

    def variant(self, name: str) -> Variant | None:
        """Return the variant of this name; None if there is none."""
        return next((variant for variant in self.variants if variant.name == name), None)

    @property
    def stock(self) -> str:
        """The variant that its others are compared with: as its users run it."""
        return self.variants[0].name

    def called_here(self, base: str) -> str:
        """Return the name of `base`, a policy or stock, among this engine's variants; else its own."""
        if self.scheduled:
            return base
        if base == STOCK:
            return self.stock
        return next((variant.name for variant in self.variants if variant.policy == base), base)
