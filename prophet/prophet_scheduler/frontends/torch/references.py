"""Uses of a parameter that no module sees: through a reference to the tensor, or to anything that shares its memory.

Rule of this file: torch's function mode and its place among other modes. guards.py acts on a use.

While updates are pending, a TorchFunctionMode sees every function and attribute of torch that this thread calls. By
storage, it finds arguments that share memory with a pending tensor: the parameter itself, `p.data`, `p.detach()`, a
view of a flat tensor, the `.grad` that was sent, a DTensor made of any of these. A call that only asks for a shape or
the like, or for `.grad` itself, reads no value and passes.

torch removes a mode while it runs a function that the mode has handled. So a call that may run the program's code uses
everything: one with objects that have a __torch_function__, or under a mode or hooks of the program's.

Not seen are memory that NumPy or a C++ extension reached before step(), threads that threads.py cannot find, and
parameters that the Python code of a custom operator keeps.

Python runs signal handlers between any two calls of the main thread, even within Prophet. A handler that saves the
model while Prophet waits finds everything up to date, as always. In the middle of Prophet's own work, which is short
and must not be re-entered, it finds things as they are then, as it would in the middle of an optimizer's step().

Modes form a stack, and a program leaves its own mode by popping the top. So ours lies below all modes that the program
has entered or will enter, and only above torch's own mode for the default device, which requires the bottom place.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch._guards import CompileContext
from torch.overrides import TorchFunctionMode, handle_torch_function
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from prophet_scheduler.core import _native
from prophet_scheduler.forks import free_in_forks
from prophet_scheduler.frontends.torch.memory import PLAIN, StorageKey, is_of_others, memory_of, parts_of, storage_key

_METADATA = frozenset(
    getattr(torch.Tensor, name).__get__
    for name in (
        *("shape", "dtype", "device", "layout", "ndim", "names", "nbytes", "itemsize"),
        *("requires_grad", "is_leaf", "grad_fn", "output_nr", "retains_grad", "name"),
        *("is_cuda", "is_cpu", "is_meta", "is_sparse", "is_quantized", "is_nested", "is_mkldnn"),
    )
    if hasattr(torch.Tensor, name)
) | frozenset(
    getattr(torch.Tensor, name)
    for name in (
        *("size", "dim", "ndimension", "numel", "nelement", "element_size", "stride", "storage_offset"),
        *("is_contiguous", "is_floating_point", "is_complex", "is_signed", "get_device", "__len__", "__hash__"),
        *("requires_grad_", "register_hook", "register_post_accumulate_grad_hook", "is_same_size"),
    )
)
_grad, _requires_grad = (inspect.getattr_static(torch.Tensor, name) for name in ("grad", "requires_grad"))

swapping = free_in_forks(threading.RLock())
"""Held while an update has put averages in place of gradients, and while the program reads or clears a gradient: these
may happen in different threads."""
READ_NOTHING: dict[Any, Any] = {
    **dict.fromkeys((*_METADATA, _requires_grad.__set__)),
    **dict.fromkeys((_grad.__get__, _grad.__set__, _grad.__delete__), swapping),
}
"""Functions that read no value, each with the lock to hold during the call, or None."""

Pending = Mapping[StorageKey, tuple[Any, ...]]


class _Here(threading.local):
    """State of this thread: its mode, and what it does."""

    mode: _References | None = None
    stays = False
    """True if the mode stays while nothing is pending, because no other thread could set it later."""
    away = False
    """True while code compiled by torch.compile runs."""
    function: Any = None
    """Function of torch whose use of tensors is being handled; None if unknown."""


_here = _Here()
_watching: set[int] = set()
"""Threads that are watched, by identifier."""


class _References(TorchFunctionMode):
    def __init__(self, pending: Pending, watched: Mapping[int, Any], learning: Any, use: Use) -> None:
        super().__init__()
        self._pending = pending
        self._watched = watched
        self._learning = learning
        self._use = use

    unseen = READ_NOTHING
    __torch_function__ = _native.method(_native.call_seen)
    """It has no Python frame, so torch's warnings in the function that it calls show the program's line."""

    def look_at(
        self, func: Callable[..., Any], kinds: Iterable[type], args: tuple[Any, ...], kwargs: dict[str, Any] | None
    ) -> Callable[..., Any]:
        """Check the arguments of a function about to be called. `kinds`: their types with __torch_function__. Return
        the function to call.
        """
        func = _running(func)
        if not is_blind():
            self._check(func, kinds, args, kwargs)
        return func

    def _check(
        self, func: Callable[..., Any], kinds: Iterable[type], args: tuple[Any, ...], kwargs: dict[str, Any] | None
    ) -> None:
        if self._learning:
            self._note(args)
        # This runs at every call of torch, so the common case is inlined.
        pending = self._pending
        if pending and _runs_more(func, kinds):
            self._use_all(None if kwargs and "out" in kwargs else func, list(pending.values()))
            return
        kind: Any
        code = False
        writes = None if kwargs and ("out" in kwargs or kwargs.get("inplace")) else func
        try:
            for place, value in enumerate(args):
                if isinstance(value, torch.Tensor):
                    kind = type(value)
                    code |= kind not in PLAIN and _is_code(kind)
                    if value.untyped_storage()._cdata in pending or (kind not in PLAIN and is_of_others(kind)):
                        self._look(_at(writes, place), (value,))
                elif isinstance(value, _CONTAINERS):
                    self._look(_at(writes, place), (value,))
                else:
                    kind = type(value)
                    code |= _is_code(kind)
        except NotImplementedError:  # One of them has no storage.
            self._look(writes, args)
        if kwargs:
            self._look(writes, kwargs.values())
            code |= any(map(_is_code, map(type, kwargs.values())))
        if code and pending and not getattr(func, "__name__", "").startswith("register_"):  # Hooks are called later.
            self._use_all(func, list(pending.values()))

    def look(self, values: Iterable[Any]) -> None:
        """Check these values like the arguments of a C function of torch."""
        values = list(values)
        if self._learning:
            self._note(values)
        self._look(None, values)

    def _look(self, func: Callable[..., Any] | None, values: Iterable[Any]) -> None:
        tensors = _tensors(values, whole=func is None or isinstance(func, _IN_C))
        parts = (memory_of(tensor) if type(tensor) in PLAIN else parts_of(tensor) for tensor in tensors)
        entries = (self._pending.get(storage_key(part)) for part in itertools.chain.from_iterable(parts))
        self._use_all(func, (entry for entry in entries if entry is not None))

    def _use_all(self, func: Callable[..., Any] | None, entries: Iterable[tuple[Any, ...]]) -> None:
        # Together, so that a function that gets many tensors, such as all gradients, waits only once.
        together = tuple(itertools.chain.from_iterable(entries))
        if together:
            _here.function = func
            try:
                self._use(together)
            finally:
                _here.function = None

    def _note(self, values: Iterable[Any]) -> None:
        for tensor in _tensors(values, whole=False):
            watched = self._watched.get(id(tensor))
            if watched is not None:
                self._use(watched)


_CONTAINERS = (list, tuple)
_LOOKED_AT = (torch.Tensor, *_CONTAINERS)
_OPERATORS = torch._ops.OpOverload, torch._ops.OpOverloadPacket
_IN_C = (
    *(types.BuiltinFunctionType, types.MethodDescriptorType, types.MethodWrapperType, types.WrapperDescriptorType),
    *_OPERATORS,
)
"""Types of torch's functions outside Python. They take no dicts, and read nested lists at any depth."""


_saved_tensors_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: None)


def _runs_more(func: Any, kinds: Iterable[type]) -> bool:
    """Return True if this call may run code that is not torch's."""
    if func in _CALLING or not (isinstance(func, _IN_C) or _is_of_torch(func)):
        return True
    if kinds and any(map(_overrides, kinds)):
        return True
    hooks = _saved_tensors_hooks(False)
    if hooks is not None and not all(map(_is_of_torch, hooks)):
        return True
    return _has_dispatch_modes()


def _has_dispatch_modes() -> bool:
    return torch._C._len_torch_dispatch_stack() > 0 and not all(map(_is_of_torch, _get_current_dispatch_mode_stack()))


def program_has_modes() -> bool:
    """Return True if a dispatch mode or a function mode of the program's is active in this thread: it runs at each call
    of torch. Of torch's own dispatch modes, one copies what a step is about to change.
    """
    while True:
        try:
            modes = [torch._C._get_function_stack_at(place) for place in range(_height())]
        except RuntimeError:  # A signal handler has taken our mode off meanwhile.
            continue
        return torch._C._len_torch_dispatch_stack() > 0 or not all(
            is_watch(mode) or _is_of_torch(mode) for mode in modes
        )


@functools.cache
def _is_code(kind: Any) -> bool:
    """Return True for a type whose objects run code of the program when torch calls them, or their methods."""
    if issubclass(kind, torch.Tensor):
        dispatches = kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl
        return dispatches and not (is_of_others(kind) or _is_of_torch(kind))
    known = str(kind.__module__).partition(".")[0] in ("builtins", "torch", "numpy")
    return not known or kind in (types.FunctionType, types.MethodType)


def _running(func: Any) -> Any:
    """Return the function of torch that is running, if `func` has been put in its place. `func` has been called then,
    and what it does besides must not happen twice. Otherwise, return `func`.
    """
    if isinstance(func, _IN_C) or _is_of_torch(func):
        return func
    frame: Any = sys._getframe(2)  # the caller of look_at: call_seen has no frame
    if frame.f_code is handle_torch_function.__code__:
        running = frame.f_back
        return func if running.f_code is getattr(func, "__code__", None) else _function_in(running)
    name = next((name for name in vars(torch.Tensor) if getattr(torch.Tensor, name) is func), "")
    return getattr(torch._C.TensorBase, name, func)


def _function_in(frame: types.FrameType) -> Any:
    """Return the function that the frame runs. Its arguments are the defaults, since torch does not pass on all."""
    code, values = frame.f_code, frame.f_locals
    names, count = code.co_varnames, code.co_argcount
    cells = tuple(types.CellType(values[name]) for name in code.co_freevars)
    function = types.FunctionType(code, frame.f_globals, None, tuple(values[name] for name in names[:count]), cells)
    function.__kwdefaults__ = {name: values[name] for name in names[count : count + code.co_kwonlyargcount]}
    return function


_FOLDER = Path(torch.__file__).parent
_CALLING = frozenset(getattr(torch.Tensor, name) for name in ("__deepcopy__", "apply_", "map_", "map2_"))
"""Functions of torch that call code of the program: a tensor is copied with the attributes that it was given."""
_INHERITED = torch.Tensor.__torch_function__.__func__, torch._C._disabled_torch_function_impl  # type: ignore[attr-defined]


def _overrides(kind: Any) -> bool:
    """True for a class with a __torch_function__ of its own."""
    function = kind.__torch_function__
    return getattr(function, "__func__", function) not in _INHERITED


def _is_of_torch(what: Any) -> bool:
    """Return True for a function of torch, or an object of a class of torch. A function of the program may bear the
    module of one of torch's that it wraps, and one of torch's may wrap the program's and bear its module.
    """
    if str(what.__module__).partition(".")[0] != "torch":
        return False
    code = getattr(what, "__code__", None)
    return code is None or _is_in_torchs_folder(code)


@functools.cache
def _is_in_torchs_folder(code: types.CodeType) -> bool:
    return Path(code.co_filename).is_relative_to(_FOLDER)


def _tensors(values: Iterable[Any], whole: bool) -> list[torch.Tensor]:
    """Return the tensors in `values` and in lists and tuples among these (`whole`: at any depth). Python functions of
    torch read none nested deeper than that.

    This costs as much as torch's own processing of such arguments: it does not follow any other references.
    """
    tensors: list[torch.Tensor] = []
    level: list[Iterable[Any]] = [values]
    seen: set[int] = set()
    first = True
    while level:
        below: list[Iterable[Any]] = []
        for container in level:
            # In a list of numbers, only the members' types are checked.
            if not first and not any(issubclass(kind, _LOOKED_AT) for kind in set(map(type, container))):
                continue
            for value in container:
                if isinstance(value, torch.Tensor):
                    tensors.append(value)
                elif isinstance(value, list | tuple) and id(value) not in seen:
                    seen.add(id(value))
                    below.append(value)
        level, first = below if first or whole else [], False
    return tensors


Use = Callable[[Any], None]


def watch_here(pending: Pending, watched: Mapping[int, Any], learning: Any, use: Use, stays: bool = False) -> None:
    """From now on, in this thread, call `use` with the entry of each tensor before its use; with `stays`, for the
    thread's lifetime.

    Within a backward pass this does nothing: torch restores the initial modes of the pass after each node. Nor does it
    while this thread compiles code, which would then be for a stack with our mode.

    `pending` has tuples by `storage_key`; for tensors used together `use` gets their concatenation. `watched` has
    entries by id, and counts only while `learning` is not empty.
    """
    if _here.away or in_backward() or CompileContext.try_get() is not None:
        return
    _here.stays = stays
    _watching.add(threading.get_ident())
    there = _here.mode is not None and (_native.is_handling() or _is_on_stack(_here.mode))
    if not there:  # An interrupt may have come in the middle of putting it on the stack or taking it off.
        _enter(_References(pending, watched, learning, use))


def _enter(mode: _References) -> None:
    _here.mode = mode
    default: Any = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    count = _height()
    with _modes_above((), count - (count > 0 and torch._C._get_function_stack_at(0) is default)):
        _push(mode)


def above_default_device() -> None:
    """Put this thread's mode above the default device's, which torch has on top after it handled a call."""
    mode = _here.mode
    if mode is not None and _take_off() is not None:
        _enter(mode)


def stop_here(for_good: bool = False) -> None:
    """End `watch_here` in this thread. A mode that `stays` ends only `for_good`.

    During a call that the mode itself handles, it ends at the next call instead.
    """
    if _here.mode is None or ((_here.stays or in_backward()) and not for_good):
        return
    _here.stays = False
    _watching.discard(threading.get_ident())
    _take_off()


@contextlib.contextmanager
def within_backward(*tables: Any) -> Iterator[None]:
    """Watch all hooks of a backward pass that begins in the context, with the arguments of `watch_here`; without any,
    watch none.

    While this thread's mode handles `loss.backward()`, torch has removed it from the stack; and torch gives each hook
    the modes with which the pass began.
    """
    mode = _References(*tables) if tables else None
    with aside():
        before = _here.mode
        if mode is not None:
            _enter(mode)
        try:
            yield
        finally:
            _here.mode = mode
            _take_off()
            _here.mode = before


def _take_off() -> int | None:
    """Take this thread's mode off the stack. Return the number of modes above it; None if it was not there."""
    if _here.mode is None:
        return None
    with _modes_above(_References) as above:
        if not (_height() and _top() is _here.mode):
            return None
        _pop()
    _here.mode = None
    return len(above)


def look(values: Iterable[Any]) -> None:
    """Count these values as used in this thread, for calls that no mode sees."""
    mode = _here.mode
    if mode is not None and not is_blind():
        mode.look(values)


def may_write() -> bool:
    """Return True if the present use may be a write, going by the schemas of an operator, or else by torch's names, in
    place or to an item or attribute. A call with an argument `out` or `inplace` counts as one of an unknown function.
    """
    function = _here.function
    if isinstance(function, _OPERATORS):
        return _changes_arguments(function)
    return _writes(str(getattr(function, "__name__", "_")))


_IN_PLACE = frozenset(
    name for name in dir(torch.Tensor) if name.startswith("__i") and hasattr(torch.Tensor, f"__{name[3:]}")
)
"""Names of operators such as +=."""


def _writes(name: str) -> bool:
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or name.startswith("__set") or name in _IN_PLACE


def _at(func: Callable[..., Any] | None, place: int) -> Callable[..., Any] | None:
    """Return the function that uses its argument at this place; `repr` for one that only reads it. What a function
    changes in place is its first argument, except with optimizers' fused ones.
    """
    name = str(getattr(func, "__name__", ""))
    if not place or name.startswith("_fused") or isinstance(func, _OPERATORS):
        return func
    return repr if _writes(name) else func


def _changes_arguments(operator: Any) -> bool:
    packet = isinstance(operator, torch._ops.OpOverloadPacket)
    each: Any = [getattr(operator, name) for name in operator.overloads()] if packet else [operator]
    arguments = itertools.chain.from_iterable(overload._schema.arguments for overload in each)
    return any(arg.alias_info is not None and arg.alias_info.is_write and not arg.is_out for arg in arguments)


def is_watch(mode: Any) -> bool:
    """Return True if this function mode is one of Prophet's, which do not change results."""
    return isinstance(mode, _References)


def in_backward() -> bool:
    """Return True if this thread is running a node of a backward pass."""
    return torch._C._current_graph_task_id() != -1


def watching_here() -> bool:
    return _here.mode is not None


def watching_in(thread: threading.Thread) -> bool:
    """Return True if uses in this thread are watched."""
    return thread.ident in _watching


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """Take this thread's mode off the stack within the context, so that Prophet's own code does not pay for it."""
    mode = _here.mode
    above = _take_off()
    try:
        yield
    finally:
        if mode is not None and above is not None and _here.mode is None:
            _here.mode = mode
            with _modes_above((), above):
                _push(mode)


@contextlib.contextmanager
def away() -> Iterator[None]:
    """Take this thread's mode off the stack within the context, and enter no other, as code of torch.compile expects.
    Such code checks the stack before it runs, and is recompiled if the stack differs.
    """
    before, _here.away = _here.away, True
    try:
        with aside():
            yield
    finally:
        _here.away = before


is_at_work: Callable[[], bool] = _native.is_at_work
is_blind: Callable[[], bool] = _native.is_blind

# Python runs signal handlers, which may raise, between any two of its own steps, but never within a call of C++. So the
# marks of a thread are there, and none of them is left behind (core/native/marks.h).


class _Blind:
    __enter__, __exit__ = staticmethod(_native.begin_blind), staticmethod(_native.end_blind)


class _AtWork:
    __enter__, __exit__ = staticmethod(_native.begin_work), staticmethod(_native.end_work)


class _Waiting:
    __enter__, __exit__ = staticmethod(_native.begin_wait), staticmethod(_native.end_wait)


_blind, _at_work, _waiting = _Blind(), _AtWork(), _Waiting()


def blind() -> AbstractContextManager[None]:
    """Count no uses by this thread within the context."""
    return _blind


def at_work() -> AbstractContextManager[None]:
    """Mark this thread as doing Prophet's own work within the context: it is blind, and signal handlers cannot bring
    anything up to date.
    """
    return _at_work


def waiting() -> AbstractContextManager[None]:
    """Mark the present work as only waiting within the context, so that a signal handler may bring anything up to date.
    This has no effect if the work is part of other work.
    """
    return _waiting


unhandled: Callable[[], AbstractContextManager[None]] = torch._C.DisableTorchFunction
"""Make torch call no mode within the context, whether ours or another: that takes a microsecond per call. Use this for
work on many tensors that waits for nothing.
"""


# torch's stack of function modes in this thread.
_height, _push = torch._C._len_torch_function_stack, torch._C._push_on_torch_function_stack
_pop = torch._C._pop_torch_function_stack


def _top() -> Any:
    return torch._C._get_function_stack_at(_height() - 1)


def _is_on_stack(mode: Any) -> bool:
    return any(torch._C._get_function_stack_at(place) is mode for place in range(_height()))


@contextlib.contextmanager
def _modes_above(kind: type | tuple[type, ...], most: int = sys.maxsize) -> Iterator[Sequence[Any]]:
    """Within the context, take the modes above the topmost one of this kind off the stack, or all if there is none, but
    at most `most`. Yields the modes taken.
    """
    taken: list[Any] = []
    try:
        while _height() and len(taken) < most and not isinstance(_top(), kind):
            taken.append(_pop())
        yield taken
    finally:
        for mode in reversed(taken):
            _push(mode)
