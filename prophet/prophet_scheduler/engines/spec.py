"""Description of an engine, for the rest of Prophet.

Rule of this file: the types of a description, nothing of a particular engine. Plugins, and classes of engines for job
scripts, are given by their dotted path (`package.module:name`): code that reads experiments must not import them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from prophet_scheduler.engines.topology import Topology

Framework = Literal["torch", "mxnet"]

STOCK = "stock"
"""Variant with which all others are compared: the engine that Prophet's hook takes over, without Prophet. In a config
for another engine it means that engine's first variant.
"""


def is_worker(node: str) -> bool:
    """Return True if `node` is a worker."""
    return role_of(node) == "worker"


def role_of(node: str) -> str:
    """Return the role of a node, such as `server` for `server0`."""
    return node.rstrip("0123456789")


@dataclass(frozen=True)
class RunNetwork:
    """Network of one run as seen by one of its processes.

    It has the `addresses` by node, the network `interface` of this process's node, the run's `port`, and a folder for
    `sockets`. `rates` are the initial rates of links in bits per second, by node; None without a limit.
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

    `env` is set in every process, unless the config overrides it. `exchanges` replace the engine's. `policy` is
    Prophet's policy, None without Prophet. With a policy, workers write Prophet's records.
    """

    name: str
    env: Mapping[str, str] = field(default_factory=dict)
    exchanges: Mapping[Framework, str] = field(default_factory=dict)
    policy: str | None = None


@dataclass(frozen=True)
class Package:
    """Distribution of an engine that is not part of a framework. `install` says how to install it."""

    distribution: str
    install: str


@dataclass(frozen=True)
class PartitionSetting:
    """Variable that sets the size to which an engine cuts tensors, and its default in bytes."""

    variable: str
    default_bytes: int


@dataclass(frozen=True, kw_only=True, eq=False)
class EngineSpec:
    """One engine: how to run it, what it needs, and its use in experiments."""

    name: str
    words: str
    """Display name."""
    exchanges: Mapping[Framework, str]
    """Dotted path of the class for job scripts (exchange.py has the protocols), by framework."""
    programs: Mapping[str, str] = field(default_factory=dict)
    """Python code that each role runs, except the workers, which run the job script."""
    environment: Callable[[str, RunNetwork], dict[str, str]]
    """Function (node, network) that returns the environment of this node's process, according to the engine's
    documentation.
    """
    prefixes: tuple[str, ...]
    """Prefixes of the engine's variables. If set in the shell, these belong to another job."""
    names: tuple[str, ...] = ()
    """The engine's variables without a common prefix."""
    settings: tuple[str, ...]
    """Prefixes of the variables that a contender may set."""
    variants: tuple[Variant, ...]
    """Variants in experiments, in the order in which to list them."""
    topology: Topology
    """Links that the gradients use, which include the narrow link."""
    package: Package | None = None
    hook: str | None = None
    """Dotted path of a check of Prophet's hook: (framework) -> (True if compatible, a line). None without a hook."""
    enable: str = ""
    """Command that starts a job under Prophet; empty if one command is not enough."""
    check: str | None = None
    """Dotted path of a check of Prophet without a hook: (framework) -> rows of (item, True if it is fine, a line). None
    if Prophet cannot run without a hook.
    """
    faults: str | None = None
    """Dotted path of a check for known faults of the installed engine: () -> (True if it has none, a line, rows of a
    fault and its effect on a job), or None if it is not installed. None if no faults are known.
    """
    message_loss: Callable[[int], dict[str, str]] | None = None
    """Function (percent) that returns the environment in which each role drops that share of its messages and resends
    them; None if the engine has no such switch.
    """
    partition: PartitionSetting | None = None
    """Setting of the size to which the engine cuts tensors; None if a contender cannot set it."""
    simulated: tuple[Framework, ...] = ()
    """Frameworks with which the simulator supports the engine."""
    unsimulated: str
    """Reason why a contender cannot be simulated, and what to do."""

    @property
    def frameworks(self) -> tuple[Framework, ...]:
        """Frameworks that the engine supports; the first is the default."""
        return tuple(self.exchanges)

    @property
    def scheduled(self) -> bool:
        """True if Prophet's hook can order the engine's transfers, so that all policies run on it."""
        return self.hook is not None

    def has_role(self, node: str) -> bool:
        """Return True if the engine runs a process on `node` of a cluster."""
        return is_worker(node) or role_of(node) in self.programs

    def variant(self, name: str) -> Variant | None:
        """Return the variant of this name, or None."""
        return next((variant for variant in self.variants if variant.name == name), None)

    @property
    def stock(self) -> str:
        """Name of the variant with which the others are compared: the engine as its users run it."""
        return self.variants[0].name

    def called_here(self, base: str) -> str:
        """Return the name of this engine's variant for `base`, a policy or stock; `base` itself if there is none."""
        if self.scheduled:
            return base
        if base == STOCK:
            return self.stock
        return next((variant.name for variant in self.variants if variant.policy == base), base)
