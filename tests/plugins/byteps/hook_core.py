"""The program of a case of the native hook, on a stand-in for BytePS's core: what hook_cases.py and hook_plan_cases.py
share.

    hook_cases.py CASE CORE.so

Rule of this file: the core's side of the conversation. A hook takes over functions of its process for good, so nothing
is loaded before a case is asked for.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from prophet_byteps.hook import Hook
from prophet_byteps.library import inspect_library

REDUCE, COPY, PUSH, PULL, BROADCAST = 1, 2, 6, 7, 11
"""Stages of BytePS, as they are numbered since 0.2.5."""
WITHOUT_STAGES, SANE, WITH_ANOTHER_NAME = range(3)
"""Arguments of a task (core_add_push of fake_core.cc)."""
NEVER_S = 1e6
"""The watchdog's limit: none, however slow the machine."""


def key(gradient: int, partition: int = 0) -> int:
    return gradient << 16 | partition


class Core:
    """tests/native/fake_core.cc: a test is its loops, its other GPUs, and its network."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.core_get.restype = ctypes.c_int64
        library.core_add_push.argtypes = [ctypes.c_uint64, ctypes.c_int, ctypes.c_uint, ctypes.c_int]
        library.core_not_ready.argtypes = [ctypes.c_uint64]
        library.core_add.argtypes = [ctypes.c_int, ctypes.c_uint64, ctypes.c_int]
        library.core_add_barrier.argtypes = [ctypes.c_uint64]
        library.core_asked.restype = ctypes.c_long
        self.start, self.stop = library.core_start, library.core_stop
        self.finish, self.lose = library.core_finish, library.core_lose
        """The last task that the stage got is acknowledged, and goes on to its next stage; or never is."""
        self.transfer = library.core_transfer
        """Push and pull that many tasks, one after another."""
        self.ready, self.all_have_it = library.core_ready, library.core_all_have_it
        """The other GPUs have done their part of all gradients; all workers push the tensor `waits`."""
        self.alive, self.asked = library.core_alive, library.core_asked
        """Number of tasks that somebody refers to, and of times that the hook has asked if a task is ready."""
        self.waiting = library.core_waiting
        """Number of threads in a first push of the tensor `waits`, which waits for all workers."""
        self.visit_python = library.core_visit_python
        """Have a thread of its own come to Python and leave it so many times; returns at once."""

    def add(self, *gradients: int, partition: int = 0, priority: int | None = None, sane: int = SANE) -> None:
        """A partition of each gradient comes to PUSH, with the priority of a front end; `sane`: as BytePS makes it."""
        for gradient in gradients:
            own = -gradient - 1 if priority is None else priority
            self._library.core_add_push(key(gradient, partition), own, 100, sane)

    def add_barrier(self, gradient: int) -> None:
        """A barrier comes to PUSH, as on one machine without servers, where no PULL follows."""
        self._library.core_add_barrier(key(gradient))

    def add_at(self, stage: int, task: int, *, later: bool = False) -> None:
        """A task comes to any stage, by its key; `later`: when the hook is about to wait for one."""
        self._library.core_add(stage, task, later)

    def get(self, stage: int) -> int:
        """Return the key of the task that the stage's loop gets in one turn, or -1."""
        return int(self._library.core_get(stage))

    def gradient(self, stage: int) -> int:
        """Return the gradient of that task, or -1."""
        return self.get(stage) >> 16

    def drain(self, stage: int) -> list[int]:
        """Return the gradients that the stage's loop gets until there is none."""
        gradients = []
        while (task := self.get(stage)) >= 0:
            gradients.append(task >> 16)
        return gradients

    def not_ready(self, gradient: int) -> None:
        """Another GPU has yet to do its part of the gradient."""
        self._library.core_not_ready(key(gradient))

    def push(self, name: str, size: int) -> int:
        """Push a tensor as a program does. Return its number of partitions, -1 if that differs from its first push."""
        return int(self._library.core_push(f"byteps.{name}".encode(), size))


Case = Callable[[Hook, Core], None]
CASES: dict[str, Case] = {}
"""Cases by name."""


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def cases_of(module: ModuleType) -> list[str]:
    return [name for name in CASES if hasattr(module, name)]


def main(name: str, core: str) -> None:
    library = inspect_library(Path(core))
    hook = Hook.load()
    byteps = Core(ctypes.CDLL(core))
    hook.attach(library, NEVER_S)
    byteps.start()
    CASES[name](hook, byteps)
    print(f"{name} holds")
