"""Description of an engine, for the rest of Prophet.

Rule of this file: the types of a description, and nothing of any engine. A plugin, or an engine's part in a job script,
is named by its dotted path (`package.module:name`), since neither may be imported where experiments are read.
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
"""Variant with which all others are compared: the engine that Prophet's hook takes over, without Prophet. In a config
for another engine the word means that engine's first variant.
"""


def is_worker(node: str) -> bool:
    """Return True if `node` trains."""
    return role_of(node) == "worker"


def role_of(node: str) -> str:
    """Return the role of a node: `server` for `server0`."""
    return node.rstrip("0123456789")


@dataclass(frozen=True)
class RunNetwork:
    """Network of one run as one of its processes sees it.

    It has `addresses` by node, the `interface` of this process's node, the run's `port`, and a folder for `sockets`.
    `rates`, by node, are those of links at the start, in bits per second; None without a limit.
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
    """One way to run an engine, by its name in a config.

    `env` is set in every process, unless the config says otherwise; `exchanges` replace the engine's. `policy` is
    Prophet's policy, None without Prophet; with one, workers leave Prophet's records.
    """

    name: str
    env: Mapping[str, str] = field(default_factory=dict)
    exchanges: Mapping[Framework, str] = field(default_factory=dict)
    policy: str | None = None


@dataclass(frozen=True)
class Package:
    """Distribution and Python package of an engine that is no part of a framework; `install` is the advice."""

    distribution: str
    install: str


class TracedWorker(Protocol):
    """A worker for the reader of a trace: names of its parameters in order, and the lead of its wall clock."""

    @property
    def parameters(self) -> Sequence[str]: ...
    @property
    def wall_minus_steady_s(self) -> float: ...


@dataclass(frozen=True)
class EngineTrace:
    """An engine's own record of its transfers, for figures of runs without Prophet's hook.

    A contender with the variable `switch` is traced. `folder` is the variable with a worker's folder, in which `file`
    appears. `settings` maps a number of iterations to the variables that trace as many. `read(file, worker)` returns
    its transfers, given what the worker's job script wrote.
    """

    frameworks: tuple[Framework, ...]
    switch: str
    folder: str
    file: Path
    settings: Callable[[int], dict[str, str]]
    read: Callable[[Path, TracedWorker], tuple[Transfer, ...]]


@dataclass(frozen=True)
class PartitionSetting:
    """Size to which an engine cuts tensors, in bytes: the `variable` that sets it, and its `default_bytes`."""

    variable: str
    default_bytes: int


@dataclass(frozen=True, kw_only=True, eq=False)
class EngineSpec:
    """One engine: how it runs, its needs, and its part in an experiment."""

    name: str
    words: str
    """Its name for people."""
    exchanges: Mapping[Framework, str]
    """Dotted path of the class for job scripts (exchange.py has the protocols), by framework."""
    programs: Mapping[str, str] = field(default_factory=dict)
    """Python code that each role runs, except the workers, which run the job script."""
    environment: Callable[[str, RunNetwork], dict[str, str]]
    """Function (node, network) that returns the environment of this node's process, as the engine's documentation has
    it.
    """
    prefixes: tuple[str, ...]
    """Prefixes of the variables that tune it. Those in the shell belong to another job."""
    names: tuple[str, ...] = ()
    """Its variables without a common prefix."""
    settings: tuple[str, ...]
    """Prefixes of the variables that a contender may set."""
    variants: tuple[Variant, ...]
    """Its variants in an experiment, in the order of lists."""
    topology: Topology
    """Links that its bytes use, among which the narrow one is."""
    package: Package | None = None
    hook: str | None = None
    """Dotted path of a check of Prophet's hook: (framework) -> (True if it fits, a line); None: not scheduled."""
    enable: str = ""
    """Command that starts a job of it under Prophet; empty if one command is not enough."""
    check: str | None = None
    """Dotted path of a check of Prophet without the hook: (framework) -> rows of (item, True if it is as it must be, a
    line); None if Prophet cannot run so.
    """
    faults: str | None = None
    """Dotted path of a check for known faults of the installed engine: () -> (True if it has none, a line, rows of a
    fault and its effect on a job), or None if it is not installed; None if no faults are known.
    """
    trace: EngineTrace | None = None
    message_loss: Callable[[int], dict[str, str]] | None = None
    """Function (percent) that returns the environment in which every role loses that share of its messages, and resends
    them; None if the engine has no such switch.
    """
    partition: PartitionSetting | None = None
    """Setting of the size to which it cuts tensors; None if a contender cannot set it."""
    simulated: tuple[Framework, ...] = ()
    """Frameworks in which the simulator knows it."""
    unsimulated: str
    """Reason why a contender has no simulation, and what to do."""

    @property
    def frameworks(self) -> tuple[Framework, ...]:
        """Frameworks that it serves; the first is the default."""
        return tuple(self.exchanges)

    @property
    def scheduled(self) -> bool:
        """True if Prophet's hook can order its transfers, so that every policy runs on it."""
        return self.hook is not None

    def has_role(self, node: str) -> bool:
        """Return True if `node` of a cluster takes part."""
        return is_worker(node) or role_of(node) in self.programs

    def variant(self, name: str) -> Variant | None:
        """Return the variant of this name; None if there is none."""
        return next((variant for variant in self.variants if variant.name == name), None)

    @property
    def stock(self) -> str:
        """Variant with which its others are compared: the engine as its users run it."""
        return self.variants[0].name

    def called_here(self, base: str) -> str:
        """Return the name of `base`, a policy or stock, among this engine's variants; else its own."""
        if self.scheduled:
            return base
        if base == STOCK:
            return self.stock
        return next((variant.name for variant in self.variants if variant.policy == base), base)
