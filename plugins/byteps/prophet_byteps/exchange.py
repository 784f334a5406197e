"""Pages of bytes through BytePS, and the workers' agreement at the start of a job.

Rule of this file: the edges of agreement.py in PyTorch, and the connection that everything waits for.

A page is a CPU tensor in both frameworks, even if gradients are on GPUs. BytePS uses the memory of a CPU tensor in
place and registers it with CUDA at its first push. So the tensor has memory pages to itself, at a fixed address.
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
from prophet_byteps.library import extension
from prophet_scheduler import plugins
from prophet_scheduler.frontends.ending import STALLED, WRONG

_CONNECT = "_ZN6byteps6common12BytePSGlobal11GetOrInitPSEv"
"""Function that BytePS calls before its first push. It returns when all workers and servers have connected, and at once
in a process that leaves the network to another process of its machine."""


class TorchExchange:
    """Pages through byteps.torch, as 32-bit integers: before 0.2.5 it has no type for bytes.

    The sums are the same, since no two workers write to the same integer.
    """

    def __init__(self, bps: Any) -> None:
        self._ops: Any = sys.modules[f"{bps.__name__}.ops"]
        self._pages: dict[str, Any] = {}
        self._open: set[int] = set()
        """Handles of pages whose sum nobody has taken."""
        self._gone: set[int] = set()
        """Handles that were open when the engine was suspended, and never complete."""

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
        page_sum: bytes | None = None

        def answer() -> bytes | None:
            nonlocal page_sum
            if page_sum is None and ops.poll(handle):
                ops.synchronize(handle)
                self._open.discard(handle)
                page_sum = bytes(tensor.numpy().tobytes())
            return page_sum

        return answer

    def under_way(self) -> bool:
        return any(map(self._is_under_way, set(self._ops._handle_map) - self._open - self._gone))

    def pages_under_way(self) -> bool:
        return any(map(self._is_under_way, set(self._open)))

    def _is_under_way(self, handle: int) -> bool:
        try:
            return not self._ops.poll(handle)
        except ValueError:  # The program has synchronized it meanwhile.
            return False

    def begin_anew(self) -> None:
        self._gone.update(self._ops._handle_map)
        self._open.clear()


def exchange_of(bps: Any, framework: str) -> PageExchange:
    """Return the page exchange of this BytePS module. For frameworks other than PyTorch a plugin provides it."""
    made: Callable[[Any], PageExchange] = (
        TorchExchange if framework == "torch" else plugins.load(plugins.EXCHANGES, framework)
    )
    return made(bps)


class EngineConnection:
    """Waits, in a thread, until the imported module's BytePS has connected to all workers and servers.

    `limited`: True if this process is the one that connects. The others' answers then follow within moments.
    """

    def __init__(self, bps: Any) -> None:
        self.done = threading.Event()
        self.limited = False
        function = getattr(ctypes.CDLL(str(extension(Path(bps.__file__).parent))), _CONNECT, None)
        if function is None:
            self.done.set()
            return
        function.restype = ctypes.c_void_p

        def connect() -> None:
            self.limited = function() is not None
            self.done.set()

        threading.Thread(target=connect, name="prophet-connect", daemon=True).start()


def agree_on_start(bps: Any, framework: str, text: str, stall_s: float | None) -> None:
    """Return when all workers have started with the same `text`. The process exits if they have not.

    Call it as soon as bps.init() has returned. Nothing else has been pushed by then, so workers that differ do no harm
    yet. BytePS itself waits for all workers, without a limit, but only at the first push. This waits in the same way;
    the time limit starts when all have connected.
    """
    group = Agreement(exchange_of(bps, framework), bps.rank(), bps.size())
    agreement.activate(group, stall_s)

    connection = EngineConnection(bps)
    what = "all workers and servers to start"
    there = agreement.wait(connection.done.is_set, what, stall_s)
    if there:
        group.propose(START, text)
        limit_s = START_LIMIT_S if connection.limited else stall_s
        if agreement.wait(lambda: group.settled(START), what, limit_s):
            return
        if connection.limited:
            line = f"not all workers run this Prophet: some have not answered {limit_s:g} s after all had connected"
            group.end(f"{line}; worker {bps.rank()}: {text}; start all with it, or none", WRONG)
    group.end(f"not all workers and servers had connected after {stall_s:g} s (PROPHET_STALL_S)", STALLED)


def refuse_to_start(bps: Any, framework: str, why: str) -> None:
    """Tell the other workers why this one exits, so that they do not wait for it. May block."""
    bps.init()
    group = Agreement(exchange_of(bps, framework), bps.rank(), bps.size(), end=lambda line, status: None)
    agreement.wait(EngineConnection(bps).done.is_set, "all workers")
    group.propose(START, f"cannot start: {why}")
    agreement.wait(lambda: group.settled(START), "all workers")


def renew(bps: Any) -> None:
    """Propose all topics again after an elastic resume, since a worker may have been replaced."""
    group = agreement.active()
    if group is not None:
        group.exchange.begin_anew()
        group.renew(bps.rank(), bps.size())
