"""Tools that the build needs: find them, name those that are missing, and install them where that is allowed.

All answers come from the tools themselves (the compiler's search paths, the interpreter's build settings). So an
unusual prefix works if the compiler can find it.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prophet_scheduler.core.errors import UserError

from ..library import version_of

if TYPE_CHECKING:
    from .cuda import Cuda

# x86-64-v3 of the x86-64 psABI (section 3.1.1), as /proc/cpuinfo spells it: every server since about 2015.
_X86_64_V3 = frozenset({"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"})

_ZMQ_PROBE = "#include <zmq.h>\nprophet_zmq_version ZMQ_VERSION_MAJOR ZMQ_VERSION_MINOR ZMQ_VERSION_PATCH\n"


@dataclass(frozen=True)
class ZeroMQ:
    """The libzmq that the compiler finds."""

    header: Path
    library: Path
    version: str


@dataclass(frozen=True)
class Toolchain:
    """The parts of the machine that shape the wheel, except the interpreter."""

    compiler: str
    """First line of `g++ --version`."""
    machine_flags: str
    """Compiler flags that choose the instruction set; may be empty."""
    zmq: ZeroMQ
    torch: str | None
    """Version of the installed torch; None if there is none."""
    mxnet: str | None
    """Version of the installed MXNet; None if there is none."""
    cuda: Cuda | None = None
    """CUDA to build against; None for a CPU build."""


def find_toolchain() -> Toolchain:
    """Find everything that the build needs. As root on Debian, first install missing system packages.

    Raises UserError, with one line that names everything missing and how to install it.
    """
    torch, mxnet = _framework_versions()
    install_missing(missing_packages)
    zmq = find_zmq()
    assert zmq is not None
    return Toolchain(
        compiler=_output("g++", "--version").splitlines()[0],
        machine_flags=machine_flags(platform.machine(), _cpu_flags()),
        zmq=zmq,
        torch=torch,
        mxnet=mxnet,
    )


def install_missing(find: Callable[[], list[str]]) -> None:
    """Install the system packages that `find` names, if this is root on Debian.

    Raises UserError, with one line that names those still missing and how to install them.
    """
    missing = find()
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        print(f"engine: installing {', '.join(missing)} with apt-get", file=sys.stderr, flush=True)
        _install_with_apt(missing)
        missing = find()
    if missing:
        raise UserError(
            f"engine: to build BytePS this machine lacks {', '.join(missing)}; as root on Debian or Ubuntu:"
            f" apt-get install {' '.join(missing)}"
        )


def missing_packages() -> list[str]:
    """Return the Debian names of missing system packages that the build needs."""
    missing = [program for program in ("g++", "make") if shutil.which(program) is None]
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        missing.append("python3-dev")
    if find_zmq() is None:
        missing.append("libzmq3-dev")
    return missing


def find_zmq() -> ZeroMQ | None:
    """Find libzmq's header and shared library by asking the compiler; None if it does not find both."""
    if shutil.which("g++") is None:
        return None
    probe = _preprocess(_ZMQ_PROBE)
    library = find_library("libzmq.so")
    if probe.returncode != 0 or library is None:
        return None
    # The preprocessor may put a line marker before a macro from a system header.
    header = re.search(r'^# 1 "(.*/zmq\.h)"', probe.stdout, re.MULTILINE)
    version = re.search(r"^prophet_zmq_version\s+(?:#.*\s+)?(\d+) (\d+) (\d+)", probe.stdout, re.MULTILINE)
    if header is None or version is None:
        return None
    return ZeroMQ(Path(header[1]), library.resolve(), ".".join(version.groups()))


def find_library(name: str) -> Path | None:
    """Return the path where the compiler finds a library with this file name; None if it finds none."""
    # For a file that it does not find, g++ prints the bare name.
    library = Path(_output("g++", f"-print-file-name={name}").strip())
    return library if library.is_absolute() else None


def has_header(name: str) -> bool:
    """Return True if the compiler finds a header."""
    return _preprocess(f"#include <{name}>\n").returncode == 0


def machine_flags(machine: str, cpu_flags: Iterable[str]) -> str:
    """Return compiler flags for the newest instruction set that many machines share with this one.

    BytePS asks for `-march=native`, which makes a wheel for one kind of processor only. Its CPU reducer has faster code
    for AVX and F16C, which x86-64-v3 includes.
    """
    return "-march=x86-64-v3" if machine == "x86_64" and _X86_64_V3.issubset(cpu_flags) else ""


def _preprocess(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["g++", "-E", "-x", "c++", "-"], input=text, capture_output=True, text=True)


def _cpu_flags() -> list[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return line.partition(":")[2].split()
    return []


def _framework_versions() -> tuple[str | None, str | None]:
    """Return the versions of the installed torch and MXNet. Raises UserError without both, or without a build tool."""
    versions = {package: version_of(package) for package in ("torch", "mxnet", "setuptools", "wheel")}
    lacking = [package for package in ("setuptools", "wheel") if versions[package] is None]
    if versions["torch"] is None and versions["mxnet"] is None:
        lacking.insert(0, "torch")
    if lacking:
        raise UserError(f"engine: the build needs {', '.join(lacking)} in this Python: pip install {' '.join(lacking)}")
    return versions["torch"], versions["mxnet"]


def _install_with_apt(packages: list[str]) -> None:
    """Install system packages. Raises UserError with the last line of apt-get's output if that fails."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", *packages]):
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode != 0 and "install" in command:
            words = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise UserError(f"engine: {' '.join(command)} failed: {words[-1] if words else 'no reason given'}")


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
