"""Python's side of the native BytePS hook: which BytePS it can act on, loading it, and the calls into it.

Rule of this file: everything that touches the shared objects of BytePS and of the hook, through their names and through
ctypes. Nothing here decides; plugins/byteps/prophet_byteps/native/hook.cc says how the hook works.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import mmap
import os
import re
import struct
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from prophet.core import plan_codec
from prophet.core.events import EVENT_DTYPE, EVENT_VERSION, QueueKind
from prophet.core.plan import Plan
from prophet.core.plan_codec import encode_plan
from prophet.core.status import HookStatus, LaneStatus

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
        b" RootCopyHost2Device NonRootCopyListen NonRootCopyHost2Device Push Pull"
    ).split()
)
_COMPRESSION_LOOPS = frozenset((b"Compress", b"Decompress"))
"""BytePS has a function for each thread, and a thread for each kind of stage. So these names tell which stages there
are, and with them how they are numbered. Of all the lines of development in BytePS's repository (2019 to 2022) those
with these names, and no other, have the task layout that the hook knows."""

UNKNOWN_TRAINER = "in MXNet a BytePS without compression, as before 0.2.5, scales gradients in another way"
"""Why Prophet leaves such a job alone."""

_ELF64_LITTLE = b"\x7fELF\x02\x01"
_ELF_HEADER_BYTES = 64
_SECTION = struct.Struct("<4xIQ8xQQ24x")
"""One of an ELF file's sections: its type, its flags, where it begins and its bytes."""
_STRING_TABLE, _LOADED = 3, 2

_OLD_STRINGS, _WITHOUT_COMPRESSION = 1, 2
"""What prophet_hook_attach is told of the library."""
PUSH_ONLY, PULL_ONLY = -(1 << 30), -(1 << 30) - 1
"""Priorities of what is pushed and not pulled, or pulled and not pushed (hook.cc has the same)."""
_DRAIN_EVENTS = 1 << 16
"""Events taken at a time (24 bytes each)."""
POLL_S = 0.001
"""How often a front end asks for its transfers where no hook can wake it."""


class HookError(Exception):
    """The hook cannot act on this BytePS; the message says why, in one line."""


@dataclass(frozen=True)
class Library:
    """A BytePS extension that the hook knows: its path, which std::string it was built with, and whether it has the
    two stages of compression."""

    path: Path
    old_string_abi: bool
    compresses: bool = True


@dataclass(frozen=True)
class TakenPlan:
    """A plan that the hook has taken up: its number in the record of events, and its bytes."""

    number: int
    encoded: bytes


class _Layouts(ctypes.Structure):
    _fields_ = [
        ("event_version", ctypes.c_uint32),
        ("event_bytes", ctypes.c_uint32),
        ("plan_version", ctypes.c_uint32),
        ("most_in_flight", ctypes.c_uint32),
    ]


class _LaneStatus(ctypes.Structure):
    _fields_ = [
        ("waiting", ctypes.c_uint64),
        ("in_flight", ctypes.c_uint64),
        ("oldest_s", ctypes.c_double),
        ("oldest_gradient", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    ]

    def value(self) -> LaneStatus:
        known = self.oldest_s >= 0
        return LaneStatus(
            waiting=self.waiting,
            in_flight=self.in_flight,
            oldest_s=self.oldest_s if known else None,
            oldest_gradient=self.oldest_gradient if known else None,
        )


class _Status(ctypes.Structure):
    _fields_ = [
        ("tasks", ctypes.c_uint64),
        ("in_flight_bytes", ctypes.c_uint64),
        ("watchdog_releases", ctypes.c_uint64),
        ("events_dropped", ctypes.c_uint64),
        ("still_s", ctypes.c_double),
        ("lanes", _LaneStatus * 2),
        ("active", ctypes.c_int32),
        ("why_aside", ctypes.c_char * 160),
    ]


def find_library(framework: str) -> Library:
    """The BytePS extension of `framework` ("torch", "mxnet"), found without importing it.

    What it calls itself does not matter: whoever builds BytePS from its source gets a 0.2.5, whatever it is. Raises
    HookError where BytePS is absent, or its library is not one that the hook knows.
    """
    folder = byteps_folder()
    if folder is None:
        raise HookError("no BytePS is installed in this Python")
    path = extension(folder / framework)
    if path is None:
        raise HookError(f"this BytePS was built without its {framework} part (no c_lib in {folder.name}/{framework})")
    library = inspect_library(path)
    if framework == "mxnet" and not library.compresses:
        raise HookError(UNKNOWN_TRAINER)
    return library


def byteps_folder() -> Path | None:
    """Where the package `byteps` would be imported from; None where there is none."""
    spec = importlib.util.find_spec("byteps")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0])


def extension(folder: Path) -> Path | None:
    """The file that `import c_lib` would load in this folder of BytePS's, found without loading it."""
    files = (folder / f"c_lib{suffix}" for suffix in importlib.machinery.EXTENSION_SUFFIXES)
    return next((file for file in files if file.is_file()), None)


def version() -> str:
    """What the installed BytePS calls itself, for people; nothing depends on it."""
    try:
        return importlib.metadata.version("byteps")
    except importlib.metadata.PackageNotFoundError:
        return "without a version"


def inspect_library(path: Path) -> Library:
    """Checks a BytePS extension by the names it exports. Raises HookError naming what is unknown."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image:
        names = dynamic_names(image)
    for symbol in _NEEDED:
        if symbol not in names:
            raise HookError(f"{path.name} has no {symbol[:-1].decode()}")
    loops = {match[1] for match in _LOOP.finditer(names)}
    old_strings = _OLD_STRING_ABI in names
    if not old_strings and _NEW_STRING_ABI not in names:
        raise HookError(f"{path.name} was built with an unknown C++ ABI")
    compression = loops & _COMPRESSION_LOOPS
    differing = loops ^ (_LOOPS | compression)
    if len(compression) == 1:
        differing |= _COMPRESSION_LOOPS - compression
    if differing:
        others = ", ".join(sorted(name.decode() for name in differing))
        raise HookError(f"{path.name} has other stages than the BytePS that the hook knows ({others})")
    return Library(path, old_strings, compresses=bool(compression))


def dynamic_names(image: mmap.mmap) -> bytes:
    """The names that a shared object exports or asks for, each with a zero behind it; all of a file of another kind.

    A library of 30 MB has some 100 kB of them, and every worker looks for a dozen when it starts. They are the string
    table that is loaded with the code (System V ABI, "Sections": .dynstr has SHF_ALLOC, .strtab has not).
    """
    if image[:6] == _ELF64_LITTLE and len(image) >= _ELF_HEADER_BYTES:
        (table,) = struct.unpack_from("<Q", image, 0x28)
        entry_bytes, count = struct.unpack_from("<HH", image, 0x3A)
        if entry_bytes >= _SECTION.size and table + entry_bytes * count <= len(image):
            for place in range(count):
                kind, flags, offset, size = _SECTION.unpack_from(image, table + entry_bytes * place)
                if kind == _STRING_TABLE and flags & _LOADED:
                    return image[offset : offset + size]
    return image[:]


def keep_apart(framework: str) -> None:
    """Loads a part of BytePS so that it finds its own functions before the hook's. Raises HookError or OSError."""
    importlib.import_module(framework)  # brings the libraries that the part is linked to
    open_apart(find_library(framework).path)


def open_apart(library: Path) -> ctypes.CDLL:
    """The library, loaded to look for what it calls in itself first."""
    return ctypes.CDLL(str(library), mode=os.RTLD_LAZY | os.RTLD_DEEPBIND)


def check_compatibility(framework: str = "torch") -> tuple[bool, str]:
    """(whether the hook can act here, one line that says on what or why not), for `prophet doctor`."""
    try:
        library = find_library(framework)
        native_path()
    except HookError as error:
        return False, str(error)
    abi = "old" if library.old_string_abi else "new"
    stages = "" if library.compresses else ", no compression"
    return True, f"BytePS {version()} ({framework}, {abi} C++ ABI{stages})"


def native_path() -> Path:
    """The hook's shared object. Raises HookError where the installation lacks it."""
    path = Path(__file__).with_name("_hook" + sysconfig.get_config_var("EXT_SUFFIX"))
    if not path.exists():
        raise HookError("Prophet was installed without its native hook; install it with `pip install .`")
    return path


def check_layouts(native: ctypes.CDLL) -> int:
    """How many pushes, or pulls, the hook lets be in flight. Raises HookError where it is not this Prophet's."""
    layouts = _Layouts()
    try:
        native.prophet_hook_layouts(ctypes.byref(layouts))
    except AttributeError:
        raise HookError("the native hook is an older Prophet's; install Prophet anew") from None
    known = (EVENT_VERSION, EVENT_DTYPE.itemsize, plan_codec.VERSION)
    its = (layouts.event_version, layouts.event_bytes, layouts.plan_version)
    if its != known:
        raise HookError(
            f"the native hook is another Prophet's (version and bytes of an event, version of a plan: {its}, and "
            f"{known} here); install Prophet anew"
        )
    return int(layouts.most_in_flight)


class Hook:
    """The loaded hook. `load` must run before BytePS's library is, `attach` after.

    `most_in_flight`: at most so many pushes, and as many pulls, are in flight under any plan.
    """

    def __init__(self, native: ctypes.CDLL, most_in_flight: int) -> None:
        self._native = native
        self.most_in_flight = most_in_flight
        native.prophet_hook_attach.argtypes = [
            ctypes.c_char_p,
            ctypes.c_int,
            ctypes.c_double,
            ctypes.c_char_p,
            ctypes.c_size_t,
        ]
        native.prophet_hook_set_plan.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
        native.prophet_hook_set_plan.restype = ctypes.c_int64
        native.prophet_hook_drain.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        native.prophet_hook_drain.restype = ctypes.c_size_t
        native.prophet_hook_wait_completed.argtypes = [ctypes.c_uint64, ctypes.c_double]
        native.prophet_hook_wait_completed.restype = ctypes.c_uint64
        self._buffer = np.zeros(_DRAIN_EVENTS, EVENT_DTYPE)
        self._completed = 0

    @classmethod
    def load(cls) -> Hook:
        """Puts the hook's functions in front of BytePS's own, for libraries loaded from now on.

        Raises HookError where it was compiled for another release of Prophet; then nothing is put in front.
        """
        path = str(native_path())
        # First for itself alone: a hook that does not fit must not be what BytePS finds.
        most_in_flight = check_layouts(ctypes.CDLL(path, mode=ctypes.RTLD_LOCAL))
        return cls(ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL), most_in_flight)

    def attach(self, library: Library, watchdog_s: float) -> None:
        """Finds BytePS's own functions; scheduling is on from here. Raises HookError."""
        why = ctypes.create_string_buffer(256)
        core = _OLD_STRINGS * library.old_string_abi + _WITHOUT_COMPRESSION * (not library.compresses)
        failed = self._native.prophet_hook_attach(str(library.path).encode(), core, watchdog_s, why, len(why))
        if failed:
            raise HookError(why.value.decode())

    def step_aside(self, why: str) -> None:
        """Stock behaviour from here on; what waits goes to BytePS in order of arrival."""
        self._native.prophet_hook_step_aside(why.encode()[:159])

    def set_identity(self, by: str) -> None:
        """Where a task's gradient id comes from: "priority" (id = -priority - 1) or "key" (declared key)."""
        self._native.prophet_hook_identity(int({"priority": True, "key": False}[by]))

    @property
    def goes_one_way(self) -> bool:
        """Whether PUSH_ONLY and PULL_ONLY do what they say; where not, such a task goes both ways."""
        return bool(self._native.prophet_hook_one_way())

    def set_plan(self, plan: Plan) -> TakenPlan:
        """Swaps in both halves of the plan. Raises HookError, and the plan before stays, where it cannot be taken."""
        encoded = encode_plan(plan)
        return TakenPlan(self.set_encoded_plan(encoded), encoded)

    def set_encoded_plan(self, encoded: bytes) -> int:
        """As `set_plan`, for the bytes of a plan (prophet/core/plan_codec.py); returns its number in the record."""
        why = ctypes.create_string_buffer(256)
        number: int = self._native.prophet_hook_set_plan(encoded, len(encoded), why, len(why))
        if number < 0:
            raise HookError(f"the hook cannot take a plan: {why.value.decode()}")
        return number

    def reset(self) -> None:
        """Forgets everything that waits or is in flight: BytePS is being suspended or shut down. The plan stays.

        Harmless when repeated. What is forgotten is neither sent nor answered, so nobody may still wait for it.
        """
        self._native.prophet_hook_reset()

    def drain(self) -> NDArray[Any]:
        """All events since the last call, oldest first (EVENT_DTYPE). One thread at a time."""
        pieces = []
        count = len(self._buffer)
        while count == len(self._buffer):
            count = self._native.prophet_hook_drain(self._buffer.ctypes.data, len(self._buffer))
            pieces.append(self._buffer[:count].copy())
        return np.concatenate(pieces)

    def wait_activity(self, limit_s: float) -> None:
        """Waits, without the interpreter lock, until another tensor has completed, at most `limit_s`."""
        self._completed = self._native.prophet_hook_wait_completed(self._completed, limit_s)

    def status(self) -> HookStatus:
        native = _Status()
        self._native.prophet_hook_status(ctypes.byref(native))
        pushes, pulls = native.lanes[QueueKind.PUSH].value(), native.lanes[QueueKind.PULL].value()
        return HookStatus(
            active=bool(native.active),
            why_aside=native.why_aside.decode(errors="replace"),
            tasks=native.tasks,
            pending=pushes.waiting + pulls.waiting,
            in_flight_bytes=native.in_flight_bytes,
            watchdog_releases=native.watchdog_releases,
            events_dropped=native.events_dropped,
            still_s=native.still_s if native.still_s >= 0 else None,
            pushes=pushes,
            pulls=pulls,
        )


_loaded: Hook | None = None


def loaded() -> Hook | None:
    """The hook of this process, where it is on."""
    return _loaded


def set_loaded(hook: Hook) -> None:
    global _loaded
    _loaded = hook


def set_identity(by: str) -> None:
    """See Hook.set_identity; nothing where the hook is off."""
    if _loaded is not None:
        _loaded.set_identity(by)


def reset() -> None:
    """See Hook.reset; nothing where the hook is off."""
    if _loaded is not None:
        _loaded.reset()


def wait_activity(limit_s: float) -> None:
    """See Hook.wait_activity; a short sleep where the hook is off, since nothing would wake us."""
    if _loaded is None:
        time.sleep(min(limit_s, POLL_S))
        return
    _loaded.wait_activity(limit_s)


def progress() -> object:
    """Differs from what it was before where a transfer has begun or ended since; always the same without the hook."""
    if _loaded is None:
        return None
    status = _loaded.status()
    return status.tasks, status.pending, status.in_flight_bytes
