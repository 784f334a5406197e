"""Copies of the model for a replica, and weights from a replica for a job to begin with.

Rule of this file: from the server's blocks to the replica's model and back. The coordinator (lag.py) decides
when a copy is due; replica.py writes it.

A thread beside the training makes a copy when it is ordered, since training may be waiting for just that copy. A copy
is a whole version, and has the counts of the updates in it.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch

from prophet_mlfabric.client import CoordinatorClient
from prophet_mlfabric.messages import Copy
from prophet_mlfabric.replica import JobReplica, ReplicaModel, keep
from prophet_mlfabric.torch.asynchronous import AsynchronousRounds
from prophet_mlfabric.torch.weight_blocks import behind, counts_of, updates_before
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.frontends.ending import say

CLOSE_S = 30.0

Named: TypeAlias = Iterable[tuple[str, torch.Tensor]] | None
"""A program's parameters with their names; None if it gave none."""

logger = logging.getLogger("prophet_scheduler")


class ReplicatingWorker:
    """Keeper of the replica in `file`, until `close`. `names` are the parameters' names."""

    def __init__(
        self, rounds: AsynchronousRounds, names: Sequence[str], coordinator: CoordinatorClient, file: Path
    ) -> None:
        self._rounds, self._names, self._file, self._coordinator = rounds, names, file, coordinator
        self._orders: queue.SimpleQueue[Copy | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="prophet-replica", daemon=True)
        self._thread.start()
        coordinator.on_copy = self._orders.put

    def close(self) -> None:
        """Make no more copies. Wait up to CLOSE_S for the current one."""
        self._orders.put(None)
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        newest, reason = -1, ""
        while (order := self._orders.get()) is not None:
            if order.number != newest:  # a repeated order gets the same answer
                newest, reason = order.number, ""
                try:
                    self._copy(order.bound)
                except Exception as error:
                    reason = str(error) or type(error).__name__
                    logger.debug("a copy of the model did not reach the replica: %s", reason)
            self._coordinator.copied(order.number, reason)

    def _copy(self, bound: float) -> None:
        layout = self._rounds.blocks
        memory = torch.zeros_like(layout.memory)
        blocks = layout.views(memory)
        self._rounds.read_whole(blocks)
        counts = [counts_of(block, layout.counted) for block in blocks]
        if behind(counts):
            raise UserError("blocks of the model have had different updates")
        arrays = [part.numpy() for part in layout.parameters_in(memory)]
        weights = dict(zip(self._names, arrays, strict=True))
        keep(ReplicaModel(weights, counts[0][:-1], updates_before(counts[0]), bound), self._file)


def parameters_of(optimizer: Any) -> list[torch.Tensor]:
    """Return the trained parameters, in the optimizer's order."""
    return [param for group in optimizer.param_groups for param in group["params"] if param.requires_grad]


def names_of(parameters: Sequence[torch.Tensor], named: Named) -> list[str]:
    """Return a name for each parameter: the program's name in `named`, or its index."""
    known = {id(param): name for name, param in named or ()}
    return [known.get(id(param), f"parameter.{place}") for place, param in enumerate(parameters)]


def begin(replica: JobReplica, optimizer: Any, named: Named) -> int:
    """Set an optimizer's parameters to the replica's weights, on the one worker that has them.

    Return the number of updates in them, 0 on other workers. Raises UserError, and changes nothing, if they are of
    another model.
    """
    model, parameters = replica.model, parameters_of(optimizer)
    if model is None:
        return 0
    has = [(name, tuple(array.shape)) for name, array in model.weights.items()]
    wants = [(name, tuple(param.shape)) for name, param in zip(names_of(parameters, named), parameters, strict=True)]
    if has != wants:
        why = f"{len(has)} parameters, but the optimizer has {len(wants)}"
        for (name, shape), (wanted, wanted_shape) in zip(has, wants, strict=False):
            if (name, shape) != (wanted, wanted_shape):
                why = f"{name} {list(shape)} where the optimizer has {wanted} {list(wanted_shape)}"
                break
        raise UserError(f"{replica.where}: it is of another model: {why}")
    with torch.no_grad():
        for param, array in zip(parameters, model.weights.values(), strict=True):
            param.copy_(torch.from_numpy(array))
    say(
        f"this job begins with the {model.updates} updates that {replica.where} has; later updates of its server, "
        f"with a total norm of at most {model.bound:g}, are lost"
    )
    return model.updates
