"""torch's own communication hooks that Prophet applies: element by element, or bucket by bucket.

Rule of this file: which hooks these are, and how each is applied. The result is torch's, bit for bit. Reasons:
docs/decisions/hooks-with-buckets.md.

Element by element means, as in torch's default_hooks: round gradients to the smaller type, if there is one, divide them
in that type by the number of ranks, sum, and convert back. Any other hook is called with torch's buckets, in the same
layout and order, within backward: its state may depend on that. Its collectives are held until the bucket's turn in the
sequence of blocks (issuer.py). It may send a second one that depends on the result of the first, so a bucket has a
*lane* (a process group) to itself until its hook is done. Ranks agree on the buckets of each lane and their order.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from prophet_ddp.arena import DdpArena
from prophet_ddp.events import EventLog
from prophet_ddp.issuer import Issuer, JointOperation
from prophet_scheduler.core.cut import Borders
from prophet_scheduler.frontends.threads import OWN
from prophet_scheduler.frontends.torch.arena import ArenaBlock
from prophet_scheduler.frontends.torch.recording import keep_thread_state, unrecorded
from prophet_scheduler.frontends.torch.slot import Slot
from prophet_scheduler.frontends.torch.streams import Streams

Future = torch.futures.Future


@dataclass(frozen=True)
class CommHook:
    """Application of a hook of torch. `half`: type to which gradients are rounded before the division; None for their
    own type. `by_bucket`: the result depends on torch's buckets.
    """

    half: torch.dtype | None = None
    by_bucket: bool = False


KNOWN: Mapping[Any, CommHook] = {
    default_hooks.allreduce_hook: CommHook(),
    default_hooks.fp16_compress_hook: CommHook(torch.float16),
    default_hooks.bf16_compress_hook: CommHook(torch.bfloat16),
}
_WRAPPED: Mapping[str, torch.dtype] = {
    default_hooks.fp16_compress_wrapper.__name__: torch.float16,
    default_hooks.bf16_compress_wrapper.__name__: torch.bfloat16,
}
_MODULES = frozenset(
    f"torch.distributed.algorithms.ddp_comm_hooks.{name}"
    for name in ("debugging_hooks", "default_hooks", "post_localSGD_hook", "powerSGD_hook")
)
"""Modules of torch whose hooks are done when their future is. quantization_hooks fail over gloo, with or without
Prophet: they expect the lists of lists that NCCL returns."""


def known(hook: Any) -> CommHook | None:
    """Return how Prophet applies this hook; None if it cannot."""
    plain = next((how for function, how in KNOWN.items() if function is hook), None)
    if plain is not None or getattr(hook, "__module__", None) not in _MODULES:
        return plain
    wrapped = [known(cell.cell_contents) for cell in getattr(hook, "__closure__", None) or ()]
    if None in wrapped:
        return None
    half = _WRAPPED.get(hook.__qualname__.partition(".")[0])
    if half is not None and wrapped == [CommHook()]:
        return CommHook(half)  # Element by element, too.
    return CommHook(by_bucket=True)


def group_of(state: Any) -> Any:
    """Return the process group in which a known hook with this state averages; the default group if none is named."""
    group = getattr(state, "process_group", state)
    return group if isinstance(group, dist.ProcessGroup) else dist.group.WORLD


@dataclass
class Buckets:
    """Buckets of one module, and the `hook` that averages them, with its `state`: it returns the future of a bucket's
    averages, shape [elements]. `rebuild(order)` returns torch's buckets for gradients that are generated in this order,
    as lists of registered parameters by number.
    """

    hook: Callable[[Any, Any], Future[torch.Tensor]]
    state: Any
    rebuild: Callable[[list[int]], Sequence[Sequence[int]]]
    rebuilt: bool = False
    """True once the buckets follow the order in which gradients are generated."""

    def arena(
        self,
        registered: Sequence[Slot],
        slots: Sequence[Slot],
        streams: Callable[[Any], Streams],
        issuer: Issuer,
        log: EventLog,
    ) -> BucketArena:
        """Return the arena of these `slots`: in order of registration at first, in forward order once rebuilt."""
        if self.rebuilt:
            numbers = {slot: number for number, slot in enumerate(registered)}
            buckets = self.rebuild([numbers[slot] for slot in reversed(slots)])
        else:  # Before its first backward pass torch has one bucket for each type.
            params = [slot.param for slot in registered]
            assign: Any = vars(dist)["_compute_bucket_assignment_by_size"]
            buckets = assign(params, [sys.maxsize], [False] * len(params))[0][::-1]
        bundles = [[registered[number].place for number in bucket] for bucket in buckets]
        return BucketArena(slots, bundles, streams, issuer, log, self._call)

    def _call(self, bucket: Bucket, group: HeldGroup) -> Future[torch.Tensor]:
        with torch.no_grad(), _with_group(self.state, group) as state:
            return self.hook(state, bucket)


class BucketArena(DdpArena):
    """Arena whose blocks are torch's buckets. `bundles` has the places of each bucket's gradients, in torch's order.
    `call` calls the hook.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        bundles: Sequence[Sequence[int]],
        streams: Callable[[Any], Streams],
        issuer: Issuer,
        log: EventLog,
        call: Callable[[Bucket, HeldGroup], Future[torch.Tensor]],
    ) -> None:
        super().__init__(slots, True, streams, issuer, log, bundles=bundles)
        self._bundles = bundles
        self._call = call
        self._lanes = [_Lane(group) for group in issuer.groups.apart]
        self._averages: dict[ArenaBlock, _Average] = {}
        self._to_call: list[ArenaBlock] = []
        """This round's blocks that the hook has yet to be called with, in reverse of torch's order."""

    @property
    def whole(self) -> Borders:
        """The cut whose blocks are the buckets."""
        return Borders.at((), sum(self.sizes))

    def operations(self, collectives: Iterable[Sequence[int]]) -> list[JointOperation]:
        self._averages = {}
        numbered = {self.kinds[block.slots[0].place]: block for block in self.blocks}
        self._to_call = [numbered[number] for number in reversed(range(len(numbered)))]
        return super().operations(collectives)

    def _operation(self, blocks: Sequence[ArenaBlock]) -> JointOperation:
        (block,) = blocks
        lane = self._lanes[len(self._averages) % len(self._lanes)]
        average = self._averages[block] = _Average(block.data, lane)
        return JointOperation(average.begin, block.id, block.data.nbytes)

    def _send(self, block: ArenaBlock) -> JointOperation:
        self._log.added(block.id, block.data.nbytes, time.monotonic())
        while self._to_call and not self._to_call[-1].missing:
            complete = self._to_call.pop()
            number, count = len(self._bundles) - len(self._to_call) - 1, len(self._bundles)
            params = [self.slots[place].param for place in self._bundles[number]]
            average = self._averages[complete]
            average.future = self._call(Bucket(number, number == count - 1, complete.data, params), average.group)
            self._issuer.ready(self._operations[complete])
        return self._operations[block]


class Bucket:
    """Bucket as a hook sees it: stands in for torch.distributed.GradBucket, which Python cannot construct. `buffer` has
    its gradients, one after another, shape [elements].
    """

    def __init__(self, number: int, is_last: bool, buffer: torch.Tensor, parameters: list[torch.Tensor]) -> None:
        self._number, self._is_last = number, is_last
        self._buffer, self._parameters = buffer, parameters

    def index(self) -> int:
        """Return the bucket's number in torch's order."""
        return self._number

    def is_last(self) -> bool:
        return self._is_last

    def buffer(self) -> torch.Tensor:
        return self._buffer

    def set_buffer(self, buffer: torch.Tensor) -> None:
        self._buffer = buffer

    def parameters(self) -> list[torch.Tensor]:
        return self._parameters

    def gradients(self) -> list[torch.Tensor]:
        """Return views of the buffer, one for each parameter and in its shape."""
        parts = self._buffer.split([param.numel() for param in self._parameters])
        return [part.view(param.shape) for part, param in zip(parts, self._parameters, strict=True)]


class HeldGroup:
    """Process group as a hook sees it: it holds collectives back until `begin`."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self._held: list[Callable[[], None]] | None = []

    def size(self) -> int:
        return int(self._group.size())

    def rank(self) -> int:
        return int(self._group.rank())

    def allreduce(self, *args: Any) -> Promise:
        """Issue or hold an all-reduce, with the arguments of ProcessGroup.allreduce."""
        promise = Promise()

        def issue() -> None:
            with unrecorded():
                work = self._group.allreduce(*args)
            work.get_future().add_done_callback(functools.partial(_ended, promise))

        if self._held is None:
            issue()
        else:
            self._held.append(issue)
        return promise

    def begin(self) -> None:
        """Issue the held collectives, and hold no more. Call it after the hook has returned."""
        held, self._held = self._held or [], None
        for issue in held:
            issue()


class Promise:
    """Stand-in for torch.distributed.Work whose result another thread supplies."""

    def __init__(self) -> None:
        self._future: Future[Any] = Future()

    def get_future(self) -> Future[Any]:
        return self._future

    def settle(self, make: Callable[[], Any]) -> None:
        """Complete with the result of `make()`, or with its error."""
        try:
            result = make()
        except Exception as error:
            self._future.set_exception(error)  # type: ignore[no-untyped-call]
        else:
            self._future.set_result(result)


def _ended(promise: Promise, future: Future[Any]) -> None:
    """Handle the end of a collective, in a thread of torch's."""
    keep_thread_state()
    promise.settle(future.value)


@dataclass
class _Lane:
    """Process group that serves one bucket at a time. `last`: end of the newest bucket that was given to it."""

    group: Any
    last: Promise | None = None


class _Average:
    """Average of one bucket in one round: `data`, sent over `lane`. `future` is the hook's."""

    def __init__(self, data: torch.Tensor, lane: _Lane) -> None:
        self._data = data
        self._lane = lane
        self.group = HeldGroup(lane.group)
        self.future: Future[torch.Tensor] | None = None

    def begin(self) -> Promise:
        """Start once the lane is free. Return a Work that ends with everything the hook does."""
        ended = Promise()
        before, self._lane.last = self._lane.last, ended
        # What a hook does between two collectives blocks a thread, which must not be one of the program's.
        run = functools.partial(ended.settle, functools.partial(self._bring, before))
        threading.Thread(target=run, name=f"{OWN}bucket", daemon=True).start()
        return ended

    def _bring(self, before: Promise | None) -> None:
        if before is not None:
            before.get_future().wait()
        self.group.begin()
        assert self.future is not None
        result = self.future.wait()
        if result.data_ptr() != self._data.data_ptr():
            with torch.no_grad():
                self._data.copy_(result.view(-1)[: self._data.numel()])


@contextlib.contextmanager
def _with_group(state: Any, group: HeldGroup) -> Iterator[Any]:
    """Put this group into a hook's state within the context; without a group in the state, the group replaces it."""
    if not hasattr(state, "process_group"):
        yield group
        return
    own, state.process_group = state.process_group, group
    try:
        yield state
    finally:
        state.process_group = own
