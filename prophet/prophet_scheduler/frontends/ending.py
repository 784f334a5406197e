"""The end of a process: what comes before it, and how one that must not go on ends without a wait for its engine.

Rule of this file: the end of the process and nothing about why. It runs at a BytePS import, in the program's own
thread or in the agent's, so it needs neither NumPy nor a framework.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

WRONG = 2
"""Status where a person has something to mend: a setting, or workers that disagree."""
STALLED = 75
"""Status where trying again may help (EX_TEMPFAIL), which a cluster's restart policy can tell from the other."""

_status = 0
_leave = os._exit
_ends: list[Callable[[], object]] = []
"""What was registered to be called at the end, and was not called yet."""


def at_end(what: Callable[[], object]) -> None:
    """`what` is called when this process ends well, before what was registered sooner; not where a fork of it ends.

    A fork has the files and sockets of this process, and none of its threads.

    It is called where the main thread leaves by `os._exit(0)` as well, for which Python runs no handlers: so ends a
    rank that multiprocessing has forked, when its function returns, and others may wait for what it has to send.
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
    """`finish` is called before the functions of the module `engine` that end it, `shutdown` and `suspend`, and `ended`
    after them; and `finish` at the end of a process that has called its `init`.
    """
    begin = engine.init

    @functools.wraps(begin)
    def init(*args: Any, **kwargs: Any) -> Any:
        result = begin(*args, **kwargs)
        at_end(finish)  # The engine's init() has just registered its own end, so this runs before that.
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
    """In place of `os._exit`."""
    if status == 0 and threading.current_thread() is threading.main_thread():
        for what in reversed(_ends.copy()):
            try:
                what()
            except Exception as error:
                say(f"at the end of the process: {type(error).__name__}: {error}")
        status = _status
    _leave(status)


def fail_at_end(status: int) -> None:
    """The process ends with this status, where the program itself ends well. `end_last` sees to it."""
    global _status
    _status = status


def end_last() -> None:
    """The last of all handlers at the end of the process: to be registered before any other."""
    if _status:
        end_process("", _status)


def say(line: str) -> None:
    """One line on standard error, in one write, so that other writers do not get in between."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or none at all
        sys.stderr.write(f"Prophet: {line}\n")
        sys.stderr.flush()


def end_process(line: str, status: int) -> NoReturn:
    """Ends the process, from any thread. What the program printed is kept; its exit handlers do not run.

    BytePS's own handler waits for the other workers, which is what cannot be done here. An empty line is not said.
    """
    if line:
        say(line)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    _leave(status)
