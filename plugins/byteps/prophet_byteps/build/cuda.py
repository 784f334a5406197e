"""CUDA in Python's environment, for a CUDA build: a torch with CUDA, and the wheels with CUDA's runtime and NCCL.

Nothing here needs a GPU or its driver. BytePS is built against the runtime and the NCCL that pip installed with torch,
plus headers that only a compiler needs.
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
    """CUDA version for which torch was built, such as 13.0."""
    wheels: tuple[str, ...]
    """Names and versions of the wheels that contain its files."""
    includes: tuple[Path, ...]
    """Folders of headers."""
    libraries: tuple[tuple[str, Path], ...]
    """Shared libraries to link: (file name that the linker asks for, path)."""

    def lay_out(self, home: Path) -> dict[str, str]:
        """Make `home` look like an installation of CUDA and NCCL. Returns the environment for BytePS's setup.py.

        The wheels have headers in several folders, and their libraries lack the names that the linker asks for.
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
    """A wheel from NVIDIA: its name, its requirement for pip, and the files needed from it: the header as it is
    included, and each library's name for the linker and its name in the wheel.
    """

    name: str
    wanted: str
    header: str
    libraries: tuple[tuple[str, str], ...] = ()


def _wheels(version: str) -> tuple[_Wheel, ...]:
    """Return the wheels for a CUDA version. Up to CUDA 12, all their names end in the major version."""
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


def with_cuda(toolchain: Toolchain) -> Toolchain:
    """Return the same tools for a CUDA build, which has only PyTorch's part.

    Raises UserError, with one line that says what is missing and how to install it.
    """
    if toolchain.torch is None:
        raise UserError("engine: a CUDA build of BytePS has only its PyTorch part and needs torch: pip install torch")
    version = torch_cuda()
    if version is None:
        raise UserError(
            f"engine: torch {toolchain.torch} was built without CUDA, which a CUDA build of BytePS needs:"
            " pip install --force-reinstall torch"
        )
    cuda = find_cuda(version)
    tools.install_missing(missing_packages)
    return dataclasses.replace(toolchain, mxnet=None, cuda=cuda)


def torch_cuda() -> str | None:
    """Return the CUDA version of the installed torch, without importing it; None without CUDA or torch."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        return None
    cuda = runpy.run_path(str(Path(torch.origin).with_name("version.py"))).get("cuda")
    return None if cuda is None else str(cuda)


def find_cuda(version: str) -> Cuda:
    """Find the wheels of this CUDA and of NCCL. Raises UserError that names those to install."""
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
    """Return the Debian names of missing system packages that only a CUDA build needs.

    It needs the real libnuma, since BytePS binds GPUs behind several PCIe switches to the memory near them.
    """
    return [] if tools.has_header("numa.h") and tools.find_library("libnuma.so") else ["libnuma-dev"]


def _files(distribution: str) -> list[Path]:
    """Return all files of an installed wheel; an empty list if it is not installed."""
    try:
        files = metadata.files(distribution)
    except metadata.PackageNotFoundError:
        return []
    return [Path(os.path.normpath(file.locate())) for file in files or ()]


def _include_folder(files: list[Path], header: str) -> Path | None:
    """Return the folder in a wheel from which `header` is included; None if the wheel lacks it."""
    ends = Path(header).parts
    same = (file for file in files if file.parts[-len(ends) :] == ends and "include" in file.parts and file.is_file())
    folders = [file.parents[len(ends) - 1] for file in same]
    return min(folders, key=lambda folder: len(folder.parts), default=None)
