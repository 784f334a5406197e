"""Functions between a program and an engine's module: around the import of the module, or in place of its functions.

Rule of this file: the name of its folder. When Python looks for the line that a warning is about, it passes over frames
of its own importlib, and knows them by two parts of the file's name, "importlib" and "_bootstrap". A name that leads
through this folder has both, and it still names the true file, so that a traceback shows its lines.
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
    """Give torch's warnings the program's line, for a function between the program and torch."""
    code: Any = function.__code__
    way = os.path.relpath(Path(code.co_filename).resolve(), _HERE)
    function.__code__ = code.replace(co_filename=f"{_HERE}/{way}")
    return function


class _Around(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finder and loader of one module in Python's source, around those that Python has for it."""

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
    """Have `run(module, execute)` execute the module of this name when it is imported. Nothing happens until then."""
    sys.meta_path.insert(0, _Around(name, run))
