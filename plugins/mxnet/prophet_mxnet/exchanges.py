"""Gluon on BytePS and on MXNet's KVStore: the calls that each one's documentation has for a script, and no others."""

from __future__ import annotations

from collections.abc import Mapping

import mxnet as mx


def ordered_parameters(network: mx.gluon.Block) -> list[mx.gluon.Parameter]:
    """Return the trained parameters in the order in which forward uses them (that of their creation)."""
    return [parameter for parameter in network.collect_params().values() if parameter.grad_req != "null"]


class BytePSInGluon:
    """As BytePS's Gluon example: the trainer takes a ParameterDict, broadcasts at the first step, divides by size."""

    divisor = 1

    def __init__(self) -> None:
        import byteps.mxnet as bps

        bps.init()
        self._bps = bps
        self.rank: int = bps.rank()
        self.size: int = bps.size()

    def trainer(self, network: mx.gluon.Block, settings: Mapping[str, float]) -> mx.gluon.Trainer:
        trainer: mx.gluon.Trainer = self._bps.DistributedTrainer(network.collect_params(), "sgd", dict(settings))
        return trainer


class KVStoreInGluon:
    """MXNet's store, as in "Distributed Training in MXNet": the trainer gets it, and servers run the optimizer.

    Parameters go to the trainer as a list in forward order, since their places become priorities. The trainer would
    sort a dict by name (dense10 before dense1).
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
    """P3's store, which slices tensors."""

    store = "p3store_dist"
