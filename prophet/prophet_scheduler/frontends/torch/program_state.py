"""Program state, besides tensors, that a computation depends on: saved at one time for a computation at another.

Rule of this file: a table of such state, both per thread and per process. A row defines how to read it, and how to
restore an earlier value temporarily. The table's test lists the state that cannot affect an update. It asks the
installed torch for everything that can be set, and fails if something is in neither list.

Reading the whole table takes two microseconds, and nearly always nothing differs. During an update, other threads of
the program see the restored values of process-wide state that does differ.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

from prophet_scheduler.frontends.torch import references

Values = Sequence[Any]
"""Values at one time, one for each row of the table."""

_C: Any = torch._C
_DEVICE_TYPES = ("cpu", "cuda")
_LEAST_NORMAL = sys.float_info.min
_SAME = contextlib.nullcontext()


@dataclass(frozen=True)
class ProgramState:
    """One row. `within(value)`: context in which an earlier value holds again. `lasts`, if given, returns False for a
    value that cannot be used once the program has left it.
    """

    name: str
    read: Callable[[], Any]
    within: Callable[[Any], AbstractContextManager[Any]]
    lasts: Callable[[Any], bool] | None = None


def of_now() -> Values:
    """Return the present values, in this thread."""
    return [read() for read in _READS]


def can_hold_later(held: Values) -> bool:
    """Return True if all these values can be restored after the program has left them."""
    return all(lasts(held[row]) for row, lasts in _LASTS)


def as_of(held: Values) -> AbstractContextManager[None]:
    """Restore earlier values within the context."""
    return _SAME if of_now() == held else _as_of(held)


@contextlib.contextmanager
def _as_of(held: Values) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for state, value in zip(TABLE, held, strict=False):  # Empty before the first step().
            if state.read() != value:  # Earlier rows may have changed it.
                stack.enter_context(state.within(value))
        yield


@contextlib.contextmanager
def outermost() -> Iterator[None]:
    """Detach calls of torch in the context from any call in progress: the garbage collector may run them in the middle
    of another, such as DTensor's, which infers shapes with fake tensors.
    """
    with _disable_current_modes(), temporarily_clear_interpreter_stack(), _with_dispatch_keys(_OUTERMOST_KEYS):
        yield


def _setting(read: Callable[[], Any], put: Callable[[Any], Any]) -> Callable[[Any], AbstractContextManager[Any]]:
    """Return the `within` of a value that `put` sets in the form that `read` returns."""

    @contextlib.contextmanager
    def within(value: Any) -> Iterator[None]:
        before = read()
        put(value)
        try:
            yield
        finally:
            put(before)

    return within


def _set_by(name: str, read: Callable[[], Any], put: Callable[[Any], Any]) -> ProgramState:
    return ProgramState(name, read, _setting(read, put))


def _flag(name: str, getter: str, setter: str) -> list[ProgramState]:
    """Return the row of a torch flag, if this torch has it."""
    read, put = getattr(_C, getter, None), getattr(_C, setter, None)
    return [] if read is None or put is None else [_set_by(name, read, put)]


# Modes. A mode must not be called after the program has left it, so nothing is late if one is active in step().


def _function_modes() -> Values:
    """Return this thread's modes, from bottom to top, without Prophet's own."""
    count = _C._len_torch_function_stack()
    if not count:
        return ()
    return tuple(mode for mode in map(_C._get_function_stack_at, range(count)) if not references.is_watch(mode))


@contextlib.contextmanager
def _with_function_modes(modes: Values) -> Iterator[None]:
    before = [_C._pop_torch_function_stack() for _ in range(_C._len_torch_function_stack())]
    default: Any = torch._GLOBAL_DEVICE_CONTEXT
    context = getattr(default, "device_context", None)
    default.device_context = next((mode for mode in modes if _is_device(mode)), None)
    for mode in modes:
        _C._push_on_torch_function_stack(mode)
    try:
        yield
    finally:
        for _ in modes:
            _C._pop_torch_function_stack()
        default.device_context = context
        for mode in reversed(before):
            _C._push_on_torch_function_stack(mode)


def _is_device(mode: Any) -> bool:
    return isinstance(mode, DeviceContext)


def _dispatch_modes() -> Values:
    return _get_current_dispatch_mode_stack() if _C._len_torch_dispatch_stack() else []


_hooks: Any = _C._autograd
_TELLS_HOOKS = hasattr(_hooks, "_top_saved_tensors_default_hooks")


def _saved_tensors_hooks() -> Any:
    # torch 2.4 cannot tell, but an optimizer's update saves nothing for backward anyway.
    return _hooks._top_saved_tensors_default_hooks(False) if _TELLS_HOOKS else None


@contextlib.contextmanager
def _without_saved_tensors_hooks(_value: Any) -> Iterator[None]:
    taken = []
    while (top := _saved_tensors_hooks()) is not None:
        taken.append(top)
        _hooks._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pair in reversed(taken):
            _hooks._push_saved_tensors_default_hooks(*pair)


# State that has a value.


def _autocast_settings() -> tuple[Any, ...]:
    devices = [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _DEVICE_TYPES]
    return torch.is_autocast_cache_enabled(), *devices


def _autocast() -> Any:
    """Return the autocast settings; None if autocast is off for all devices, since its types have no effect then."""
    return _autocast_settings() if _C._is_any_autocast_enabled() else None


def _put_autocast(value: tuple[Any, ...]) -> None:
    # The cache stays: the program's forward pass may be in the middle of its region. An update casts no parameter.
    cached, *devices = value
    torch.set_autocast_cache_enabled(cached)
    for kind, (enabled, dtype) in zip(_DEVICE_TYPES, devices, strict=True):
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)


def _with_autocast(value: Any) -> AbstractContextManager[Any]:
    cached, *devices = _autocast_settings()
    off = cached, *((False, dtype) for _, dtype in devices)
    return _setting(_autocast_settings, _put_autocast)(off if value is None else value)


@dataclass(frozen=True)
class _Keys:
    """Comparable set of dispatch keys, for torch 2.4, which has no number for it."""

    words: str
    keys: Any = field(compare=False)


_NUMBERED = hasattr(_C.DispatchKeySet, "raw_repr")


def _dispatch_keys() -> tuple[Any, Any]:
    included, excluded = _C._dispatch_tls_local_include_set(), _C._dispatch_tls_local_exclude_set()
    if _NUMBERED:
        return included.raw_repr(), excluded.raw_repr()
    return _Keys(repr(included), included), _Keys(repr(excluded), excluded)


def _with_dispatch_keys(value: tuple[Any, Any]) -> AbstractContextManager[Any]:
    keys = map(_C.DispatchKeySet.from_raw_repr, value) if _NUMBERED else (each.keys for each in value)
    guard: AbstractContextManager[Any] = _C._ForceDispatchKeyGuard(*keys)
    return guard


with _disable_current_modes():
    _OUTERMOST_KEYS = _dispatch_keys()


def _matmul_precision() -> str | None:
    """Return the precision; None if the program has set it for a single device, which later rows cover."""
    try:
        precision: str = _C._get_float32_matmul_precision()
        return precision
    except RuntimeError:
        return None


@contextlib.contextmanager
def _with_matmul_precision(value: str | None) -> Iterator[None]:
    before = _matmul_precision()
    own = [(state, state.read()) for state in _PRECISIONS]
    if value is not None:
        torch.set_float32_matmul_precision(value)
    try:
        yield
    finally:
        if before is not None:
            torch.set_float32_matmul_precision(before)
        for state, precision in own:
            if state.read() != precision:
                _C._set_fp32_precision_setter(*state.name.split()[1:], precision)


def _fp32_precisions() -> list[ProgramState]:
    """Return the rows for matrix products, each after the settings it inherits from."""
    get, put = getattr(_C, "_get_fp32_precision_getter", None), getattr(_C, "_set_fp32_precision_setter", None)
    if get is None or put is None:
        return []
    kinds = (("generic", "all"), ("cuda", "all"), ("mkldnn", "all"), ("cuda", "matmul"), ("mkldnn", "matmul"))
    return [
        _set_by(f"fp32_precision {' '.join(kind)}", functools.partial(get, *kind), functools.partial(put, *kind))
        for kind in kinds
    ]


def _deterministic() -> tuple[bool, bool]:
    return _C._get_deterministic_algorithms(), _C._get_deterministic_algorithms_warn_only()


def _anomaly() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _flushes_denormals() -> bool:
    return _LEAST_NORMAL * 0.5 == 0.0


_of_compiler = vars(torch.compiler)
_PRECISIONS = _fp32_precisions()
_empty: Callable[[Any], bool] = lambda value: not value  # noqa: E731

TABLE: Sequence[ProgramState] = (
    ProgramState("function modes", _function_modes, _with_function_modes, lambda modes: all(map(_is_device, modes))),
    ProgramState("dispatch modes", _dispatch_modes, lambda _: _disable_current_modes(), _empty),
    ProgramState(
        "functorch levels", _C._functorch.maybe_current_level, lambda _: temporarily_clear_interpreter_stack(), _empty
    ),
    ProgramState("saved tensors hooks", _saved_tensors_hooks, _without_saved_tensors_hooks, _empty),
    ProgramState(
        "tracing",
        _C._get_tracing_state,
        lambda _: _setting(_C._get_tracing_state, _C._set_tracing_state)(None),
        _empty,
    ),
    ProgramState("inference mode", torch.is_inference_mode_enabled, torch.inference_mode),
    _set_by("grad mode", torch.is_grad_enabled, _C._set_grad_enabled),
    *_flag("forward mode", "_is_fwd_grad_enabled", "_set_fwd_grad_enabled"),
    *_flag("several threads of backward", "_is_multithreading_enabled", "_set_multithreading_enabled"),
    ProgramState("autocast", _autocast, _with_autocast),
    *_flag("function state", "_get_torch_function_state", "_set_torch_function_state"),
    ProgramState("dispatch keys", _dispatch_keys, _with_dispatch_keys),
    _set_by("default dtype", torch.get_default_dtype, torch.set_default_dtype),
    _set_by(
        "deterministic algorithms",
        _deterministic,
        lambda value: _C._set_deterministic_algorithms(value[0], warn_only=value[1]),
    ),
    *_flag(
        "memory filled", "_get_deterministic_fill_uninitialized_memory", "_set_deterministic_fill_uninitialized_memory"
    ),
    _set_by("anomaly mode", _anomaly, lambda value: torch.set_anomaly_enabled(*value)),
    _set_by("threads", torch.get_num_threads, torch.set_num_threads),
    _set_by("denormals", _flushes_denormals, torch.set_flush_denormal),
    ProgramState("matmul precision", _matmul_precision, _with_matmul_precision),
    *_PRECISIONS,
    *_flag("mkldnn", "_get_mkldnn_enabled", "_set_mkldnn_enabled"),
    *_flag("mkldnn deterministic", "_get_mkldnn_deterministic", "_set_mkldnn_deterministic"),
    *_flag(
        "implicit replication", "_get_dtensor_allow_implicit_replication", "_set_dtensor_allow_implicit_replication"
    ),
    # torch's optimizers compute in another way, with other bits, when told that they are being compiled.
    _set_by(
        "compiling",
        functools.partial(_of_compiler.get, "_is_compiling_flag", False),
        functools.partial(_of_compiler.__setitem__, "_is_compiling_flag"),
    ),
)
_READS = [state.read for state in TABLE]
_LASTS = [(row, state.lasts) for row, state in enumerate(TABLE) if state.lasts is not None]
