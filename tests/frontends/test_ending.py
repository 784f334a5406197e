"""Tests of what runs before a process ends, and in which process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest

from prophet_scheduler.frontends.ending import raise_if_handlers

PROGRAM = """
import os
from prophet_scheduler.frontends.ending import at_end

at_end(lambda: print("second", os.getpid() == parent, flush=True))
at_end(lambda: print("first", os.getpid() == parent, flush=True))
parent = os.getpid()
child = os.fork()
if child:
    os.waitpid(child, 0)
    print("the fork has ended", flush=True)
"""


def test_a_fork_that_ends_does_nothing_of_what_its_parent_is_to_do() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.splitlines() == ["the fork has ended", "first True", "second True"]


LEAVES = """
import os, sys, threading
from prophet_scheduler.frontends.ending import at_end, fail_at_end

def fails():
    print("fails", flush=True)
    raise OSError("no such thing")

at_end(lambda: print("second", flush=True))
at_end(fails)
how = sys.argv[1]
if how == "well":
    os._exit(0)
elif how == "badly":
    os._exit(3)
elif how == "told":
    at_end(lambda: fail_at_end(1))
    os._exit(0)
thread = threading.Thread(target=os._exit, args=(0,))
thread.start()
thread.join()
"""


@pytest.mark.parametrize(
    ("how", "status", "printed"),
    [("well", 0, ["fails", "second"]), ("told", 1, ["fails", "second"]), ("badly", 3, []), ("thread", 0, [])],
)
def test_who_leaves_well_without_exit_handlers_does_what_is_to_be_done_first(
    how: str, status: int, printed: list[str]
) -> None:
    """multiprocessing ends its forks like this; a call in another thread or with another status runs nothing first."""
    done = subprocess.run([sys.executable, "-c", LEAVES, how], capture_output=True, text=True, timeout=240)
    assert done.returncode == status
    assert done.stdout.splitlines() == printed
    said = "Prophet: at the end of the process: OSError: no such thing\n"
    assert done.stderr == said * bool(printed)


class Told(Exception):
    """What the handler of these tests raises."""


@pytest.fixture
def handled() -> Iterator[None]:
    def handle(*_: Any) -> NoReturn:
        raise Told

    before = signal.signal(signal.SIGUSR2, handle)
    yield
    signal.signal(signal.SIGUSR2, before)


def failure(told: bool) -> Exception:
    try:
        if told:
            os.kill(os.getpid(), signal.SIGUSR2)
        raise ValueError("made for a test")
    except Exception as error:
        return error


def caused(cause: BaseException) -> Exception:
    """Return an error with this cause, as of an import of what is written in C."""
    try:
        raise ImportError("initialization failed") from cause
    except ImportError as error:
        return error


@pytest.mark.usefixtures("handled")
def test_what_a_signal_handler_has_raised_is_raised_again_and_nothing_else() -> None:
    raise_if_handlers(failure(told=False))
    raise_if_handlers(caused(failure(told=False)))
    for error in (failure(told=True), caused(failure(told=True))):
        with pytest.raises(Told):
            raise_if_handlers(error)
    with pytest.raises(KeyboardInterrupt):
        raise_if_handlers(caused(KeyboardInterrupt()))
