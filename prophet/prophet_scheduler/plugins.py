"""Plugins, which are found by name: policies, engines, commands, agents and front ends.

Rule of this file: finding and loading plugins, and the message for one that is not installed. Each is an entry point of
a distribution, even those of the core (setup.py), so anyone can add plugins in a distribution of their own. Only the
requested plugin is imported.
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from types import MappingProxyType
from typing import Any

POLICIES = "prophet.policies"
"""Entry points from the name of a policy to its file's dict, which has a Definition for each name (policies)."""
ENGINES = "prophet.engines"
"""Entry points from the name of an engine to its EngineSpec (engines/spec.py)."""
COMMANDS = "prophet.commands"
"""Entry points from a command of `prophet` to its function for typer."""
AGENTS = "prophet.byteps_agents"
"""Entry points from a value of BYTEPS_SCHEDULER that is no policy to the class that replaces prophet_byteps's Agent."""
FRONT_ENDS = "prophet.byteps_front_ends"
"""Entry points from a framework of BytePS to the function that takes over its module."""
EXCHANGES = "prophet.byteps_exchanges"
"""Entry points from a framework of BytePS, except PyTorch, to the class that sends pages through its module."""

EXTRAS = {
    "mlfabric": ("mlfabric", "byteps_async", "async-stock", "async-mlfabric", "coordinate"),
    "mxnet": ("mxnet", "kvstore", "mxnet-kvstore", "mxnet-p3"),
    "papers": (
        *("caramel", "caramel-no-holding", "caramel-no-scheduling", "caramel-no-batching-no-scheduling"),
        *("horovod", "mg-wfbp", "mg-wfbp-exact", "pace", "pace-best", "tictac", "tictac-tio"),
    ),
}
"""Names of the plugins in each extra of setup.py. An extra's distribution is in the folder plugins/EXTRA."""


@functools.cache
def entries(group: str) -> Mapping[str, EntryPoint]:
    """Return the entry points of a group by name, in alphabetical order."""
    found = importlib.metadata.entry_points(group=group)
    return MappingProxyType({name: found[name] for name in sorted(found.names)})


def load(group: str, name: str) -> Any:
    """Import and return the plugin of this name; None if there is none."""
    entry = entries(group).get(name)
    return None if entry is None else entry.load()


def absent(name: str) -> str:
    """Return what to install for a missing plugin; empty if no extra has it.

    A variant of an engine may be named after its policy: `ddp-pace` needs the same extra as `pace`.
    """
    engine, _, policy = name.partition("-")
    wanted = {name, policy} if engine in entries(ENGINES) else {name}
    for extra, names in EXTRAS.items():
        if not wanted.isdisjoint(names) and not _installed(f"prophet-{extra}"):
            return f"{name} comes with the extra {extra}: `pip install ./plugins/{extra}` in Prophet's checkout"
    return ""


def _installed(distribution: str) -> bool:
    try:
        importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
