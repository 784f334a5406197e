"""A rough ride for a script under Prophet over FSDP2: blocks are small, and each comes after a time by chance, or not
before somebody waits.

Rule of this file: what makes a missing wait show, put in from outside, as rough.py does over DistributedDataParallel.
It is imported before a script starts. rough_counts.py says what Prophet did.
"""

from __future__ import annotations

import functools
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from rough_counts import count

from prophet_fsdp import takeover
from prophet_fsdp.order import ModuleOrder
from prophet_fsdp.rounds import ShardRounds
from prophet_fsdp.wire import Goes, Reduction, ShardTransfer, ShardWire
from prophet_scheduler.frontends.threads import OWN

MOST_S = 0.002
"""Longest time by which a block is late."""
HELD = 0.5
"""Share of blocks that come when somebody waits, at the earliest."""
BLOCK_BYTES = 2048

_chance = random.Random(int(os.environ.get("RANK", "0")))
_waited = threading.Event()
"""Set when somebody waits, or ends; clear again when a reduction begins."""


def _late(
    transfer: ShardTransfer, place: Callable[[], torch.Tensor], arrived: Callable[[torch.Tensor], Goes]
) -> tuple[Callable[[], torch.Tensor], Callable[[torch.Tensor], Goes]]:
    """Return the same block as it comes by way of another place, where it lies for a while."""
    target = place()

    def arrives(block: torch.Tensor) -> Goes:
        time.sleep(MOST_S * _chance.random())
        if _chance.random() < HELD and transfer.then is None:  # Other ranks wait for what follows.
            _waited.wait()
        with torch.inference_mode(target.is_inference()):
            target.copy_(block)
        return arrived(target)

    return functools.partial(torch.empty_like, target), arrives


def _slow() -> None:
    original: Any = vars(ShardWire)["_begin"]
    reduce: Any = vars(ShardWire)["reduce"]

    def begin(self: ShardWire, urgency: int, place: int, transfer: ShardTransfer, *args: Any) -> ShardTransfer:
        *others, comes = args
        late = [(other, block, *_late(transfer, *functions)) for other, block, *functions in comes]
        original(self, urgency, place, transfer, *others, late)
        return transfer

    def reduce_over_noise(self: ShardWire, output: torch.Tensor, *args: Any, **kwargs: Any) -> ShardTransfer:
        count("reduced")
        if not threading.current_thread().name.startswith(OWN):  # The program may wait while a later stage begins.
            _waited.clear()
        transfer: ShardTransfer = reduce(self, output.fill_(torch.nan), *args, **kwargs)
        return transfer

    ShardWire._begin = begin  # type: ignore[method-assign,assignment]
    ShardWire.reduce = reduce_over_noise  # type: ignore[method-assign,assignment]


def _notice_waits(name: str) -> None:
    original: Any = vars(ShardWire)[name]

    def noticed(*args: Any, **kwargs: Any) -> Any:
        _waited.set()
        return original(*args, **kwargs)

    setattr(ShardWire, name, noticed)


def _count() -> None:
    gathers, left, stepped = ModuleOrder.gathers, ShardRounds.left, ShardRounds.stepped

    def count_gathers(self: ModuleOrder, module: Any) -> None:
        count("gathered")
        state = module._get_fsdp_state()
        turn, (group,) = state._training_state, state._fsdp_param_groups
        count("ahead", group._training_state not in (turn, type(turn).IDLE))
        gathers(self, module)

    def count_late(self: ShardRounds, *args: Any) -> Reduction:
        reduction = left(self, *args)
        count("late", not reduction.there)
        return reduction

    def count_updates(self: ShardRounds) -> None:
        count("updates", sum(slot.life.pending for slot in self.slots))
        stepped(self)

    ModuleOrder.gathers = count_gathers  # type: ignore[method-assign]
    ShardRounds.left = count_late  # type: ignore[method-assign,assignment]
    ShardRounds.stepped = count_updates  # type: ignore[method-assign,assignment]


vars(takeover)["BLOCK_BYTES"] = BLOCK_BYTES
_slow()
for _name in ("wait", "wait_activity", "quiet", "close"):
    _notice_waits(_name)
_count()
