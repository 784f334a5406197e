"""What a script in Gluon says to MXNet's KVStore, by MXNet's documentation, and nothing more."""

from __future__ import annotations

from collections.abc import Mapping

import mxnet as mx

from prophet_scheduler.engines.exchange import ordered_parameters


class KVStoreInGluon:
    """As "Distributed Training in MXNet" says: create the store, hand it to the trainer; servers run the optimizer.

    Parameters go to the trainer as a list in forward order: what it makes of their places is the priority, and of a
    dict it would sort the names (dense10 before dense1).
    """

    store = "dist_sync"

    def __init__(self) -> None:
        self._store = mx.kv.create(self.store)
        self.rank: int = self._store.rank
        self.size: int = self._store.num_workers
        self.divisor = self.size

    def trainer(self, network: mx.gluon.Block, settings: Mapping[str, float]) -> mx.gluon.Trainer:
        return mx.gluon.Trainer(ordered_parameters(network), "sgd", dict(settings), kvstore=self._store)


class P3InGluon(KVStoreInGluon):
    """The store of P3, which slices."""

    store = "p3store_dist"
