"""Sums of several workers' updates at one of the workers, which returns the model to the others.

Rule of this file: how an aggregator sums, and how its members wait. The coordinator decides which updates are summed
where (MLfabric, Algorithm 3); exchange.py sends the bytes.

A member sends its update to the aggregator and waits for the answer, the model. A thread of the aggregator, beside its
training, sums a collection, waits until the sum may go, pushes it as one update, reads the model, and answers its
members with it. So they do not get it over the server's link. The counts in the blocks add up like the weights.

If a member's update is lost (its aggregator died or was too late), or the model does not arrive within MODEL_S after
the update was applied, the member reads the server's model.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeAlias

import torch

from prophet_mlfabric.client import CoordinatorClient
from prophet_mlfabric.conversation import Asking, Permission
from prophet_mlfabric.exchange import DONE, Asked, Listener, Request
from prophet_mlfabric.messages import Collect
from prophet_mlfabric.settings import host_and_port
from prophet_mlfabric.torch.asynchronous import AsynchronousRounds
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.forks import free_in_forks

UPDATE = 1
"""Kind of a request to sum an update."""
MODEL_S = 10.0
"""Seconds that a member waits for the model once its update is applied."""
LAST_S = 5.0
"""Seconds that an ended worker waits for updates to sum: those of dead members never arrive."""
CLOSE_S = 30.0
MOST_KEPT, MOST_KEPT_BYTES = 64, 1 << 30
"""Maximum number and bytes of updates kept that are in no collection yet; one is always kept. Another one replaces the
oldest; the coordinator will report that update as lost.
"""

Kept: TypeAlias = tuple[bytes, Callable[[bytes], None]]
"""An update, and the function that sends the model to its member."""

logger = logging.getLogger("prophet_scheduler")


class SummingWorker:
    """A worker's part in sums, as a member and as an aggregator, until `close`.

    It listens at `host`, this worker's address for others, which authenticate with `key`. Without a bound on leads,
    members get the model with their sum; otherwise they read the server's.
    """

    def __init__(self, rounds: AsynchronousRounds, coordinator: CoordinatorClient, key: bytes, host: str) -> None:
        """Raises OSError if it cannot listen at `host`."""
        self._rounds = rounds
        self._coordinator = coordinator
        self._key = key
        self._ended = free_in_forks(threading.Condition())
        self._came: dict[tuple[int, int], Kept] = {}
        """Updates that have arrived, by worker and update number."""
        self._most_kept = max(1, min(MOST_KEPT, MOST_KEPT_BYTES // rounds.blocks.size_bytes))
        self._collections: dict[int, Collect] = {}
        self._ready: queue.SimpleQueue[tuple[int, list[Kept]] | None] = queue.SimpleQueue()
        """Complete collections; None ends the thread."""
        self._summing = 0
        """Number of complete collections that the server does not have yet."""
        self._closing = False
        self._listener = Listener(host, 0, key, rounds.blocks.size_bytes, self._receive)
        self._threads = [
            threading.Thread(target=self._run, name="prophet-aggregator", daemon=True),
            threading.Thread(target=self._listen, name="prophet-peers", daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        rounds.give_to = self.give
        coordinator.on_collect(self.collect, "{}:{}".format(*self._listener.address))

    # As a member.

    def give(self, asking: Asking, permission: Permission, memory: torch.Tensor) -> bool:
        """Send an update to the aggregator in its permission, perhaps this worker, and wait for its outcome.

        Return True if `memory` then is a whole version of the model with the update in it.
        """
        payload = memory.numpy().tobytes()
        try:
            if permission.aggregator == self._rounds.worker:
                own: Future[bytes] = Future()
                self._keep((self._rounds.worker, asking.update), payload, own.set_result)
                return self._has_model(asking, lambda: own.result(MODEL_S), memory)
            place = host_and_port(permission.address, "an aggregator's address")
            with Asked(place, self._key, UPDATE, self._rounds.worker, asking.update, payload, MODEL_S) as asked:
                return self._has_model(asking, lambda: asked.answer(len(payload))[1], memory)
        except (OSError, UserError) as error:
            logger.debug("worker %s sent no model with update %d: %s", permission.aggregator, asking.update, error)
        asking.outcome.result()
        return False

    def _has_model(self, asking: Asking, model: Callable[[], bytes], memory: torch.Tensor) -> bool:
        if not asking.outcome.result().applied or self._rounds.staleness is not None:
            return False
        memory.copy_(_tensor(model()))
        return True

    # As an aggregator.

    def collect(self, collection: Collect) -> None:
        """Register a collection to sum here; it replaces an earlier one of the same number."""
        with self._ended:
            if collection.members:
                self._collections[collection.number] = collection
            else:
                self._collections.pop(collection.number, None)
                self._ended.notify_all()
        self._look()

    def close(self) -> None:
        """Finish the collections, within LAST_S, since others have sent their updates here. Then accept no more.

        Wait up to CLOSE_S for sums in flight to the server.
        """
        with self._ended:
            self._ended.wait_for(lambda: not self._collections and not self._summing, LAST_S)
        self._closing = True
        self._ready.put(None)
        self._threads[0].join(CLOSE_S)
        self._listener.stop()
        self._threads[1].join(LAST_S)

    def _listen(self) -> None:
        try:
            self._listener.serve()
        except Exception as error:
            logger.warning("Prophet no longer listens to other workers: %s: %s", type(error).__name__, error)
        finally:
            self._listener.close()

    def _receive(self, request: Request) -> None:
        if request.kind == UPDATE and len(request.payload) == self._rounds.blocks.size_bytes:
            own = request.worker, request.number
            self._keep(own, request.payload, lambda model: request.answer(DONE, 0, model))

    def _keep(self, key: tuple[int, int], payload: bytes, answer: Callable[[bytes], None]) -> None:
        with self._ended:
            self._came[key] = payload, answer
            awaited = {member for collection in self._collections.values() for member in collection.members}
            for oldest in [came for came in self._came if came not in awaited][: -self._most_kept]:
                del self._came[oldest]
        self._look()

    def _look(self) -> None:
        """Hand complete collections to the summing thread."""
        with self._ended:
            for number, collection in list(self._collections.items()):
                if all(member in self._came for member in collection.members):
                    del self._collections[number]
                    self._summing += 1
                    self._ready.put((number, [self._came.pop(member) for member in collection.members]))

    def _run(self) -> None:
        while (collection := self._ready.get()) is not None:
            try:
                self._push_sum(*collection)
            except Exception as error:
                # The members read the server's model once the coordinator has given up on the sum.
                logger.warning("Prophet could not sum %d updates: %s", len(collection[1]), error)
            finally:
                with self._ended:
                    self._summing -= 1
                    self._ended.notify_all()

    def _push_sum(self, number: int, parts: list[Kept]) -> None:
        memory = _tensor(parts[0][0])
        for payload, _ in parts[1:]:
            memory += _tensor(payload)
        if not self._coordinator.collected(number).result().goes or self._closing:
            return  # the coordinator tells the members
        blocks = self._rounds.blocks.views(memory)
        self._rounds.wire.push(blocks)
        self._coordinator.pushed_sum(number, self._rounds.blocks.size_bytes)
        if self._rounds.staleness is None:
            self._rounds.pulls.whole(blocks)
            model = memory.numpy().tobytes()
            for _, answer in parts:
                answer(model)


def _tensor(payload: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(payload), dtype=torch.float32)
