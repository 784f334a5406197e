"""Hooks that BytePS's setup.py calls; copied beside it as `pre_setup_local.py`, the name it looks for.

It runs inside BytePS's own build, so it imports nothing of Prophet.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from distutils.ccompiler import CCompiler
from pathlib import Path
from typing import Any

_PS_LITE = Path("3rdparty", "ps-lite")
_ABI_FLAG = "-D_GLIBCXX_USE_CXX11_ABI="
_MXNET_STRINGS = {
    0: b"\0_ZN4nnvm2Op3GetERKSs\0",
    1: b"\0_ZN4nnvm2Op3GetERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE\0",
}
"""Names of `nnvm::Op::Get(std::string const&)` in libmxnet, by the C++ ABI of its strings."""

ucx_path = ""
_compile_in_turn = CCompiler.compile


def setup() -> None:
    """Called before anything is compiled: from here on, the sources of one library are compiled in parallel."""
    setattr(CCompiler, "compile", _compile_in_parallel)  # noqa: B010 - a plain assignment to a method fails type checks


def extra_make_option() -> str:
    """Appended to the `make` command line for ps-lite: the library alone, without its test programs."""
    return "ps"


def options_for_mxnet(options: dict[str, Any], libraries: list[str]) -> dict[str, Any]:
    """The options BytePS compiles its parts with, made to fit libmxnet: the ABI of its strings, also in ps-lite.

    MXNet and PyTorch were built with different ones, and BytePS's setup.py knows one for all of its parts.
    """
    abi = _string_abi(Path(libraries[0]).read_bytes())
    ps_lite = _PS_LITE.with_name("ps-lite-for-mxnet")
    shutil.copytree(_PS_LITE, ps_lite, symlinks=True, ignore=shutil.ignore_patterns("build"))
    command = ["make", f"-j{os.cpu_count()}", f"ADD_CFLAGS={_ABI_FLAG}{abi}", extra_make_option()]
    subprocess.run(command, cwd=ps_lite, check=True)
    flags = [flag for flag in options["COMPILE_FLAGS"] if not flag.startswith(_ABI_FLAG)]
    objects = [path.replace(f"{_PS_LITE}/build", f"{ps_lite}/build") for path in options["EXTRA_OBJECTS"]]
    return {**options, "COMPILE_FLAGS": [*flags, f"{_ABI_FLAG}{abi}"], "EXTRA_OBJECTS": objects}


def _string_abi(libmxnet: bytes) -> int:
    """0 for the old std::string, 1 for the new one, by the names that the library exports."""
    for abi, name in _MXNET_STRINGS.items():
        if name in libmxnet:
            return abi
    raise ValueError("libmxnet was built with an unknown C++ ABI")


def _compile_in_parallel(self: CCompiler, sources: list[str], *args: Any, **kwargs: Any) -> list[str]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        parts = pool.map(lambda source: _compile_in_turn(self, [source], *args, **kwargs), sources)
        return [object_file for part in parts for object_file in part]
