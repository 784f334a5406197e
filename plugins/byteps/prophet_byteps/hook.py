"""Python's side of the native BytePS hook: loading it, and the calls into it.

Rule of this file: everything that uses the hook's shared object through ctypes. library.py knows which BytePS the hook
supports. Nothing here makes decisions; plugins/byteps/prophet_byteps/native/hook.cc explains how the hook works.
"""

from __future__ import annotations

import ctypes
import sysconfig
import time
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

PUSH_ONLY, PULL_ONLY = -(1 << 30), -(1 << 30) - 1
"""Priorities of tasks that are only pushed, or only pulled (hook.cc has the same values)."""
_DRAIN_EVENTS = 1 << 16
"""Maximum events drained at a time (24 bytes each)."""
POLL_S = 0.001
"""Seconds between a front end's checks of its transfers if no hook can wake it."""


_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "attach": (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_double, ctypes.c_char_p, ctypes.c_size_t),
    "set_plan": (ctypes.c_int64, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t),
    "drain": (ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t),
    "give_size": (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32),
    "wait_completed": (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_double),
}
"""Functions of the hook with other types than int: the return type, then the argument types."""
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
    """Return (True if the hook supports this BytePS, a line that names it or says why not), for `prophet doctor`."""
    try:
        library = find_library(framework)
        native_path()
    except HookError as error:
        return False, str(error)
    abi = "old" if library.old_string_abi else "new"
    return True, f"BytePS {version_of('byteps') or 'without a version'} ({framework}, {abi} C++ ABI)"


def native_path() -> Path:
    """Return the path of the hook's shared object. Raises HookError if the installation lacks it."""
    path = Path(__file__).with_name("_hook" + sysconfig.get_config_var("EXT_SUFFIX"))
    if not path.exists():
        raise HookError("Prophet was installed without its native hook; install it with `pip install .`")
    return path


def check_layouts(native: ctypes.CDLL) -> int:
    """Return the hook's maximum of pushes in flight, and of pulls. Raises HookError if it is from another Prophet."""
    layouts = _Layouts()
    try:
        native.prophet_hook_layouts(ctypes.byref(layouts))
        for name in _FUNCTIONS:
            getattr(native, f"prophet_hook_{name}")
    except AttributeError:
        raise HookError("the native hook is from an older Prophet; reinstall Prophet") from None
    known = (EVENT_VERSION, EVENT_DTYPE.itemsize, plan_codec.VERSION)
    its = (layouts.event_version, layouts.event_bytes, layouts.plan_version)
    if its != known:
        raise HookError(
            f"the native hook is from another Prophet (event version, event bytes and plan version are {its}, and "
            f"{known} here); reinstall Prophet"
        )
    return int(layouts.most_in_flight)


def load_for(framework: str) -> tuple[Library | None, Hook | None, str]:
    """Return (BytePS's extension for `framework`, the loaded hook, ""), or (None, None, why not)."""
    try:
        return find_library(framework), Hook.load(), ""
    except HookError as error:
        return None, None, str(error)
    except Exception as error:
        return None, None, f"{type(error).__name__}: {error}"


class Hook:
    """The loaded hook. `load` must run before BytePS's library is loaded, `attach` after.

    `most_in_flight`: maximum of pushes in flight, and of pulls, under any plan.
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
        """Give the hook's functions precedence over BytePS's, for libraries loaded from now on.

        Raises HookError, and changes nothing, if the hook was compiled for another release of Prophet.
        """
        path = str(native_path())
        # Load it locally first, since BytePS must not find a hook that does not fit.
        most_in_flight = check_layouts(ctypes.CDLL(path, mode=ctypes.RTLD_LOCAL))
        return cls(ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL), most_in_flight)

    def attach(self, library: Library, watchdog_s: float) -> None:
        """Find BytePS's own functions, and start scheduling. Raises HookError if one is missing."""
        global _loaded
        why = ctypes.create_string_buffer(256)
        path = str(library.path).encode()
        if self._native.prophet_hook_attach(path, library.old_string_abi, watchdog_s, why, len(why)):
            raise HookError(why.value.decode())
        _loaded = self

    def step_aside(self, why: str) -> None:
        """Behave like stock BytePS from now on. Waiting tasks go to BytePS in order of arrival."""
        self._native.prophet_hook_step_aside(why.encode()[:159])

    def go_one_way(self) -> bool:
        """Make PUSH_ONLY and PULL_ONLY work from now on. Return False if tasks with these priorities go both ways."""
        return bool(self._native.prophet_hook_one_way())

    @property
    def sizes_apart(self) -> bool:
        """True if tensors can have different partition sizes, as far as BytePS's first pushes show."""
        return bool(self._native.prophet_hook_sizes_apart())

    def turn_on_sizes(self) -> None:
        """Put `give_size` into effect until BytePS restarts. Call it only if `sizes_apart`."""
        self._native.prophet_hook_turn_on_sizes()

    def give_size(self, name: str, size: int) -> None:
        """Set the partition size, in bytes, of the tensor with this name in BytePS, before its first push."""
        self._native.prophet_hook_give_size(name.encode(), size)

    def set_plan(self, plan: Plan) -> tuple[int, bytes]:
        """Swap in both halves of the plan. Return its number in the event record, and its bytes. Raises HookError, and
        keeps the old plan, if the hook rejects it.
        """
        encoded = encode_plan(plan)
        why = ctypes.create_string_buffer(256)
        number: int = self._native.prophet_hook_set_plan(encoded, len(encoded), why, len(why))
        if number < 0:
            raise HookError(f"the hook cannot take a plan: {why.value.decode()}")
        return number, encoded

    def reset(self) -> None:
        """Forget all waiting and in-flight tasks: BytePS is being suspended or shut down. The plan stays.

        Harmless when repeated. Forgotten tasks are neither sent nor answered, so nobody may still wait for them.
        """
        self._native.prophet_hook_reset()

    def drain(self) -> NDArray[Any]:
        """Return all events since the last call, oldest first (EVENT_DTYPE). Call it from one thread at a time."""
        pieces = []
        count = len(self._buffer)
        while count == len(self._buffer):
            count = self._native.prophet_hook_drain(self._buffer.ctypes.data, len(self._buffer))
            pieces.append(self._buffer[:count].copy())
        return np.concatenate(pieces)

    def wait_activity(self, limit_s: float) -> None:
        """Wait, without the interpreter lock, until another tensor completes, or at most `limit_s` seconds."""
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
    """Return the hook of this process; None if it is off."""
    return _loaded


def reset() -> None:
    """Call Hook.reset, if the hook is on."""
    if _loaded is not None:
        _loaded.reset()


def wait_activity(limit_s: float) -> None:
    """Call Hook.wait_activity. Without the hook, sleep briefly, since nothing would wake this thread."""
    if _loaded is None:
        time.sleep(min(limit_s, POLL_S))
    else:
        _loaded.wait_activity(limit_s)


def progress() -> object:
    """Return a value that changes when a transfer starts or finishes; None without the hook."""
    if _loaded is None:
        return None
    status = _loaded.status()
    return status.tasks, status.pending, status.in_flight_bytes


def sending() -> bool:
    """Return True if a push is waiting or not acknowledged. False if the hook is off."""
    if _loaded is None:
        return False
    pushes = _loaded.status().pushes
    return pushes.waiting + pushes.in_flight > 0
