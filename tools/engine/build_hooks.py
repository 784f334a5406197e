"""What BytePS's setup.py asks of its builder; copied beside it as `pre_setup_local.py`, the name it looks for.

It runs inside BytePS's own build, so it imports nothing of Prophet.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from distutils.ccompiler import CCompiler
from typing import Any

ucx_path = ""
_compile_in_turn = CCompiler.compile


def setup() -> None:
    """Called before anything is compiled: from here on, the sources of one library are compiled in parallel."""
    setattr(CCompiler, "compile", _compile_in_parallel)  # noqa: B010 - a plain assignment to a method fails type checks


def extra_make_option() -> str:
    """Appended to the `make` command line for ps-lite: the library alone, without its test programs."""
    return "ps"


def _compile_in_parallel(self: CCompiler, sources: list[str], *args: Any, **kwargs: Any) -> list[str]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        parts = pool.map(lambda source: _compile_in_turn(self, [source], *args, **kwargs), sources)
        return [object_file for part in parts for object_file in part]
