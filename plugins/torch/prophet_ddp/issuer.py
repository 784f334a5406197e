"""The order in which all-reduces are issued: one order for all ranks.

Rule of this file: from ready blocks to collectives of a process group, and back. It knows no gradients and no modules.
rounds.py supplies the sequence, and agent.py chooses it.

Collectives match by the order in which they are issued, so every rank must issue the same ones in the same order. Each
round brings its *sequence*, which is alike on all ranks (control.py). An operation is issued once all operations before
it in the sequence have been issued, its data is ready on this rank, and there is room in flight.

Why this cannot deadlock. A rank waits only for operations of rounds that it has ended, so it has made all their data
ready. Ranks run one program, so they end the rounds of all modules in the same order. Take the first round with an
operation that never ends. Every rank ends that round, since all operations of earlier rounds end. So all its data is
ready on all ranks, and the operations before ours end and leave room. So each rank issues ours, and it ends. A late
rank delays it, but no more than that. The program's own collectives use other process groups.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from prophet_ddp.events import EventLog, Phase
from prophet_scheduler.forks import free_in_forks
from prophet_scheduler.frontends.torch.recording import keep_thread_state, shown, unrecorded
from prophet_scheduler.policies.algorithms.sequence import LEAST_AT_ONCE

if TYPE_CHECKING:
    from prophet_ddp.ddp_logger import IterationTimes


@dataclass(eq=False)
class JointOperation:
    """Operation of all ranks together. `start()` issues it and returns torch's Work; `then()` runs once it has ended,
    in a thread of torch's. `id` and `size_bytes` are its block's; 0 bytes without a block. `phase` is its part of an
    all-reduce. `coming`: a device is producing its data, which becomes ready without more work by the program.
    """

    start: Callable[[], Any]
    id: int = 0
    size_bytes: int = 0
    then: Callable[[], None] | None = None
    phase: Phase = Phase.BOTH
    ready: bool = False
    coming: bool = False
    done: bool = False
    work: Any = None
    times: IterationTimes | None = None
    """Times of its iteration; None if that is not timed."""

    def __str__(self) -> str:
        return f"block {self.id} of {self.size_bytes} bytes" if self.size_bytes else "data that ranks agree on"


@dataclass(eq=False)
class RankGroups:
    """A process `group`, and further groups of the same ranks, `apart` from it: by number, none until all ranks have
    made them.

    `another(number)` makes a further one, on all ranks together; None if there can be none. `closing` releases what
    ends together with the group.
    """

    group: Any
    another: Callable[[int], Any] | None = None
    closing: Callable[[], None] | None = None
    apart: list[Any] = field(default_factory=list)

    def all_reduce(self, tensor: torch.Tensor) -> Any:
        """Start a sum over all ranks, in place. Return torch's Work."""
        return self._over(None).allreduce([tensor])

    def broadcast(self, tensor: torch.Tensor, root: int = 0, connection: int | None = None) -> Any:
        """Start a broadcast from rank `root`, in place. Return torch's Work."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        return self._over(connection).broadcast([tensor], options)

    def all_to_all(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        receives: Sequence[int],
        sends: Sequence[int],
        connection: int | None = None,
    ) -> Any:
        """Start an exchange among all ranks, and return torch's Work. Each rank sends `sends[r]` elements of `input` to
        rank r, and receives `receives[r]` elements of `output` from it; both tensors are in the order of ranks.
        """
        options = dist.AllToAllOptions()
        return self._over(connection).alltoall_base(output, input, list(receives), list(sends), options)

    def all_gather(self, output: torch.Tensor, input: torch.Tensor) -> Any:
        """Start to gather each rank's `input` on all ranks, in the order of ranks. Return torch's Work."""
        return self._over(None)._allgather_base(output, input)

    def _over(self, connection: int | None) -> Any:
        """Return the process group; with a number, the further group of that number."""
        assert self.group is not None
        return self.group if connection is None else self.apart[connection]

    def close(self) -> None:
        """Close the groups: their threads must not call into a Python that is gone. Nothing may follow."""
        group, self.group = self.group, None
        if isinstance(group, dist.ProcessGroup):
            with contextlib.suppress(Exception):
                # Needed if the program has not destroyed everything that torch.distributed knows.
                dist.destroy_process_group(group)
        del group
        self.apart.clear()
        if self.closing is not None:
            self.closing()


class Issuer:
    """Operations of one group of ranks. Thread-safe; the lock is held for moments only.

    The first error stops it: nothing more is issued, since other ranks cannot know how far this one got.
    """

    def __init__(self, groups: RankGroups, log: EventLog) -> None:
        self.groups = groups
        self._log = log
        self._lock = threading.RLock()
        self._moved = free_in_forks(threading.Condition(self._lock))
        self._queue: deque[JointOperation] = deque()
        self._in_flight: set[JointOperation] = set()
        self.at_once = LEAST_AT_ONCE
        """Maximum number of operations in flight. It may differ between ranks: the sequence does not."""
        self._issuing = False
        self.error: BaseException | None = None
        """The error that stopped it; None if there is none."""
        self._error_known = False
        self._seen: dict[int, int] = {}
        """Value of `_moves` when each thread last looked, by thread id."""
        self._moves = 0
        self.ended = 0
        self.gone = False
        """True once its module is gone: nothing more is appended."""

    def connect_apart(
        self, rank: int, count: int, first: Callable[[], object], wait: Callable[[JointOperation], None]
    ) -> str:
        """Make `count` further groups of the same ranks. All ranks call this, and call `first()` before the first one.

        If any rank fails, no rank has the groups, and the first line of the reason is returned. `wait(operation)`
        returns once the operation has ended.

        A rank that connects blocks all Python threads of its process until the others connect too. So before each group
        all ranks meet, after issuing everything that any of them waits for, and report if the last step worked.
        """
        make = self.groups.another
        assert make is not None
        groups: list[Any] = []
        steps = [first, *(lambda number=number: groups.append(make(number)) for number in range(count))]
        why = ""
        for step in steps:
            try:
                step()
            except Exception as error:
                (said, *_) = str(error).splitlines() or [type(error).__name__]
                why = said if said.startswith("rank ") else f"rank {rank} cannot: {said}"
            without = torch.tensor([bool(why)], dtype=torch.int32, device="cpu")
            wait(self.put(functools.partial(self.groups.all_reduce, without)))
            if without.item():
                return why or "another rank cannot connect"
        self.groups.apart = groups
        return ""

    def append(self, operations: list[JointOperation]) -> None:
        """Append to the sequence, ready or not."""
        with self._lock:
            self._queue.extend(operations)
            self._issue()

    def put(self, start: Callable[[], Any]) -> JointOperation:
        """Append an operation that has no block, and whose data is ready."""
        operation = JointOperation(start, ready=True)
        self.append([operation])
        return operation

    def ready(self, operation: JointOperation) -> None:
        """Mark the operation's data as ready."""
        with self._lock:
            operation.ready = True
            self._issue()

    def tell(self) -> None:
        """Signal some other event that a thread may wait for."""
        with self._lock:
            self._moves += 1
            self._moved.notify_all()

    def wait_activity(self, limit_s: float) -> None:
        """Return once an operation has ended or `tell` was called since this thread's last call, or after `limit_s`
        seconds.

        Raises an operation's error.
        """
        thread = threading.get_ident()
        with self._lock:
            self._issue()  # An interrupt may have kept a ready operation from being issued.
            seen = self._seen.get(thread, 0)
            self._moved.wait_for(lambda: self._moves != seen or self.error is not None, limit_s)
            self._seen[thread] = self._moves
            self._raise_error()

    def quiet(self, patience_s: float | None = None) -> bool:
        """Wait until all operations that this rank can issue have ended. False if nothing moved for `patience_s`.

        Operations that lack data of this rank stay. Raises an operation's error, unless the program already knows it.
        """
        with self._lock:
            self._issue()
            while self.error is None and (self._in_flight or self._goes_on()):
                before = self.ended
                if not self._moved.wait_for(lambda: self.ended != before or self.error is not None, patience_s):  # noqa: B023
                    return False
            if not self._error_known:
                self._raise_error()
            return True

    def _goes_on(self) -> bool:
        return bool(self._queue) and (self._queue[0].ready or self._queue[0].coming)

    def still(self, limit_s: float) -> bool:
        """Wait until torch has no operation left that it would call back for. False after `limit_s` seconds."""
        with self._lock:
            return self._moved.wait_for(lambda: not self._in_flight, limit_s)

    @property
    def over(self) -> bool:
        """True if its module is gone and everything that was appended has ended."""
        with self._lock:
            return self.gone and not self._queue and not self._in_flight

    def error_is_known(self) -> None:
        """Record that the program has already had an error about the same peer."""
        self._error_known = True

    def fail(self, error: BaseException) -> None:
        """Issue nothing more, and raise this error in all waiting threads. The first error counts: it causes others."""
        with self._lock:
            if self.error is None:
                self.error = error
            self._moved.notify_all()

    def _raise_error(self) -> None:
        if self.error is not None:
            self._error_known = True
            raise self.error

    def _issue(self) -> None:
        if self._issuing:
            return  # The operation ended within its start: the loop below goes on with the next.
        self._issuing = True
        try:
            while self._queue and self._queue[0].ready and len(self._in_flight) < self.at_once and self.error is None:
                self._issue_first()
        finally:
            self._issuing = False

    def _issue_first(self) -> None:
        operation = self._queue[0]
        try:
            self._in_flight.add(operation)
            self._queue.popleft()
            if operation.size_bytes:
                self._log.started(operation.id, operation.size_bytes, time.monotonic(), operation.phase)
                if operation.times is not None:
                    operation.times.started()
            with shown("Prophet sends", operation), unrecorded():
                operation.work = operation.start()
            self._call_back(operation)
        except BaseException as error:
            # Interrupts included: nobody knows whether other ranks will ever see this operation.
            self.fail(error)
            if operation.work is None:
                self._in_flight.discard(operation)
            elif not isinstance(error, Exception):
                self._call_back(operation)  # The callback may not have been added yet.
            if not isinstance(error, Exception):
                self.error_is_known()
                raise

    def _call_back(self, operation: JointOperation) -> None:
        # No Python frame may come before `_ended`'s: torch may call it here, and would swallow a Ctrl-C before it.
        operation.work.get_future().add_done_callback(functools.partial(self._ended, operation))

    def _ended(self, operation: JointOperation, future: Any) -> None:
        """Handle an operation's end, in a thread of torch's or the issuing one. torch swallows errors, even Ctrl-C."""
        try:
            keep_thread_state()
            if vars(operation).pop("start", None) is None:
                return  # The callback was added twice.
            now = time.monotonic()
            error: BaseException | None = None
            try:
                future.value()
                if operation.then is not None:
                    with unrecorded():  # The program may stop its profiler meanwhile.
                        operation.then()
            except BaseException as what:
                error = what
            with self._lock:
                self._in_flight.discard(operation)
                operation.work = None
                if error is not None:
                    self.fail(error)
                    return
                self.ended += 1
                self._moves += 1
                operation.done = True
                # They may refer back to the operation, which should not have to wait for the garbage collector.
                del operation.then
                if operation.size_bytes:
                    self._log.finished(operation.id, operation.size_bytes, now, operation.phase)
                    if operation.times is not None:
                        operation.times.finished()
                self._issue()
                self._moved.notify_all()
        except BaseException as what:
            self.fail(what)
