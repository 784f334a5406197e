"""Partition size for tensors that the program itself pushes with a priority.

Rule of this file: which tensors those are, and how all workers agree on one size for them. native/partitions.h makes
BytePS cut one tensor differently from another.

Programs that pass priorities do not wait for all averages at once (docs/decisions/partition-size.md). Neither does
BytePS's cross_barrier.py, but it passes no priorities: its gradients get priorities in forward order.

The size belongs to the job. If one worker cannot give sizes, no tensor has a size of its own. Only the first push of a
tensor decides whether it has one: a program passes the same arguments for a tensor on every worker.
"""

from __future__ import annotations

import functools
import inspect
import struct
import sys
from collections.abc import Callable, Iterable
from typing import Any

from prophet_byteps import agreement, hook
from prophet_byteps.agreement import PAGE_BYTES, Pages
from prophet_byteps.cutting import decider
from prophet_byteps.partition import Number
from prophet_scheduler.frontends.notices import logger

_PAGE = struct.Struct("<II")
"""Number of workers that can give sizes, and the size in bytes that the decider wants."""
_PAGE_NAME = "prophet.sizes"
_OURS = "prophet."
_PUSHES = ("_do_push_pull_async", "_do_push_pull_group_sync")
"""Functions that BytePS's public push functions call."""


class _Unsaid(int):
    """Priority that the program did not pass."""


_UNSAID = _Unsaid(0)


class OwnPushes:
    """Pushes of this process, through the module `ops` of byteps.torch."""

    def __init__(self, ops: Any) -> None:
        self.size = 0
        """Partition size in bytes; 0 while no tensor has a size of its own."""
        self._pushed: set[str | None] = set()
        self._forward: dict[str | None, int] = {}
        self._able = all(callable(getattr(ops, name, None)) for name in _PUSHES)
        if self._able:
            self._watch(ops)

    def _watch(self, ops: Any) -> None:
        for name in _PUSHES:
            setattr(ops, name, self._watched(getattr(ops, name)))
        for function in vars(ops).values():
            if inspect.isfunction(function) and not function.__name__.startswith("_"):
                _mark_default(function)

    def in_forward_order(self, names: Iterable[str]) -> None:
        """Give tensors with these names priorities in this order, if the program passes none."""
        self._forward.update({name: -(place + 1) for place, name in enumerate(names)})

    def agree(self, rank: int, workers: int, wanted: int) -> None:
        """Wait until all workers have reported whether they can give sizes, and take up the decider's size. `wanted` is
        that size in bytes, 0 on the other workers. Call it on all workers when BytePS has started or restarted.
        """
        group = agreement.active()
        assert group is not None
        loaded = hook.loaded()
        able = self._able and loaded is not None and loaded.sizes_apart
        pages = Pages(group.exchange, _PAGE_NAME)
        pages.declare()
        pages.send(_PAGE.pack(able, wanted).ljust(PAGE_BYTES, b"\0"))
        page = pages.receive("all workers to say how they cut tensors", f"this one is worker {rank}")
        count, size = _PAGE.unpack_from(page)
        self._pushed.clear()
        self.size = size if count == workers else 0
        if loaded is not None and self.size:
            loaded.turn_on_sizes()

    def _watched(self, push: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(push)
        def watched(
            tensor: Any, output: Any, average: Any, name: str | None, version: int = 0, priority: int = _UNSAID
        ) -> Any:
            if priority is _UNSAID:
                priority = self._forward.get(name, _UNSAID)
            if self.size and name not in self._pushed:
                self._pushed.add(name)
                loaded = hook.loaded()
                if loaded is not None and priority is not _UNSAID and not (name or "").startswith(_OURS):
                    loaded.give_size(f"byteps.{name or 'noname.0'}", self.size)
            return push(tensor, output, average, name, version, 0 if priority is _UNSAID else priority)

        return watched


def _mark_default(function: Any) -> None:
    """Make `_UNSAID` the function's default priority, which shows that the program passed none."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.name == "priority" for parameter in parameters):
        function.__defaults__ = tuple(
            _UNSAID if parameter.name == "priority" else parameter.default
            for parameter in parameters
            if parameter.default is not parameter.empty
        )


_active: OwnPushes | None = None


def agree(bps: Any, wanted: Callable[[], int]) -> int:
    """Return the partition size of all workers for pushes with a priority, in bytes; 0 leaves it to BytePS.

    `wanted` returns the decider's choice. Call this on all workers when BytePS has started or restarted.
    """
    global _active
    size = 0
    try:
        if _active is None:
            _active = OwnPushes(sys.modules.get(f"{bps.__name__}.ops"))
        number = Number.of(bps)
        if number is not None and bps.rank() == decider(bps.local_size()):
            size = number.rounded(wanted())
    except Exception as error:  # Go on, since the other workers wait for this one's answer.
        logger.warning("Prophet leaves BytePS's partitions as they are: %s: %s", type(error).__name__, error)
        _active = OwnPushes(None)
    _active.agree(bps.rank(), bps.size(), size)
    return _active.size


def in_forward_order(names: Iterable[str]) -> None:
    """Call OwnPushes.in_forward_order, if tensors have sizes of their own."""
    if _active is not None:
        _active.in_forward_order(names)
