"""The policies by name, with their options and constructors.

Rule of this file: the two types with which a policy's file declares itself, the parsing of options, and the check for
unknown variables. A policy is found through the entry point of its name (plugins.py). A training process imports only
the file of its own policy; listing the policies imports all. docs/adding-a-policy.md explains how to add one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from prophet_scheduler import plugins
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.settings import DEFAULT_PARTITION_BYTES, HANDED_ON, NAMES, PREFIX, SCHEDULER, number

if TYPE_CHECKING:
    from prophet_scheduler.core.graph import Graph
    from prophet_scheduler.core.policy import Policy

_OPTION = "option"
NEARLY = 0.9
"""Share of matching letters that makes a name a misspelling; BytePS's own variables have less."""


@dataclass(frozen=True)
class Option:
    """Option of one policy. Its environment `variable` and its key in a config follow from its name.

    `unit`: "bytes", "s" or another; a config gives bytes as sizes (4MB). `least`: the smallest number allowed.
    """

    name: str
    default: int | float | bool
    help: str
    unit: str = ""
    least: float = 0

    @property
    def variable(self) -> str:
        return f"{PREFIX}{self.name.upper()}"

    def parse(self, text: str, where: str) -> int | float | bool:
        """Return the value of `text`. Raises UserError that names its source `where`."""
        if isinstance(self.default, bool):
            if text not in ("0", "1"):
                raise UserError(f"{where} is {text!r}; it must be 0 or 1")
            return text == "1"
        value = number(text, where, self.least)
        return int(value) if isinstance(self.default, int) else value


class Blocks(Enum):
    """Cut of gradients under a policy, unless PROPHET_PARTITION_BYTES is set (core/cut.py)."""

    ONE_SIZE = "one size"
    """Blocks of DEFAULT_PARTITION_BYTES, small gradients together."""
    WHOLE = "whole"
    """Each gradient by itself, in parts of MOST_BLOCK_BYTES if larger."""
    ADAPTIVE = "adaptive"
    """Blocks chosen by the policy's plans (Plan.cut)."""


@dataclass(frozen=True)
class NoOptions:
    """Options of a policy that has none."""


@dataclass(frozen=True)
class Definition:
    """Definition of one policy, in the policy's file.

    `summary`: a phrase for tables and help. `build`: makes the policy from an instance of `options` (a dataclass whose
    fields are made by `option`) and the job's partition size in bytes. `page`: the policy's page in docs/. `blocks`:
    how it cuts gradients. A `traced` policy plans with forward times. In a job that waits for its network, only a trace
    of operations shows these: a PyTorch job traces its first iterations, and a simulation provides a trace
    (simulate/grouped.py). `of_graph`: makes the policy from options and the graph of the job's model, as traced in the
    job (Pattern.RECEIVE of models, with transfers in the order of the profile's ids).

    Only engines of collectives read the rest. `groups`: its plans have groups, each sent as one collective. `waits`:
    step() waits for all averages, as in the system of the same name; a parameter server has no such barrier.
    `servers_only`: the reason why it does not run on collectives; empty if it does.
    """

    summary: str
    build: Callable[[Any, int], Policy]
    options: type[Any] = NoOptions
    page: str = ""
    blocks: Blocks = Blocks.ONE_SIZE
    traced: bool = False
    of_graph: Callable[[Any, Graph], Policy] | None = None
    groups: bool = False
    waits: bool = False
    servers_only: str = ""

    @property
    def all_options(self) -> tuple[Option, ...]:
        return tuple(Option(field.name, **field.metadata[_OPTION]) for field in dataclasses.fields(self.options))


def option(default: int | float | bool, help: str, *, unit: str = "", least: float = 0) -> Any:
    """Return a field for a policy's dataclass of options; see Option."""
    said = {"default": default, "help": help, "unit": unit, "least": least}
    return dataclasses.field(default=default, metadata={_OPTION: said})


def get_definition(name: str, variable: str = "") -> Definition:
    """Return the definition of the policy called `name`, importing only its own file.

    Raises UserError that lists the known names; it begins with `variable`, where `name` was set.
    """
    definitions: Mapping[str, Definition] | None = plugins.load(plugins.POLICIES, name)
    if definitions is not None:
        return definitions[name]
    at = f"{variable}: " if variable else ""
    known = policy_names()
    meant = f"{did_you_mean(name, known)}known policies are {', '.join(known)}"
    unknown = plugins.absent(name) or f"unknown policy {name!r}; {meant}"
    raise UserError(f"{at}{unknown}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question that suggests the known name closest to `name`; empty if none is close."""
    import difflib

    near = difflib.get_close_matches(name, list(known), 1, cutoff=0.7)
    return f"did you mean {near[0]}? " if near else ""


def get_policy(name: str, partition_bytes: int = DEFAULT_PARTITION_BYTES, **options: int | float | bool) -> Policy:
    """Return the policy called `name`, with these `options`. Raises UserError that lists the known policies."""
    definition = get_definition(name)
    return definition.build(definition.options(**options), partition_bytes)


def policy_from_environ(
    name: str,
    environ: Mapping[str, str],
    partition_bytes: int = DEFAULT_PARTITION_BYTES,
    graph: Graph | None = None,
) -> Policy:
    """Return the policy called `name`, with the options in `environ`. Raises UserError that names an invalid option.

    `graph`: the job's graph, if known; used if the policy takes one (Definition.of_graph).
    """
    definition = get_definition(name)
    values = {
        entry.name: entry.parse(environ[entry.variable], entry.variable)
        for entry in definition.all_options
        if entry.variable in environ
    }
    if graph is not None and definition.of_graph is not None:
        return definition.of_graph(definition.options(**values), graph)
    return get_policy(name, partition_bytes, **values)


def unknown_variables(names: Iterable[str]) -> dict[str, str]:
    """Return the unknown variables with Prophet's prefix among `names`, and misspellings of BYTEPS_SCHEDULER, each with
    the most similar known variable ("" if none is similar).

    The options of all policies count as known. All policies are imported only in case of doubt.
    """
    others = sorted(name for name in names if name not in NAMES and name != SCHEDULER)
    doubtful = [name for name in others if name.startswith(PREFIX)]
    misspelt = [name for name in others if name[:1] == SCHEDULER[0] and abs(len(name) - len(SCHEDULER)) <= 2]
    if not doubtful and not misspelt:
        return {}
    import difflib

    unknown = {name: SCHEDULER for name in misspelt if difflib.get_close_matches(name, [SCHEDULER], cutoff=NEARLY)}
    if not doubtful:
        return unknown
    options = {entry.variable for definition in all_definitions().values() for entry in definition.all_options}
    # A common prefix does not make names similar.
    known = [name.removeprefix(PREFIX) for name in sorted((NAMES - HANDED_ON) | options)]
    for name in doubtful:
        if name not in options:
            near = difflib.get_close_matches(name.removeprefix(PREFIX), known, 1)
            unknown[name] = PREFIX + near[0] if near else ""
    return unknown


def all_definitions() -> dict[str, Definition]:
    """Return every policy by name, in alphabetical order. Imports all of them."""
    return {name: get_definition(name) for name in policy_names()}


def policy_names() -> list[str]:
    """Return the names of all installed policies, in alphabetical order."""
    return list(plugins.entries(plugins.POLICIES))


def collective_policies() -> list[str]:
    """Return the names of policies that engines of collectives can run, in alphabetical order. Imports all policies."""
    return [name for name, definition in all_definitions().items() if not definition.servers_only]
