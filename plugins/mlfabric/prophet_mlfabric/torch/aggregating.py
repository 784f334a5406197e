"""Sums of several workers' updates at one of them, and the model back to those whose updates are in a sum.

Rule of this file: what an aggregator does with the updates it gets, and what its members wait for. The coordinator
decides which updates are summed where (MLfabric, Algorithm 3); peers.py carries bytes.

A member sends its update to the aggregator and waits. The aggregator, in a thread beside its training, sums a
collection, asks when the sum may go, pushes it as one update, reads the model, and sends that to its members. So they
get it over a link other than the server's. The counts in the blocks add up in a sum as the weights do, so a model also
lists the summed updates in it.

Losses: the coordinator tells a member whose update is lost (its aggregator died, or was too late), and the member reads
the server's model. So does a member whose model does not come within MODEL_S after its update was applied.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import OrderedDict
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Protocol

import torch

from prophet_mlfabric.peers import PeerMessage
from prophet_mlfabric.ports import Asking, Collection, CoordinatorPort
from prophet_mlfabric.torch.asynchronous import UpdateWire, WholePulls
from prophet_mlfabric.torch.weight_blocks import WeightBlocks
from prophet_scheduler.forks import free_in_forks

MODEL_S = 10.0
"""Seconds that a member waits for the model once its update is applied."""
LAST_S = 5.0
"""Seconds that an ended worker waits for what it was told to sum: it may never come if members have died."""
CLOSE_S = 30.0
MOST_KEPT = 64
"""Most updates kept that are in no collection yet. The oldest beyond goes, and its member is told in the end."""

logger = logging.getLogger("prophet_scheduler")
_Key = tuple[int, int]
"""Worker, and its number of the update."""


class PeerSend(Protocol):
    """Function that sends bytes to another worker and returns at once."""

    def __call__(self, what: PeerMessage, worker: int, update: int, payload: bytes | memoryview) -> None: ...


class SummingWorker:
    """Worker's part in sums, as a member and as an aggregator.

    Call `receive` for messages of other workers, and `collect` for what the coordinator wants summed, each from any
    thread. `close` ends its thread.
    """

    def __init__(
        self,
        blocks: WeightBlocks,
        wire: UpdateWire,
        pulls: WholePulls,
        worker: int,
        coordinator: CoordinatorPort,
        send: PeerSend,
        models: bool = True,
    ) -> None:
        """Begin the thread. With `models` members get the model that has their sum; without, they read the server's."""
        self._hands_models = models
        self._blocks = blocks
        self._wire = wire
        self._pulls = pulls
        self._worker = worker
        self._coordinator = coordinator
        self._send = send
        self._lock = threading.Lock()
        self._ended = free_in_forks(threading.Condition(self._lock))
        self._came: OrderedDict[_Key, torch.Tensor] = OrderedDict()
        self._collections: dict[int, Collection] = {}
        self._models: dict[int, Future[torch.Tensor]] = {}
        self._ready: queue.SimpleQueue[Collection | None] = queue.SimpleQueue()
        self._summing = 0
        """Collections that are whole and not at the server yet."""
        self._closing = False
        self.summed = 0
        """Updates in sums that this worker pushed."""
        self._thread = threading.Thread(target=self._run, name="prophet-aggregator", daemon=True)
        self._thread.start()
        coordinator.on_collect(self.collect)

    # As a member.

    def give(self, asking: Asking, aggregator: int, memory: torch.Tensor) -> bool:
        model: Future[torch.Tensor] = Future()
        with self._lock:
            self._models[asking.update] = model
        try:
            if aggregator == self._worker:
                self._keep((self._worker, asking.update), memory.clone())
            else:
                self._send(PeerMessage.UPDATE, aggregator, asking.update, memory.numpy().tobytes())
            if not asking.outcome.result().applied or not self._hands_models:
                return False
            memory.copy_(model.result(MODEL_S))
            return True
        except FutureTimeout:
            logger.debug("worker %d sent no model with update %d", aggregator, asking.update)
            return False
        finally:
            with self._lock:
                del self._models[asking.update]

    def receive(self, what: PeerMessage, worker: int, update: int, payload: bytes) -> None:
        """Take what another worker sent. Ignore it if its length is not the model's."""
        if len(payload) != self._blocks.size_bytes:
            return
        memory = torch.frombuffer(bytearray(payload), dtype=torch.float32)
        if what is PeerMessage.UPDATE:
            self._keep((worker, update), memory)
        else:
            self._has_model(update, memory)

    def _has_model(self, update: int, memory: torch.Tensor) -> None:
        with self._lock:
            model = self._models.get(update)
        if model is not None and not model.done():
            model.set_result(memory)

    # As an aggregator.

    def collect(self, collection: Collection) -> None:
        """Note what to sum here, in place of an earlier collection of that number."""
        with self._lock:
            if collection.members:
                self._collections[collection.number] = collection
            else:
                self._collections.pop(collection.number, None)
                self._ended.notify_all()
        self._look()

    def close(self) -> None:
        """End what it was told to sum, for at most LAST_S: others have sent their updates here. Then take no more.

        Sums on their way to the server get there first, for at most CLOSE_S.
        """
        with self._ended:
            self._ended.wait_for(lambda: not self._collections and not self._summing, LAST_S)
        self._closing = True
        self._ready.put(None)
        self._thread.join(CLOSE_S)

    def _keep(self, key: _Key, memory: torch.Tensor) -> None:
        with self._lock:
            self._came[key] = memory
            if len(self._came) > MOST_KEPT:
                self._came.popitem(last=False)
        self._look()

    def _look(self) -> None:
        """Hand complete collections to the thread."""
        with self._lock:
            whole = [
                collection
                for collection in self._collections.values()
                if all(member in self._came for member in collection.members)
            ]
            for collection in whole:
                del self._collections[collection.number]
                self._summing += 1
                self._ready.put(collection)

    def _run(self) -> None:
        while (collection := self._ready.get()) is not None:
            try:
                self._push_sum(collection)
            except Exception as error:
                # Its members read the server's model when the coordinator has given the sum up.
                logger.warning("Prophet could not sum %d updates: %s", len(collection.members), error)
            finally:
                with self._ended:
                    self._summing -= 1
                    self._ended.notify_all()

    def _push_sum(self, collection: Collection) -> None:
        with self._lock:
            parts = [self._came.pop(member) for member in collection.members]
        memory = parts[0]
        for part in parts[1:]:
            memory += part
        if not self._coordinator.collected(collection.number).result().goes or self._closing:
            return  # its members are told by the coordinator
        blocks = self._blocks.views(memory)
        self._wire.push(blocks)
        self._coordinator.pushed_sum(collection.number, self._blocks.size_bytes)
        self.summed += len(parts)
        if not self._hands_models:
            return
        self._pulls.whole(blocks)
        payload: bytes | None = None
        for worker, update in collection.members:
            if worker == self._worker:
                self._has_model(update, memory)
            else:
                payload = memory.numpy().tobytes() if payload is None else payload
                self._send(PeerMessage.MODEL, worker, update, payload)
