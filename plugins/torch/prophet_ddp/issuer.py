"""The order in which all-reduces are issued: one for all ranks.

Rule of this file: from blocks that are ready to collectives of a process group, and back. It knows no gradient and no
module. rounds.py supplies the sequence, and agent.py chooses it.

Collectives match by the order in which they are issued, so every rank must issue the same ones in the same order. Each
round brings its *sequence*, a value that all ranks hold alike (control.py). An operation is issued when all before it
in the sequence have been issued, its data is ready on this rank, and what is in flight leaves room.

Why this cannot end in a deadlock. A rank waits only for operations of rounds that it has ended, all of whose data it
has made ready: for averages that it looks at or adds gradients to, for the page that such a round ends with, for the
parameters that other ranks used in it. (Every rank that begins the next round issues at once what a page announces.)
Ranks run one program, so they end the rounds of all modules in the same order. Suppose some operation never ends, and
take the first round in that order that has one. Every rank ends that round: one that does not would wait for an
operation of an earlier round, and these all end. So the data of all its operations is ready on all ranks, those before
it in the sequence have ended, or will, and leave room; each rank issues it, the operations match, and it ends. A rank
that is late delays it, and no more. The same holds for what the program sends itself, which goes through process groups
of its own.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from prophet_ddp.events import EventLog, Phase
from prophet_scheduler.forks import free_in_forks
from prophet_scheduler.frontends.torch.recording import keep_thread_state, shown, unrecorded
from prophet_scheduler.policies.algorithms.sequence import LEAST_AT_ONCE

if TYPE_CHECKING:
    from prophet_ddp.ddp_logger import IterationTimes


class JointOperation:
    """Operation of all ranks together. `start()` issues it and returns torch's Work; `then()` runs when it has ended,
    in a thread of torch's. `id` and `size_bytes` are those of its block, 0 bytes without one; `phase` is its part of an
    all-reduce. `coming`: its data is under way on a device, and becomes ready without any more work by the program.
    """

    def __init__(
        self,
        start: Callable[[], Any],
        id: int = 0,
        size_bytes: int = 0,
        then: Callable[[], None] | None = None,
        phase: Phase = Phase.BOTH,
    ) -> None:
        self.start = start
        self.phase = phase
        self.id = id
        self.size_bytes = size_bytes
        self.then = then
        self.ready = False
        self.coming = False
        self.done = False
        self.work: Any = None
        self.times: IterationTimes | None = None
        """Times of its iteration, where they are taken."""

    def __str__(self) -> str:
        return f"block {self.id} of {self.size_bytes} bytes" if self.size_bytes else "what ranks decide by"


class RankGroups:
    """A process group, and others of the same ranks, which all of them make together.

    `another(number)` makes one of those; None if there may be none. `closing` ends what else ends with the group.
    """

    def __init__(
        self,
        group: Any,
        another: Callable[[int], Any] | None = None,
        closing: Callable[[], None] | None = None,
    ) -> None:
        self._group = group
        self.another = another
        self.closing = closing
        self.apart: list[Any] = []
        """The others, by number; none before all ranks have made them."""

    def all_reduce(self, tensor: torch.Tensor) -> Any:
        """Return torch's Work of a sum over all ranks, in place."""
        return self._over(None).allreduce([tensor])

    def broadcast(self, tensor: torch.Tensor, root: int = 0, connection: int | None = None) -> Any:
        """Return torch's Work of a broadcast from rank `root`, in place."""
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
        """Return torch's Work of an exchange among all ranks. Each rank sends `sends[r]` elements of `input`, which lie
        in order of ranks, to rank r, and gets `receives[r]` of `output` from it.
        """
        options = dist.AllToAllOptions()
        return self._over(connection).alltoall_base(output, input, list(receives), list(sends), options)

    def all_gather(self, output: torch.Tensor, input: torch.Tensor) -> Any:
        """Return torch's Work that brings each rank's `input` to all ranks, which get them in order of ranks."""
        return self._over(None)._allgather_base(output, input)

    def _over(self, connection: int | None) -> Any:
        """Return the process group; with a number, the group of that number, made for it by all ranks together."""
        assert self._group is not None
        return self._group if connection is None else self.apart[connection]

    def close(self) -> None:
        """End the groups. Nothing may follow."""
        group, self._group = self._group, None
        if isinstance(group, dist.ProcessGroup):
            with contextlib.suppress(Exception):
                # Where the program has not destroyed all that torch.distributed knows itself.
                dist.destroy_process_group(group)
        del group
        self.apart.clear()
        if self.closing is not None:
            self.closing()


class Issuer:
    """Operations of one group of ranks. Safe to use from any thread; the lock is held for moments only.

    The first error ends it: nothing more is issued, since other ranks cannot know how far this one came.
    """

    def __init__(self, groups: RankGroups, log: EventLog) -> None:
        self.groups = groups
        self._log = log
        self._lock = threading.RLock()
        self._moved = free_in_forks(threading.Condition(self._lock))
        self._queue: deque[JointOperation] = deque()
        self._in_flight: set[JointOperation] = set()
        self.at_once = LEAST_AT_ONCE
        """Most operations under way. Ranks may differ in it: the sequence is the same."""
        self._issuing = False
        self._error: BaseException | None = None
        self._error_known = False
        self._seen: dict[int, int] = {}
        """Value of `_moves` at each thread's last look."""
        self._moves = 0
        self.ended = 0
        self.gone = False
        """True if its module is gone: nothing more is appended."""

    def connect_apart(
        self, rank: int, count: int, first: Callable[[], object], wait: Callable[[JointOperation], None]
    ) -> str:
        """Make `count` groups of the same ranks. All ranks do it, and first of all call `first()`.

        If one cannot, no rank has any, and the first line of why is returned. `wait(operation)` returns when it has
        ended.

        A rank that connects keeps Python from all threads of its process until the others connect too. So before each
        group all ranks come together, with everything issued that any of them waits for, and say if the step before it
        worked.
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
        """Append to the sequence; ready or not."""
        with self._lock:
            self._queue.extend(operations)
            self._issue()

    def put(self, start: Callable[[], Any]) -> JointOperation:
        """Append an operation without a block, with its data there."""
        operation = JointOperation(start)
        operation.ready = True
        self.append([operation])
        return operation

    def ready(self, operation: JointOperation) -> None:
        """Mark its data as there."""
        with self._lock:
            operation.ready = True
            self._issue()

    def tell(self) -> None:
        """Signal something else that a thread may wait for."""
        with self._lock:
            self._moves += 1
            self._moved.notify_all()

    def wait_activity(self, limit_s: float) -> None:
        """Return when an operation has ended or `tell` was called since this thread's last call, or after `limit_s`
        seconds.

        Raises the error of an operation.
        """
        thread = threading.get_ident()
        with self._lock:
            self._issue()  # An interrupt may have come before what was ready was issued.
            seen = self._seen.get(thread, 0)
            self._moved.wait_for(lambda: self._moves != seen or self._error is not None, limit_s)
            self._seen[thread] = self._moves
            self._raise_error()

    def quiet(self, patience_s: float | None = None) -> bool:
        """Wait until all operations that this rank can issue are back. False if nothing moved for `patience_s`.

        Operations that wait for data of this rank stay. Raises an operation's error, unless someone was told of it.
        """
        with self._lock:
            self._issue()
            while self._error is None and (self._in_flight or (self._queue and self._may_go(self._queue[0]))):
                before = self.ended
                if not self._moved.wait_for(lambda: self.ended != before or self._error is not None, patience_s):  # noqa: B023
                    return False
            if not self._error_known:
                self._raise_error()
            return True

    @staticmethod
    def _may_go(operation: JointOperation) -> bool:
        return operation.ready or operation.coming

    def still(self, limit_s: float) -> bool:
        """Wait until torch has nothing in hand that it would call back for, well or with an error."""
        with self._lock:
            return self._moved.wait_for(lambda: not self._in_flight, limit_s)

    @property
    def over(self) -> bool:
        """True if its module is gone and everything ever appended has ended."""
        with self._lock:
            return self.gone and not self._queue and not self._in_flight

    @property
    def error(self) -> BaseException | None:
        """Return the error that ended it; None if there is none."""
        return self._error

    def error_is_known(self) -> None:
        """Note that the program has had an error for the same peer."""
        self._error_known = True

    def close(self) -> None:
        """End the groups' threads, which must not come back to Python when it is no more. Nothing may follow."""
        self.groups.close()

    def fail(self, error: BaseException) -> None:
        """Issue nothing more, and raise this error in all that wait. The first one counts: it causes the others."""
        with self._lock:
            if self._error is None:
                self._error = error
            self._moved.notify_all()

    def _raise_error(self) -> None:
        if self._error is not None:
            self._error_known = True
            raise self._error

    def _issue(self) -> None:
        if self._issuing:
            return  # An operation that ended as soon as it began: the loop below goes on with the next.
        self._issuing = True
        try:
            while self._queue and self._queue[0].ready and len(self._in_flight) < self.at_once and self._error is None:
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
            # Also where the program is interrupted: nobody knows whether other ranks will ever see this operation.
            self.fail(error)
            if operation.work is None:
                self._in_flight.discard(operation)
            elif not isinstance(error, Exception):
                self._call_back(operation)  # torch may not have been asked yet.
            if not isinstance(error, Exception):
                self.error_is_known()
                raise

    def _call_back(self, operation: JointOperation) -> None:
        # No frame of Python's before that of `_ended`: torch may call it here, and swallows a Ctrl-C on the way.
        operation.work.get_future().add_done_callback(functools.partial(self._ended, operation))

    def _ended(self, operation: JointOperation, future: Any) -> None:
        """Handle its end, in a thread of torch's or the issuing one. torch swallows what is raised here, Ctrl-C too."""
        try:
            keep_thread_state()
            if vars(operation).pop("start", None) is None:
                return  # torch was asked twice.
            now = time.monotonic()
            error: BaseException | None = None
            try:
                future.value()
                if operation.then is not None:
                    with unrecorded():  # by an observer that the program may take away meanwhile
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
                # What they hold may hold it, and is not to wait for the garbage collector.
                del operation.then
                if operation.size_bytes:
                    self._log.finished(operation.id, operation.size_bytes, now, operation.phase)
                    if operation.times is not None:
                        operation.times.finished()
                self._issue()
                self._moved.notify_all()
        except BaseException as what:
            self.fail(what)
