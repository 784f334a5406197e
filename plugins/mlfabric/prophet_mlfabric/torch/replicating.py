"""Copies of the model for a replica, and weights from a replica for a job to begin with.

Rule of this file: from the server's blocks to the replica's model and back. The coordinator (lag.py) decides
when a copy is due; replica.py sends its bytes.

A thread beside the training makes a copy when it is ordered, since training may be waiting for just that copy. A copy
is a whole version, and has the counts of the updates in it.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterable, Sequence

import torch

from prophet_mlfabric.client import CoordinatorClient
from prophet_mlfabric.messages import Copy
from prophet_mlfabric.replica import ReplicaModel, ReplicaStore, encoded
from prophet_mlfabric.torch.asynchronous import AsynchronousRounds
from prophet_mlfabric.torch.weight_blocks import behind, counts_of, updates_before
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.forks import free_in_forks

CLOSE_S = 30.0

logger = logging.getLogger("prophet_scheduler")


class ReplicatingWorker:
    """A worker's part in copies of the model, until `close`. `names` are its parameters' names."""

    def __init__(
        self, rounds: AsynchronousRounds, names: Sequence[str], coordinator: CoordinatorClient, store: ReplicaStore
    ) -> None:
        self._blocks, self._pulls = rounds.blocks, rounds.pulls
        self._names = list(names)
        self._coordinator = coordinator
        self._store = store
        self._orders: queue.SimpleQueue[Copy | None] = queue.SimpleQueue()
        self._lock = free_in_forks(threading.Lock())
        self._newest = -1
        self._answer: str | None = None
        """Answer to the newest order; None until it is known."""
        self._thread = threading.Thread(target=self._run, name="prophet-replica", daemon=True)
        self._thread.start()
        coordinator.on_copy(self.copy)

    def copy(self, order: Copy) -> None:
        """Take an order. If it is repeated, repeat its answer once that is known."""
        with self._lock:
            known, answer = order.number == self._newest, self._answer
            if not known:
                self._newest, self._answer = order.number, None
        if not known:
            self._orders.put(order)
        elif answer is not None:
            self._coordinator.copied(order.number, answer)

    def close(self) -> None:
        """Make no more copies. Wait up to CLOSE_S for the current one."""
        self._orders.put(None)
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            reason = ""
            try:
                self._make(order)
            except (OSError, UserError) as error:
                reason = str(error)
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
            if reason:
                logger.debug("a copy of the model did not reach the replica: %s", reason)
            with self._lock:
                if order.number == self._newest:
                    self._answer = reason
            self._coordinator.copied(order.number, reason)

    def _make(self, order: Copy) -> None:
        self._store.updates()  # fails here, before the model is read, if the replica is gone
        memory = torch.zeros_like(self._blocks.memory)
        blocks = self._blocks.views(memory)
        self._pulls.whole(blocks)
        counts = [counts_of(block, self._blocks.counted) for block in blocks]
        if behind(counts):
            raise UserError("blocks of the model have had different updates")
        arrays = [part.numpy() for part in self._blocks.parameters_in(memory)]
        weights = dict(zip(self._names, arrays, strict=True))
        model = ReplicaModel(weights, counts[0][:-1], updates_before(counts[0]), order.bound)
        self._store.keep(encoded(model), model.updates)


def names_of(parameters: Sequence[torch.Tensor], named: Iterable[tuple[str, torch.Tensor]] | None) -> list[str]:
    """Return a name for each parameter: the program's name in `named`, or its index."""
    known = {id(param): name for name, param in named or ()}
    return [known.get(id(param), f"parameter.{place}") for place, param in enumerate(parameters)]


def begin_with(model: ReplicaModel, parameters: Sequence[torch.Tensor], names: Sequence[str], where: str) -> None:
    """Set the parameters' values to the replica's weights.

    Raises UserError, and changes nothing, if they are of another model.
    """
    has = [(name, tuple(array.shape)) for name, array in model.weights.items()]
    wants = [(name, tuple(param.shape)) for name, param in zip(names, parameters, strict=True)]
    if has != wants:
        other = next((pair for pair in zip(has, wants, strict=False) if pair[0] != pair[1]), None)
        why = f"{len(has)} parameters, but the optimizer has {len(wants)}"
        if other is not None:
            (name, shape), (wanted, wanted_shape) = other
            why = f"{name} {list(shape)} where the optimizer has {wanted} {list(wanted_shape)}"
        raise UserError(f"{where}: it is of another model: {why}")
    with torch.no_grad():
        for param, array in zip(parameters, model.weights.values(), strict=True):
            param.copy_(torch.from_numpy(array))
