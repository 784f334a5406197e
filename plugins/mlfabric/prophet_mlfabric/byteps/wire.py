"""BytePS's asynchronous servers for the PyTorch front end, and the optimizer that a program gets there.

Rule of this file: what BytePS is told and when. prophet_mlfabric/torch/asynchronous.py has the rounds.

Here a push is only a push and a pull only a pull (PUSH_ONLY, PULL_ONLY of the hook), so a dropped update pushes
nothing. An update begins and ends with a word that the server understands, which applies it as a whole
(docs/corrections.md, Mixing). The first is acknowledged before any block leaves, and the last leaves when all blocks
are acknowledged, so no order of transfers can part them.

Every worker must push a key for the first time before BytePS lets any go on, so all keys are opened together at the
start. From then on an asynchronous server answers without any other worker. So if nothing is answered for long the
server itself is gone: stall.py says when, and the process ends if so asked.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from prophet_byteps.hook import PULL_ONLY, PUSH_ONLY, progress, wait_activity
from prophet_byteps.stall import StallDetector, Verdict
from prophet_mlfabric.byteps.replica import parameters_of
from prophet_mlfabric.client import CoordinatorClient
from prophet_mlfabric.torch.asynchronous import AsynchronousRounds
from prophet_mlfabric.torch.weight_blocks import WeightBlocks
from prophet_scheduler.core.cut import MOST_BLOCK_BYTES
from prophet_scheduler.core.settings import STALL_S
from prophet_scheduler.forks import free_in_forks
from prophet_scheduler.frontends.ending import STALLED, end_process
from prophet_scheduler.frontends.torch.optimizer import methods_of

BLOCK_BYTES = 512 * 1024
"""Bytes of weights in a block, unless the user sets them. An update waits for all of its blocks, so they are large
enough that messages cost little."""
BEGINS, ENDS = 0x50524F5048455442, 0x50524F5048455445
"""Words around an update: PROPHETB and PROPHETE. build/edits/corrections.toml has the same."""
MOST_OPENING = 128
"""Most keys opened at once: for each BytePS has a thread until all workers have opened it."""
WAIT_S = 0.002
ASK_S = 0.01
"""Seconds between two questions to the server."""
LOOK_S = 0.5
"""Seconds between two checks that anything moves, while a transfer is waited for."""

logger = logging.getLogger("prophet_scheduler")
_numbers, _broadcasts = itertools.count(), itertools.count()


class BytePSWire:
    """Blocks of optimizer `number` as BytePS's tensors, one key each. `bps` is the module byteps.torch.

    For several threads: BytePS has one buffer a key, so transfers of a worker's blocks are one after another. The
    process ends if nothing has moved for `stall_s` while something was under way; None for never.
    """

    def __init__(
        self,
        bps: Any,
        number: int | str,
        blocks: int,
        stall_s: float | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bps, self._stall_s, self._now = bps, stall_s, now
        self._stall = StallDetector(stall_s)
        self._completed = 0
        self._names = [f"prophet.weights.{number}.{place}" for place in range(blocks)]
        self._word_name = f"prophet.update.{number}"
        self._word = torch.zeros(1, dtype=torch.int64)
        self._lock = free_in_forks(threading.Lock())
        for name in (self._word_name, *self._names):
            bps.declare(name)

    def open(self, blocks: Sequence[torch.Tensor]) -> None:
        """Make every key known to the server. `blocks` have to be zero; what comes back says nothing."""
        tensors = [self._word, *blocks]
        names = [self._word_name, *self._names]
        for first in range(0, len(names), MOST_OPENING):
            part = slice(first, first + MOST_OPENING)
            handles = [self._send(t, n, PULL_ONLY) for t, n in zip(tensors[part], names[part], strict=True)]
            self._wait(handles, "another worker has not come yet, or the server is gone")

    def push(self, blocks: Sequence[torch.Tensor]) -> None:
        with self._lock:
            self._say(BEGINS)
            self._wait([self._send(b, name, PUSH_ONLY) for b, name in zip(blocks, self._names, strict=True)])
            self._say(ENDS)

    def pull(self, blocks: Sequence[torch.Tensor], places: Sequence[int]) -> None:
        with self._lock:
            self._wait([self._send(b, self._names[place], PULL_ONLY) for b, place in zip(blocks, places, strict=True)])

    def pull_until(
        self, block: torch.Tensor, there: Callable[[], bool], who: str, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Pull the first block until `there()`, which `who` brings about.

        The server answers all the while, so transfers do not stop if that worker is gone.
        """
        stall = StallDetector(self._stall_s)
        while True:
            block.zero_()
            self.pull([block], [0])
            if there():
                return
            verdict = stall.turn(self._now(), False, True)
            _act(verdict, f"{who} has sent nothing for {stall.stalled_s:.0f} s, and is waited for")
            sleep(ASK_S)

    def _say(self, word: int) -> None:
        self._word.fill_(word)
        self._wait([self._send(self._word, self._word_name, PUSH_ONLY)])

    def _send(self, tensor: torch.Tensor, name: str, priority: int) -> int:
        handle: int = self._bps.byteps_push_pull(tensor, average=False, name=name, priority=priority)
        return handle

    def _wait(self, handles: Sequence[int], why: str = "the server is gone, or the link to it") -> None:
        """Return when all have completed. `why` says who is missing if none does for long."""
        looked_s, seen = self._now(), self._progress()
        self._stall.turn(looked_s, False, False)
        for handle in handles:
            while not self._bps.poll(handle):
                wait_activity(WAIT_S)
                if self._now() >= looked_s + LOOK_S:
                    looked_s, before, seen = self._now(), seen, self._progress()
                    verdict = self._stall.turn(looked_s, seen != before, True)
                    _act(verdict, f"no transfer has finished for {self._stall.stalled_s:.0f} s: {why}")
            self._bps.synchronize(handle)
            self._completed += 1

    def _progress(self) -> object:
        return progress(), self._completed


def _act(verdict: Verdict, line: str) -> None:
    if verdict is Verdict.END:
        end_process(f"{line} ({STALL_S})", STALLED)
    if verdict is Verdict.WARN:
        logger.warning("Prophet: %s", line)


def broadcast_tensors(
    bps: Any,
    tensors: Sequence[torch.Tensor],
    root: int,
    stall_s: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Set `tensors` of all workers to those of worker `root`, in place. Every worker has to call it.

    An asynchronous server answers before the root has added anything. So the root's bytes and a mark go as one update,
    and the others ask until the mark is there. All tensors travel as one, byte for byte, as 32-bit integers.

    The process ends if one is not heard of for `stall_s`; None for never.
    """
    sizes = [tensor.nbytes for tensor in tensors]
    page = torch.zeros(sum(sizes) // 4 + 2, dtype=torch.int32)
    wire = BytePSWire(bps, f"broadcast.{next(_broadcasts)}", 1, stall_s)
    wire.open([page])
    parts = page[1:].view(torch.uint8)[: sum(sizes)].split(sizes)
    if bps.rank() == root:
        page[0] = 1
        for tensor, part in zip(tensors, parts, strict=True):
            part.copy_(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8))
        wire.push([page])
        return
    wire.pull_until(page, lambda: int(page[0]) == 1, f"worker {root}, which has the parameters,", sleep)
    with torch.no_grad():
        for tensor, part in zip(tensors, parts, strict=True):
            if len(part):
                # A copy, since a tensor may be of a type that cannot begin at any byte.
                tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))


def wrap(
    bps: Any,
    optimizer: torch.optim.Optimizer,
    coordinator: CoordinatorClient | None,
    block_bytes: int = BLOCK_BYTES,
    staleness: int | None = None,
    stall_s: float | None = None,
) -> Any:
    """Return an object of a subclass of the optimizer's own class, sharing its groups and state, whose step() is a
    round.

    Every worker has to call it, and then to start `asynchronous`, the rounds. `staleness` bounds the lead of a worker,
    `stall_s` the seconds without an answer of a server. Raises ValueError for parameters that cannot be sent.
    """
    blocks = WeightBlocks(
        parameters_of(optimizer), bps.size(), min(block_bytes, MOST_BLOCK_BYTES - 4 * (bps.size() + 1))
    )
    wire = BytePSWire(bps, next(_numbers), len(blocks.blocks), stall_s)
    user_class = type(optimizer)
    namespace = {**methods_of(_Methods), "__module__": bps.DistributedOptimizer.__module__}
    wrapped: Any = object.__new__(type(user_class.__name__, (user_class,), namespace))
    # Without a scheduler's wrapper around step(), which is bound to the optimizer it was made for.
    vars(wrapped).update({key: value for key, value in vars(optimizer).items() if key != "step"})
    wrapped.asynchronous = AsynchronousRounds(blocks, wire, bps.rank(), coordinator, staleness=staleness)
    wrapped._prophet_class = user_class
    wire.open(blocks.blocks)
    return wrapped


class _Methods:
    """Methods in which the returned optimizer differs from the class it extends."""

    asynchronous: AsynchronousRounds
    """Rounds of this worker: version and delay of its weights, and the totals."""
    _prophet_class: type[torch.optim.Optimizer]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Run the optimizer's own step; then send its change to the server, and take the server's newest weights."""
        loss = self._prophet_class.step(self, closure)  # type: ignore[call-overload]
        self.asynchronous.round()
        return loss

    step.hooked = True  # type: ignore[attr-defined]  # torch runs step hooks around the inner step, once.

    def synchronize(self) -> None:
        """Do nothing: gradients are this worker's own."""

    def skip_synchronize(self) -> Any:
        raise AssertionError("skip_synchronize cannot be used in asynchronous training: gradients are not averaged")

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Do nothing: nothing leaves before step(), so any number of backward passes makes one update."""
