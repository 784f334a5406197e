"""Frames that Python passes over when it looks for the line that a warning is about.

Rule of this file: the name of its folder. Python passes over frames of its own importlib, and knows them by two parts
of the file's name, "importlib" and "_bootstrap". A name that leads through this folder has both, and it still names the
true file, so that a traceback shows its lines.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
_HERE = Path(__file__).resolve().parent


def passed_over(function: F) -> F:
    """Give torch's warnings the program's line, for a function between the program and torch."""
    code: Any = function.__code__
    way = os.path.relpath(Path(code.co_filename).resolve(), _HERE)
    function.__code__ = code.replace(co_filename=f"{_HERE}/{way}")
    return function
