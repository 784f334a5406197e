"""Functions between a program and an engine's module: around the import of the module, or in place of its functions.

Rule of this file: the name of its folder. When Python attributes a warning to a line, it skips frames of its own
importlib, which it recognizes by two parts of the file name, "importlib" and "_bootstrap". A path through this folder
has both, and still leads to the real file, so that tracebacks show its lines.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

Execute: TypeAlias = Callable[[ModuleType], None]
Run: TypeAlias = Callable[[ModuleType, Execute], None]
F = TypeVar("F", bound=Callable[..., Any])
_HERE = Path(__file__).resolve().parent


def passed_over(function: F) -> F:
    """Make torch's warnings skip `function`, which stands between program and torch, to show the program's line."""
    code: Any = function.__code__
    way = os.path.relpath(Path(code.co_filename).resolve(), _HERE)
    function.__code__ = code.replace(co_filename=f"{_HERE}/{way}")
    return function


class _Around(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finder and loader of one Python module, wrapped around Python's own."""

    def __init__(self, name: str, run: Run) -> None:
        self._name = name
        self._run = run

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target) if fullname == self._name else None
        if spec is not None and spec.loader is not None:
            self._inner, spec.loader = spec.loader, self
        return spec

    def exec_module(self, module: ModuleType) -> None:
        self._run(module, self._inner.exec_module)


def around_import(name: str, run: Run) -> None:
    """Have `run(module, execute)` execute the module of this name when it is imported; do nothing until then."""
    sys.meta_path.insert(0, _Around(name, run))
