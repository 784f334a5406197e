"""BytePS's asynchronous servers for the PyTorch front end, and the optimizer that a program gets there.

Rule of this file: calls into BytePS, and when to make them. prophet_mlfabric/torch/asynchronous.py has the rounds.

Here a push is only a push and a pull only a pull (PUSH_ONLY, PULL_ONLY of the hook), so a dropped update pushes
nothing. An update is sent between two marker words that make the server apply it as a whole (docs/corrections.md,
Mixing). The first word is acknowledged before any block leaves, and the last leaves when all blocks are acknowledged,
so no reordering of transfers can split an update.

BytePS blocks on a key until every worker has pushed it once, so all keys are opened together at the start. From then on
an asynchronous server answers each worker without the others. So if nothing is answered for long, the server itself is
gone: stall.py decides when, and the process exits if so configured.
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
from prophet_mlfabric.client import CoordinatorClient
from prophet_mlfabric.torch.asynchronous import AsynchronousRounds
from prophet_mlfabric.torch.replicating import parameters_of
from prophet_mlfabric.torch.weight_blocks import WeightBlocks
from prophet_scheduler.core.cut import MOST_BLOCK_BYTES
from prophet_scheduler.core.settings import STALL_S
from prophet_scheduler.forks import free_in_forks
from prophet_scheduler.frontends.ending import STALLED, end_process
from prophet_scheduler.frontends.torch.optimizer import methods_of

BLOCK_BYTES = 512 * 1024
"""Bytes of weights in a block, unless the user sets them. An update waits for all its blocks anyway, so they are large,
to keep the cost of messages low."""
BEGINS, ENDS = 0x50524F5048455442, 0x50524F5048455445
"""Words around an update: PROPHETB and PROPHETE. build/edits/corrections.toml has the same values."""
MOST_OPENING = 128
"""Maximum keys opened at once: BytePS has a thread for each key until all workers have opened it."""
WAIT_S = 0.002
ASK_S = 0.01
"""Seconds between two pulls in `pull_until`."""
LOOK_S = 0.5
"""Seconds between two checks for progress while waiting for a transfer."""

logger = logging.getLogger("prophet_scheduler")
_numbers, _broadcasts = itertools.count(), itertools.count()


class BytePSWire:
    """Blocks of optimizer `number` as BytePS's tensors, one key each. `bps` is the module byteps.torch.

    Thread-safe: BytePS has one buffer per key, so pushes and pulls of a worker take turns. The process exits if nothing
    has moved for `stall_s` while a transfer was in flight; None for never.
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
        """Open every key at the server. `blocks` must be zero; their content afterwards means nothing."""
        tensors = [self._word, *blocks]
        names = [self._word_name, *self._names]
        for first in range(0, len(names), MOST_OPENING):
            part = slice(first, first + MOST_OPENING)
            handles = [self._send(t, n, PULL_ONLY) for t, n in zip(tensors[part], names[part], strict=True)]
            self._wait(handles, "another worker has not arrived yet, or the server is gone")

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
        """Pull the first block until `there()` is True; `who` names the worker that makes it so.

        The server keeps answering if that worker is gone, so this has a stall detector of its own.
        """
        stall = StallDetector(self._stall_s)
        while True:
            block.zero_()
            self.pull([block], [0])
            if there():
                return
            verdict = stall.turn(self._now(), False, True)
            _act(verdict, f"{who} has sent nothing for {stall.stalled_s:.0f} s, and this worker waits for it")
            sleep(ASK_S)

    def _say(self, word: int) -> None:
        self._word.fill_(word)
        self._wait([self._send(self._word, self._word_name, PUSH_ONLY)])

    def _send(self, tensor: torch.Tensor, name: str, priority: int) -> int:
        handle: int = self._bps.byteps_push_pull(tensor, average=False, name=name, priority=priority)
        return handle

    def _wait(self, handles: Sequence[int], why: str = "the server is gone, or the link to it") -> None:
        """Wait until all have completed. `why` is the likely cause to name if none does for long."""
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
    """Set `tensors` of all workers to those of worker `root`, in place. Every worker must call it.

    An asynchronous server answers before the root has added anything. So the root sends its bytes and a mark as one
    update, and the others pull until the mark arrives. All tensors are sent as one, byte for byte, as 32-bit integers.

    The process exits if the root or the server is silent for `stall_s`; None for never.
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
                # A copy, since the tensor's type may need alignment.
                tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))


def wrap(
    bps: Any,
    optimizer: torch.optim.Optimizer,
    coordinator: CoordinatorClient | None,
    block_bytes: int = BLOCK_BYTES,
    stall_s: float | None = None,
) -> Any:
    """Return an instance of a subclass of the optimizer's class, which shares its groups and state and whose step() is
    a round.

    Every worker must call it, and then start its rounds, `asynchronous`. `stall_s` bounds the seconds without an answer
    from a server. Raises ValueError for parameters that cannot be sent.
    """
    blocks = WeightBlocks(
        parameters_of(optimizer), bps.size(), min(block_bytes, MOST_BLOCK_BYTES - 4 * (bps.size() + 1))
    )
    wire = BytePSWire(bps, next(_numbers), len(blocks.blocks), stall_s)
    user_class = type(optimizer)
    namespace = {**methods_of(_Methods), "__module__": bps.DistributedOptimizer.__module__}
    wrapped: Any = object.__new__(type(user_class.__name__, (user_class,), namespace))
    # Not `step`: a learning-rate scheduler's wrapper is bound to the optimizer it was made for.
    vars(wrapped).update({key: value for key, value in vars(optimizer).items() if key != "step"})
    wrapped.asynchronous = AsynchronousRounds(blocks, wire, bps.rank(), coordinator)
    wrapped._prophet_class = user_class
    wire.open(blocks.blocks)
    return wrapped


class _Methods:
    """Methods in which the returned optimizer differs from the class it extends."""

    asynchronous: AsynchronousRounds
    """This worker's rounds: version and delay of its weights, and the totals."""
    _prophet_class: type[torch.optim.Optimizer]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Run the optimizer's own step, send its change to the server, and take the server's newest weights."""
        loss = self._prophet_class.step(self, closure)  # type: ignore[call-overload]
        self.asynchronous.round()
        return loss

    step.hooked = True  # type: ignore[attr-defined]  # torch runs step hooks around the inner step, once.

    def synchronize(self) -> None:
        """Do nothing: gradients stay this worker's own."""

    def skip_synchronize(self) -> Any:
        raise AssertionError("skip_synchronize cannot be used in asynchronous training: gradients are not averaged")

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Do nothing: nothing is sent before step(), so any number of backward passes makes one update."""
