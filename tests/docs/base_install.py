"""Runs the `prophet` command as after `pip install .` in an empty environment: what the extras bring cannot be seen.

Usage: python -P base_install.py ARGUMENT...
       python -P base_install.py --in-sight MODULE...   prints those of them that can be found

What is hidden is all that the base's requirements do not ask for, by the
packages' own metadata, so there is no list to keep.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

DISTRIBUTION = "prophet-scheduler"


def normalized(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def base_distributions() -> set[str]:
    """Prophet's distribution and all that it requires without an extra, by normalized name."""
    known: set[str] = set()
    waiting = [DISTRIBUTION]
    while waiting:
        name = normalized(waiting.pop())
        if name in known:
            continue
        try:
            required = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # for another platform or Python
        known.add(name)
        waiting += [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in required if "extra ==" not in line]
    return known


def hidden_modules() -> frozenset[str]:
    """Names of the installed top-level modules that the base does not bring."""
    base = base_distributions()
    owners = importlib.metadata.packages_distributions()
    return frozenset(module for module, names in owners.items() if not base & {normalized(name) for name in names})


class Without:
    """A finder of modules and distributions that finds none outside of the base, in front of one that would."""

    def __init__(self, finder: Any, hidden: frozenset[str], base: set[str]) -> None:
        self._finder, self._hidden, self._base = finder, hidden, base

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] in self._hidden:
            return None
        spec: ModuleSpec | None = self._finder.find_spec(name, path, target)
        return spec

    def find_distributions(self, *of: Any) -> Iterator[importlib.metadata.Distribution]:
        if hasattr(self._finder, "find_distributions"):
            found = self._finder.find_distributions(*of)
            yield from (distribution for distribution in found if normalized(distribution.name) in self._base)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)


def hide() -> None:
    """Hide them for the rest of this process."""
    hidden, base = hidden_modules(), base_distributions()
    sys.meta_path[:] = [Without(finder, hidden, base) for finder in sys.meta_path]


if __name__ == "__main__":
    hide()
    if sys.argv[1:2] == ["--in-sight"]:
        print([name for name in sys.argv[2:] if importlib.util.find_spec(name)])
    else:
        from prophet_scheduler.cli.main import main

        main()
