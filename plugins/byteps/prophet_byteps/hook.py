"""Python's side of the native BytePS hook: loading it, and the calls into it.

Rule of this file: everything that touches the hook's shared object through ctypes. library.py knows on which BytePS it
can act. Nothing here decides; plugins/byteps/prophet_byteps/native/hook.cc says how the hook works.
"""

from __future__ import annotations

import ctypes
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from prophet_byteps.library import HookError, Library, find_library, version_of
from prophet_scheduler.core import plan_codec
from prophet_scheduler.core.events import EVENT_DTYPE, EVENT_VERSION, QueueKind
from prophet_scheduler.core.plan import Plan
from prophet_scheduler.core.plan_codec import encode_plan
from prophet_scheduler.core.status import HookStatus, LaneStatus

if TYPE_CHECKING:
    from numpy.typing import NDArray

_OLD_STRINGS, _WITHOUT_COMPRESSION = 1, 2
"""Flags that tell prophet_hook_attach about the library."""
PUSH_ONLY, PULL_ONLY = -(1 << 30), -(1 << 30) - 1
"""Priorities of tasks that are pushed and not pulled, or pulled and not pushed (hook.cc has the same)."""
_NEWEST = "prophet_hook_give_size"
"""Newest function of the hook, which an older release lacks."""
_DRAIN_EVENTS = 1 << 16
"""Events taken at a time (24 bytes each)."""
POLL_S = 0.001
"""Seconds between a front end's looks at its transfers where no hook can wake it."""


@dataclass(frozen=True)
class TakenPlan:
    """Plan that the hook has taken up: its number in the record of events, and its bytes."""

    number: int
    encoded: bytes


_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "attach": (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_double, ctypes.c_char_p, ctypes.c_size_t),
    "set_plan": (ctypes.c_int64, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t),
    "drain": (ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t),
    "give_size": (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32),
    "wait_completed": (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_double),
}
"""Functions of the hook that take or return other types than int: the type returned, and those taken."""
_COUNTS = ("tasks", "in_flight_bytes", "watchdog_releases", "unanswered_releases", "events_dropped")


class _Layouts(ctypes.Structure):
    _names = ("event_version", "event_bytes", "plan_version", "most_in_flight")
    _fields_ = [(name, ctypes.c_uint32) for name in _names]


class _LaneStatus(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("waiting", "in_flight")),
        ("oldest_s", ctypes.c_double),
        *((name, ctypes.c_uint32) for name in ("oldest_gradient", "reserved")),
    ]

    def value(self) -> LaneStatus:
        oldest = (self.oldest_s, self.oldest_gradient) if self.oldest_s >= 0 else (None, None)
        return LaneStatus(self.waiting, self.in_flight, *oldest)


class _Status(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint64) for name in _COUNTS),
        ("still_s", ctypes.c_double),
        ("lanes", _LaneStatus * 2),
        ("active", ctypes.c_int32),
        ("why_aside", ctypes.c_char * 160),
    ]


def check_compatibility(framework: str = "torch") -> tuple[bool, str]:
    """Return (True if the hook can act here, one line that says on what or why not), for `prophet doctor`."""
    try:
        library = find_library(framework)
        native_path()
    except HookError as error:
        return False, str(error)
    abi = "old" if library.old_string_abi else "new"
    stages = "" if library.compresses else ", no compression"
    return True, f"BytePS {version_of('byteps') or 'without a version'} ({framework}, {abi} C++ ABI{stages})"


def native_path() -> Path:
    """Return the path of the hook's shared object. Raises HookError if the installation lacks it."""
    path = Path(__file__).with_name("_hook" + sysconfig.get_config_var("EXT_SUFFIX"))
    if not path.exists():
        raise HookError("Prophet was installed without its native hook; install it with `pip install .`")
    return path


def check_layouts(native: ctypes.CDLL) -> int:
    """Return the most pushes, or pulls, in flight in the hook. Raises HookError if it is not this Prophet's."""
    layouts = _Layouts()
    try:
        native.prophet_hook_layouts(ctypes.byref(layouts))
        getattr(native, _NEWEST)
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


def load_for(framework: str) -> tuple[Library | None, Hook | None, str]:
    """Return (BytePS's extension of `framework`, the hook now in front of it, ""), or (None, None, why not)."""
    try:
        return find_library(framework), Hook.load(), ""
    except HookError as error:
        return None, None, str(error)
    except Exception as error:
        return None, None, f"{type(error).__name__}: {error}"


class Hook:
    """The loaded hook. `load` must run before BytePS's library is loaded, `attach` after.

    `most_in_flight`: most pushes, and as many pulls, in flight under any plan.
    """

    def __init__(self, native: ctypes.CDLL, most_in_flight: int) -> None:
        self._native = native
        self.most_in_flight = most_in_flight
        for name, (returned, *taken) in _FUNCTIONS.items():
            function = getattr(native, f"prophet_hook_{name}")
            function.restype, function.argtypes = returned, taken
        self._buffer = np.zeros(_DRAIN_EVENTS, EVENT_DTYPE)
        self._completed = 0

    @classmethod
    def load(cls) -> Hook:
        """Put the hook's functions in front of BytePS's own, for libraries loaded from now on.

        Raises HookError, with nothing put in front, if it was compiled for another release of Prophet.
        """
        path = str(native_path())
        # First for itself alone: BytePS must not find a hook that does not fit.
        most_in_flight = check_layouts(ctypes.CDLL(path, mode=ctypes.RTLD_LOCAL))
        return cls(ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL), most_in_flight)

    def attach(self, library: Library, watchdog_s: float) -> None:
        """Find BytePS's own functions; scheduling is on from here. Raises HookError."""
        why = ctypes.create_string_buffer(256)
        core = _OLD_STRINGS * library.old_string_abi + _WITHOUT_COMPRESSION * (not library.compresses)
        failed = self._native.prophet_hook_attach(str(library.path).encode(), core, watchdog_s, why, len(why))
        if failed:
            raise HookError(why.value.decode())

    def step_aside(self, why: str) -> None:
        """Behave as stock from here on. Waiting tasks go to BytePS in order of arrival."""
        self._native.prophet_hook_step_aside(why.encode()[:159])

    def set_identity(self, by: str) -> None:
        """Set the source of a task's gradient id: "priority" (id = -priority - 1) or "key" (declared key)."""
        self._native.prophet_hook_identity(int({"priority": True, "key": False}[by]))

    @property
    def goes_one_way(self) -> bool:
        """True if PUSH_ONLY and PULL_ONLY work. If not, such a task goes both ways."""
        return bool(self._native.prophet_hook_one_way())

    @property
    def sizes_apart(self) -> bool:
        """True if a tensor can have its own partition size, as far as BytePS's first pushes show."""
        return bool(self._native.prophet_hook_sizes_apart())

    def turn_on_sizes(self) -> None:
        """Make `give_size` hold from now on, until BytePS begins anew; only where `sizes_apart`."""
        self._native.prophet_hook_turn_on_sizes()

    def give_size(self, name: str, size: int) -> None:
        """Set the partition size, in bytes, of the tensor with this name in BytePS, before its first push."""
        self._native.prophet_hook_give_size(name.encode(), size)

    def set_plan(self, plan: Plan) -> TakenPlan:
        """Swap in both halves of the plan. Raises HookError if it cannot be taken; the old plan then stays."""
        return self.set_encoded_plan(encode_plan(plan))

    def set_encoded_plan(self, encoded: bytes) -> TakenPlan:
        """Do as `set_plan`, for a plan's bytes (core/plan_codec.py)."""
        why = ctypes.create_string_buffer(256)
        number: int = self._native.prophet_hook_set_plan(encoded, len(encoded), why, len(why))
        if number < 0:
            raise HookError(f"the hook cannot take a plan: {why.value.decode()}")
        return TakenPlan(number, encoded)

    def reset(self) -> None:
        """Forget everything that waits or is in flight: BytePS is being suspended or shut down. The plan stays.

        Harmless when repeated. What is forgotten is neither sent nor answered, so nobody may still wait for it.
        """
        self._native.prophet_hook_reset()

    def drain(self) -> NDArray[Any]:
        """Return all events since the last call, oldest first (EVENT_DTYPE). One thread at a time."""
        pieces = []
        count = len(self._buffer)
        while count == len(self._buffer):
            count = self._native.prophet_hook_drain(self._buffer.ctypes.data, len(self._buffer))
            pieces.append(self._buffer[:count].copy())
        return np.concatenate(pieces)

    def wait_activity(self, limit_s: float) -> None:
        """Wait, without the interpreter lock, until another tensor has completed, at most `limit_s`."""
        self._completed = self._native.prophet_hook_wait_completed(self._completed, limit_s)

    def status(self) -> HookStatus:
        native = _Status()
        self._native.prophet_hook_status(ctypes.byref(native))
        pushes, pulls = native.lanes[QueueKind.PUSH].value(), native.lanes[QueueKind.PULL].value()
        return HookStatus(
            active=bool(native.active),
            why_aside=native.why_aside.decode(errors="replace"),
            pending=pushes.waiting + pulls.waiting,
            still_s=native.still_s if native.still_s >= 0 else None,
            pushes=pushes,
            pulls=pulls,
            **{name: getattr(native, name) for name in _COUNTS},
        )


_loaded: Hook | None = None


def loaded() -> Hook | None:
    """Return the hook of this process, if it is on."""
    return _loaded


def set_loaded(hook: Hook) -> None:
    global _loaded
    _loaded = hook


def set_identity(by: str) -> None:
    """Call Hook.set_identity, if the hook is on."""
    if _loaded is not None:
        _loaded.set_identity(by)


def reset() -> None:
    """Call Hook.reset, if the hook is on."""
    if _loaded is not None:
        _loaded.reset()


def wait_activity(limit_s: float) -> None:
    """Call Hook.wait_activity. Without the hook sleep briefly, since nothing would wake us."""
    if _loaded is None:
        time.sleep(min(limit_s, POLL_S))
    else:
        _loaded.wait_activity(limit_s)


def progress() -> object:
    """Return a value that changes when a transfer begins or ends; without the hook it never does."""
    if _loaded is None:
        return None
    status = _loaded.status()
    return status.tasks, status.pending, status.in_flight_bytes


def sending() -> bool:
    """True if something is to be sent yet, or was and is not acknowledged. False if the hook is off."""
    if _loaded is None:
        return False
    pushes = _loaded.status().pushes
    return pushes.waiting + pushes.in_flight > 0
