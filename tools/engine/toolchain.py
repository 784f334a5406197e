"""What the build needs of the machine: finding it, naming what is missing, installing it where that is allowed.

Everything here is read from the tools themselves (the compiler's search paths, the interpreter's build settings), so an
unusual prefix works wherever the compiler can find it.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from prophet.errors import UserError

_ZMQ_PROBE = "#include <zmq.h>\nPROPHET ZMQ_VERSION_MAJOR ZMQ_VERSION_MINOR ZMQ_VERSION_PATCH\n"

# Instruction set of every x86 server since about 2015; BytePS's reducer has faster code where it may use AVX and F16C.
_X86_64_V3 = frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "abm"})

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@dataclass(frozen=True)
class Toolchain:
    """The parts of the machine that shape the built wheel."""

    compiler: str
    """First line of `g++ --version`."""
    machine_flags: str
    """Compiler flags that choose the instruction set."""
    zmq_header: Path
    zmq_library: Path
    zmq_version: str
    torch: str


def find_toolchain() -> Toolchain:
    """Look for everything the build needs. Raises UserError naming all that is missing and how to install it."""
    missing = missing_packages()
    if missing and _may_install():
        _install_packages(missing)
        missing = missing_packages()
    if missing:
        raise UserError(
            f"engine: the build needs {', '.join(missing)}; install them (on Debian or Ubuntu:"
            f" apt-get install {' '.join(missing)})"
        )
    header, version = _zmq_header()
    return Toolchain(
        compiler=_output(["g++", "--version"]).splitlines()[0],
        machine_flags=machine_flags(platform.machine(), _cpu_flags()),
        zmq_header=header,
        zmq_library=_zmq_library(),
        zmq_version=version,
        torch=_python_package("torch"),
    )


def missing_packages() -> list[str]:
    """Debian's names of the system packages that the build needs and cannot find."""
    missing = [program for program in ("g++", "make") if shutil.which(program) is None]
    if not Path(sysconfig.get_paths()["include"], "Python.h").is_file():
        missing.append("python3-dev")
    if "g++" in missing or not _has_zmq():
        missing.append("libzmq3-dev")
    return missing


def machine_flags(machine: str, cpu_flags: Iterable[str]) -> str:
    """Flags for the newest instruction set that is common to many machines and that this one has."""
    return "-march=x86-64-v3" if machine == "x86_64" and _X86_64_V3.issubset(cpu_flags) else ""
