"""The end of a process: exit handlers, and an exit that does not wait for the engine.

Rule of this file: how a process ends, not why. It is loaded when BytePS is imported and runs in the program's own
thread or the agent's, so it needs neither NumPy nor a framework.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

WRONG = 2
"""Exit status for problems that a person has to fix: a setting, or workers that disagree."""
STALLED = 75
"""Exit status for problems that a retry may solve (EX_TEMPFAIL), so that a cluster's restart policy can tell them."""

_status = 0
_at_once = False
_leave = os._exit
_ends: list[Callable[[], object]] = []
"""Registered functions that have not been called yet."""


def at_end(what: Callable[[], object]) -> None:
    """Register `what` to be called when this process exits successfully. Later registrations run first.

    `what` does not run when a fork exits: a fork has this process's files and sockets but none of its threads.

    It also runs if the main thread calls `os._exit(0)`, for which Python runs no handlers. A rank forked by
    multiprocessing exits this way when its function returns, and other ranks may wait for data from it.
    """
    pid = os.getpid()

    @functools.wraps(what)
    def once_here() -> None:
        if once_here in _ends and os.getpid() == pid:
            _ends.remove(once_here)
            what()

    _ends.append(once_here)
    atexit.register(once_here)
    if os._exit is _leave:
        os._exit = _leave_well


def finish_first(engine: Any, finish: Callable[[], object], ended: Callable[[], object] = lambda: None) -> None:
    """Call `finish` before `shutdown` and `suspend` of the module `engine`, and `ended` after them. `finish` also runs
    at the end of a process that has called the engine's `init`.
    """
    begin = engine.init

    @functools.wraps(begin)
    def init(*args: Any, **kwargs: Any) -> Any:
        result = begin(*args, **kwargs)
        at_end(finish)  # The engine's init() has just registered its own exit handler, so this one runs before it.
        return result

    def finishing(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def function(*args: Any, **kwargs: Any) -> Any:
            finish()
            try:
                return original(*args, **kwargs)
            finally:
                ended()

        return function

    engine.init = init
    for name in {"shutdown", "suspend"} & set(vars(engine)):
        setattr(engine, name, finishing(getattr(engine, name)))


def _leave_well(status: int) -> NoReturn:
    """Replace `os._exit`: run the registered functions if the main thread exits successfully."""
    global _at_once
    if status == 0 and threading.current_thread() is threading.main_thread():
        _at_once = True
        for what in reversed(_ends.copy()):
            try:
                what()
            except Exception as error:
                say(f"at the end of the process: {type(error).__name__}: {error}")
        status = _status
    _leave(status)


def fail_at_end(status: int) -> None:
    """Set the exit status of a process whose program itself succeeds. `end_last` applies it."""
    global _status
    _status = status


def end_last() -> None:
    """Exit with the status of `fail_at_end`, if any. This handler must run last, so register it before any other."""
    if _status:
        end_process("", _status)


def ends_at_once() -> bool:
    """Return True if the program has called `os._exit`, which does not wait for the engine's end."""
    return _at_once


def has_failed() -> bool:
    """Return True if the program has ended with an exception that nothing caught."""
    return getattr(sys, "last_value", None) is not None


def raise_if_handlers(error: BaseException) -> None:
    """Raise what a signal handler has raised, if that is this error or its cause, whatever Prophet did at that moment:
    it is no failure of Prophet's.
    """
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = [getattr(handler, "__code__", None) for handler in handlers]
    cause: BaseException | None = error
    while cause is not None:
        # Python's own handler, of Ctrl-C, has no code. What begins in C makes an error of its own of what comes there.
        frames = [frame for frame, _ in traceback.walk_tb(cause.__traceback__)]
        if not isinstance(cause, Exception) or any(frame.f_code in codes for frame in frames):
            raise cause
        cause = cause.__cause__


def say(line: str) -> None:
    """Write one line to standard error, in a single write, so that other output does not interleave."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or missing
        sys.stderr.write(f"Prophet: {line}\n")
        sys.stderr.flush()


def end_process(line: str, status: int) -> NoReturn:
    """End the process, from any thread, after writing `line` if not empty. The program's output is flushed.

    Exit handlers do not run: BytePS's own would wait for the other workers, which is impossible here.
    """
    if line:
        say(line)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    _leave(status)
