"""The installed BytePS, and a check that the hook supports it.

Rule of this file: BytePS's shared objects, inspected without loading them. hook.py has the hook's shared object.
"""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

_NEW_STRING_ABI = b"_ZN6byteps6common18GetContextFromNameERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE\0"
_OLD_STRING_ABI = b"_ZN6byteps6common18GetContextFromNameERKSs\0"
_NEEDED: tuple[bytes, ...] = (
    b"_ZN6byteps6common20BytePSScheduledQueueC1ENS0_9QueueTypeE\0",
    b"_ZN6byteps6common20BytePSScheduledQueue7addTaskESt10shared_ptrINS0_16TensorTableEntryEE\0",
    b"_ZN6byteps6common20BytePSScheduledQueue7getTaskEv\0",
    b"_ZN6byteps6common20BytePSScheduledQueue12reportFinishEi\0",
    b"_ZN6byteps6common20BytePSScheduledQueue11pendingSizeEv\0",
    b"_ZN6byteps6common12BytePSGlobal17GetScheduledQueueENS0_9QueueTypeE\0",
    b"_ZN6byteps6common12BytePSGlobal11_push_tableE\0",
    b"_ZN6byteps6common11NcclManager12EnqueueGroupESt10shared_ptrINS0_14NcclGroupEntryEE\0",
    b"_ZN6byteps6common11NcclManager12DequeueGroupEv\0",
    b"_ZN6byteps6common10ReadyTable10IsKeyReadyEm\0",
)

_LOOP = re.compile(rb"_ZN6byteps6common\d+(\w+)LoopEv\0")
_LOOPS = frozenset(
    (
        b"CoordinateReduce CoordinateBroadcast CoordinatePush PcieReduce RootNccl NonRootNccl SyncNccl CopyDevice2Host"
        b" RootCopyHost2Device NonRootCopyListen NonRootCopyHost2Device Push Pull Compress Decompress"
    ).split()
)
"""BytePS has a thread for each kind of stage, and a function for each thread. So the functions' names tell which stages
exist, and thereby their numbers. Of all branches in BytePS's repository (2020 to 2022), those with these names, and no
others, have the task layout that the hook knows."""


class HookError(Exception):
    """The hook cannot act on this BytePS. The message says why, in one line."""


@dataclass(frozen=True)
class Library:
    """BytePS extension that the hook supports: its path, and the ABI of std::string."""

    path: Path
    old_string_abi: bool


def find_library(framework: str) -> Library:
    """Find the BytePS extension for `framework` ("torch", "mxnet") without importing it.

    Its version says nothing: every build of BytePS's source calls itself 0.2.5. Raises HookError if BytePS is absent,
    or the hook does not support its library.
    """
    folder = byteps_folder()
    if folder is None:
        raise HookError("no BytePS is installed in this Python")
    path = extension(folder / framework)
    if path is None:
        raise HookError(f"this BytePS was built without its {framework} part (no c_lib in {folder.name}/{framework})")
    return inspect_library(path)


def byteps_folder() -> Path | None:
    """Return the folder from which `byteps` would be imported; None if there is none."""
    spec = importlib.util.find_spec("byteps")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0])


def extension(folder: Path) -> Path | None:
    """Return the file that `import c_lib` would load in this folder of BytePS; None if there is none."""
    files = (folder / f"c_lib{suffix}" for suffix in importlib.machinery.EXTENSION_SUFFIXES)
    return next((file for file in files if file.is_file()), None)


def version_of(package: str) -> str | None:
    """Return the version of an installed package; None if it is not installed or has no version."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def inspect_library(path: Path) -> Library:
    """Check a BytePS extension by the names in it. Raises HookError that names the missing or unknown ones."""
    names = path.read_bytes()
    for symbol in _NEEDED:
        if symbol not in names:
            raise HookError(f"{path.name} has no {symbol[:-1].decode()}")
    old_strings = _OLD_STRING_ABI in names
    if not old_strings and _NEW_STRING_ABI not in names:
        raise HookError(f"{path.name} was built with an unknown C++ ABI")
    differing = {match[1] for match in _LOOP.finditer(names)} ^ _LOOPS
    if differing:
        others = ", ".join(sorted(name.decode() for name in differing))
        raise HookError(f"{path.name} has other stages than the BytePS that the hook knows ({others})")
    return Library(path, old_strings)
