"""Parts of Prophet that are found by name: policies, engines, commands, agents and front ends.

Rule of this file: finding and loading them, and what to say of one that is not installed. Each is an entry point of a
distribution, core's own too (setup.py), so a part that somebody adds is a distribution of theirs. Nothing but the part
that is asked for is imported.
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from types import MappingProxyType
from typing import Any

POLICIES = "prophet.policies"
"""A policy's name: the dict of its file, which has a Definition for each name (policies)."""
ENGINES = "prophet.engines"
"""An engine's name: its EngineSpec (engines/spec.py)."""
COMMANDS = "prophet.commands"
"""A command of `prophet`: its function, as typer takes it."""
AGENTS = "prophet.byteps_agents"
"""A value of BYTEPS_SCHEDULER that is no policy: the class that prophet_byteps prepares in place of its own Agent."""
FRONT_ENDS = "prophet.byteps_front_ends"
"""A framework of BytePS: the function that takes over its module."""
EXCHANGES = "prophet.byteps_exchanges"
"""A framework of BytePS but PyTorch: the class that carries pages through its module."""

EXTRAS = {
    "mlfabric": ("mlfabric", "byteps_async", "async-stock", "async-mlfabric", "coordinate", "replicate"),
    "mxnet": ("mxnet", "kvstore", "mxnet-kvstore", "mxnet-p3"),
    "papers": (
        *("caramel", "caramel-no-holding", "caramel-no-scheduling", "caramel-no-batching-no-scheduling"),
        *("horovod", "mg-wfbp", "mg-wfbp-exact", "pace", "pace-best", "tictac", "tictac-tio"),
    ),
}
"""Names of the parts that come with each extra of setup.py; its distribution is in the folder of that name."""


@functools.cache
def entries(group: str) -> Mapping[str, EntryPoint]:
    """Return the group's entry points by name, in alphabetical order."""
    found = importlib.metadata.entry_points(group=group)
    return MappingProxyType({name: found[name] for name in sorted(found.names)})


def load(group: str, name: str) -> Any:
    """Import the part of this name; None where there is none."""
    entry = entries(group).get(name)
    return None if entry is None else entry.load()


def absent(name: str) -> str:
    """Return what to install for a part that is not here; empty where no extra has it.

    A variant of an engine may be called after its policy: `ddp-pace` takes what `pace` takes.
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
