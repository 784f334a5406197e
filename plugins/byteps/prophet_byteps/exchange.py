"""Pages of bytes through BytePS, and the agreement on a job's start through them.

Rule of this file: the edges of agreement.py in PyTorch, and the connection that everything waits for.

A page is a CPU tensor in both frameworks, also where gradients are on GPUs: BytePS takes the memory of a CPU tensor as
it is and registers it with CUDA at its first push. Hence it has pages of the machine to itself, at a fixed address.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prophet_byteps import agreement
from prophet_byteps.agreement import PAGE_BYTES, START, START_LIMIT_S, Agreement, Answer, PageExchange
from prophet_scheduler import plugins
from prophet_scheduler.frontends.ending import STALLED, WRONG

_CONNECT = "_ZN6byteps6common12BytePSGlobal11GetOrInitPSEv"
"""Function that BytePS calls before its first push. It returns when all workers and servers are there, and at once in a
process that leaves the network to another one of its machine."""


class TorchExchange:
    """Pages through byteps.torch, as numbers of 32 bits: before 0.2.5 that knows no bytes.

    Their sums are the same, since two workers never write to the same number.
    """

    def __init__(self, bps: Any) -> None:
        self._ops: Any = sys.modules[f"{bps.__name__}.ops"]
        self._pages: dict[str, Any] = {}
        self._open: set[int] = set()
        """Handles of pages that nobody has taken."""
        self._gone: set[int] = set()
        """Handles that an engine which is gone has never given back."""

    def declare(self, name: str) -> None:
        self._ops.declare(name)

    def send(self, name: str, page: bytes) -> Answer:
        import torch

        if name not in self._pages:
            self._pages[name] = torch.frombuffer(mmap.mmap(-1, PAGE_BYTES), dtype=torch.int32)
        tensor = self._pages[name]
        tensor.copy_(torch.frombuffer(bytearray(page), dtype=torch.int32))
        ops = self._ops
        handle = ops.push_pull_async_inplace(tensor, average=False, name=name, priority=0)
        self._open.add(handle)

        def answer() -> bytes | None:
            if not ops.poll(handle):
                return None
            ops.synchronize(handle)
            self._open.discard(handle)
            return bytes(tensor.numpy().tobytes())

        return answer

    def under_way(self) -> bool:
        return any(map(self._is_under_way, set(self._ops._handle_map) - self._open - self._gone))

    def pages_under_way(self) -> bool:
        return any(map(self._is_under_way, set(self._open)))

    def _is_under_way(self, handle: int) -> bool:
        try:
            return not self._ops.poll(handle)
        except ValueError:  # The program has taken it meanwhile.
            return False

    def begin_anew(self) -> None:
        self._gone.update(self._ops._handle_map)
        self._open.clear()


def exchange_of(bps: Any, framework: str) -> PageExchange:
    """Return what carries pages through the imported module of BytePS. A plugin has that of another framework."""
    made: Callable[[Any], PageExchange] = (
        TorchExchange if framework == "torch" else plugins.load(plugins.EXCHANGES, framework)
    )
    return made(bps)


class EngineConnection:
    """Waits, in a thread, until BytePS has connected to all workers and servers.

    `limited`: this process is the one that connects, so from then on the others' answers take moments.
    """

    def __init__(self, library: Path) -> None:
        self.done = threading.Event()
        self.limited = False
        function = getattr(ctypes.CDLL(str(library)), _CONNECT, None)
        if function is None:
            self.done.set()
            return
        function.restype = ctypes.c_void_p

        def connect() -> None:
            self.limited = function() is not None
            self.done.set()

        threading.Thread(target=connect, name="prophet-connect", daemon=True).start()


def library_of(bps: Any) -> Path:
    """Return BytePS's extension of the imported module."""
    return next(Path(bps.__file__).parent.glob("c_lib*.so"))


def agree_on_start(bps: Any, framework: str, text: str, stall_s: float | None) -> None:
    """Return when all workers have started with the same `text`. The process ends where they have not.

    Call it when bps.init() has returned. Nothing else has been pushed then, so workers that differ do no harm yet.
    BytePS itself waits for all workers, as long as it takes, but only at the first push. This waits for them in the
    same way, and the limit begins when they are there.
    """
    group = Agreement(exchange_of(bps, framework), bps.rank(), bps.size())
    agreement.activate(group, stall_s)

    connection = EngineConnection(library_of(bps))
    what = "all workers and servers to start"
    there = agreement.wait(connection.done.is_set, what, stall_s)
    if there:
        group.propose(START, text)
        limit_s = START_LIMIT_S if connection.limited else stall_s
        if agreement.wait(lambda: group.settled(START), what, limit_s):
            return
        if connection.limited:
            line = (
                f"not all workers run this Prophet: not all have said with what within {limit_s:g} s of all being there"
            )
            group.end(f"{line}; worker {bps.rank()}: {text}; start all with it, or none", WRONG)
    group.end(f"not all workers and servers were there after {stall_s:g} s (PROPHET_STALL_S)", STALLED)


def refuse_to_start(bps: Any, framework: str, why: str) -> None:
    """Tell the other workers why this one ends, so that they do not wait for it. May block."""
    bps.init()
    group = Agreement(exchange_of(bps, framework), bps.rank(), bps.size(), end=lambda line, status: None)
    agreement.wait(EngineConnection(library_of(bps)).done.is_set, "all workers")
    group.propose(START, f"cannot start: {why}")
    agreement.wait(lambda: group.settled(START), "all workers")


def renew(bps: Any) -> None:
    """Propose all topics once more after an elastic resume, since a worker may have been replaced."""
    group = agreement.active()
    if group is not None:
        group.exchange.begin_anew()
        group.renew(bps.rank(), bps.size())
