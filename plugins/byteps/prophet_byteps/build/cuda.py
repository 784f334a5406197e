"""CUDA in Python's environment, for a CUDA build: a torch with CUDA, and the wheels with CUDA's runtime and NCCL.

Nothing here needs a GPU or its driver. BytePS is built against what torch runs with: the runtime and the NCCL that pip
installed with it, plus the headers that only a compiler needs.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import os
import runpy
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from prophet_scheduler.core.errors import UserError

from . import toolchain as tools
from .toolchain import Toolchain


@dataclass(frozen=True)
class Cuda:
    """A CUDA to build against."""

    version: str
    """Version that torch was built for, such as 13.0."""
    wheels: tuple[str, ...]
    """Names and versions of the wheels that have its files."""
    includes: tuple[Path, ...]
    """Folders of headers."""
    libraries: tuple[tuple[str, Path], ...]
    """Shared libraries to link: what the linker calls each, and where it is."""

    @property
    def described(self) -> str:
        """All that shapes the wheel, as text."""
        return f"CUDA {self.version} ({', '.join(self.wheels)})"

    def lay_out(self, home: Path) -> dict[str, str]:
        """Make `home` look like an installation of CUDA and NCCL. Returns the environment for BytePS's setup.py.

        The wheels have their headers in several folders, and libraries without the names that the linker asks for.
        """
        (home / "include").mkdir(parents=True)
        (home / "lib").mkdir()
        for entry in (entry for folder in self.includes for entry in folder.iterdir()):
            link = home / "include" / entry.name
            if not link.is_symlink():
                link.symlink_to(entry)
        for name, library in self.libraries:
            (home / "lib" / name).symlink_to(library)
        return {"BYTEPS_NCCL_HOME": str(home), "BYTEPS_NCCL_LINK": "SHARED", "CUDA_HOME": str(home)}


class _Wheel(NamedTuple):
    """A wheel of NVIDIA's: its name, the requirement for pip, and the files needed from it, the header as it is
    included, each library as the linker asks for it and as the wheel has it.
    """

    name: str
    wanted: str
    header: str
    libraries: tuple[tuple[str, str], ...] = ()


def _wheels(version: str) -> tuple[_Wheel, ...]:
    """Return the wheels for a CUDA. Until CUDA 12 all their names end in the version's first number."""
    major = version.partition(".")[0]
    suffix = f"-cu{major}" if int(major) <= 12 else ""
    compiler = "nvidia-cuda-nvcc" if suffix else "nvidia-cuda-crt"  # the wheel with the headers in crt/

    def of_cuda(name: str, header: str, *libraries: tuple[str, str]) -> _Wheel:
        return _Wheel(f"{name}{suffix}", f"{name}{suffix}=={version}.*", header, libraries)

    nccl = f"nvidia-nccl-cu{major}"
    return (
        of_cuda("nvidia-cuda-runtime", "cuda_runtime.h", ("libcudart.so", f"libcudart.so.{major}")),
        of_cuda(compiler, "crt/host_config.h"),
        of_cuda("nvidia-cuda-cccl", "nv/target"),
        _Wheel(nccl, nccl, "nccl.h", (("libnccl.so", "libnccl.so.2"),)),
    )


def with_cuda(toolchain: Toolchain, expected: str | None = None) -> Toolchain:
    """Return the same tools for a CUDA build, which is of PyTorch's part alone. `expected` is the CUDA torch must have.

    Raises UserError, in one line, with what is missing and how to install it.
    """
    if toolchain.torch is None:
        raise UserError("engine: a CUDA build of BytePS is of its PyTorch part, which needs torch: pip install torch")
    version = torch_cuda()
    if version is None:
        raise UserError(
            f"engine: torch {toolchain.torch} was built without CUDA, which a CUDA build of BytePS needs:"
            " pip install --force-reinstall torch"
        )
    if expected is not None and not f"{version}.".startswith(f"{expected}."):
        raise UserError(
            f"engine: --cuda-version is {expected}, but this torch was built for CUDA {version}; install a torch for"
            f" CUDA {expected}, or leave the option out"
        )
    cuda = find_cuda(version)
    tools.install_missing(missing_packages)
    return dataclasses.replace(toolchain, mxnet=None, cuda=cuda)


def torch_cuda() -> str | None:
    """The CUDA that the installed torch was built for; None without CUDA or torch. Torch is not imported."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        return None
    cuda = runpy.run_path(str(Path(torch.origin).with_name("version.py"))).get("cuda")
    return None if cuda is None else str(cuda)


def find_cuda(version: str) -> Cuda:
    """Return the wheels of this CUDA and of NCCL. Raises UserError that names those to install."""
    found: list[tuple[str, Path, list[tuple[str, Path]]]] = []
    lacking: list[str] = []
    for wheel in _wheels(version):
        files = _files(wheel.name)
        folder = _include_folder(files, wheel.header)
        linked = [(name, file) for name, needed in wheel.libraries for file in files if file.name == needed]
        if folder is None or len(linked) < len(wheel.libraries):
            lacking.append(wheel.wanted)
        else:
            found.append((f"{wheel.name} {metadata.version(wheel.name)}", folder, linked))
    if lacking:
        raise UserError(
            f"engine: to build BytePS for CUDA {version} this Python lacks {', '.join(lacking)}:"
            f" pip install {' '.join(repr(name) if '*' in name else name for name in lacking)}"
        )
    described, includes, libraries = zip(*found, strict=True)
    return Cuda(version, described, tuple(dict.fromkeys(includes)), tuple(itertools.chain(*libraries)))


def missing_packages() -> list[str]:
    """Return the names (Debian's) of missing system packages that only a CUDA build needs.

    Several GPUs behind several PCIe switches are bound to the memory beside them, so it has the real libnuma.
    """
    return [] if tools.has_header("numa.h") and tools.find_library("libnuma.so") else ["libnuma-dev"]


def _files(distribution: str) -> list[Path]:
    """Return all files of an installed wheel; none if it is not installed."""
    try:
        files = metadata.files(distribution)
    except metadata.PackageNotFoundError:
        return []
    return [Path(os.path.normpath(file.locate())) for file in files or ()]


def _include_folder(files: list[Path], header: str) -> Path | None:
    """Return the folder to search for `header` in, among the files of a wheel."""
    ends = Path(header).parts
    same = (file for file in files if file.parts[-len(ends) :] == ends and "include" in file.parts and file.is_file())
    folders = [file.parents[len(ends) - 1] for file in same]
    return min(folders, key=lambda folder: len(folder.parts), default=None)
