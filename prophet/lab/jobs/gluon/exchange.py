"""What moves the gradients of a Gluon job: BytePS, MXNet's KVStore, or P3's store.

Rule of this file: what a user's script says to each of them by its own documentation, and nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

import mxnet as mx

from prophet.lab.jobs.common import weights_sha256

Settings = Mapping[str, float]
"""Of the optimizer SGD: `learning_rate`, `momentum`, ..."""


class Exchange(Protocol):
    """`rank` and `size` of the workers; `trainer` makes one whose `step` updates the weights of all."""

    rank: int
    size: int

    divisor: int
    """What `step` is told, as a multiple of the batch of one worker, for the mean over all workers."""

    def trainer(self, network: mx.gluon.Block, settings: Settings) -> mx.gluon.Trainer:
        """A trainer with SGD of a network whose parameters are initialised, shapes and all."""


class KVStore:
    """As "Distributed Training in MXNet" says: create the store, hand it to the trainer; servers run the optimizer.

    Parameters go to the trainer as a list in forward order: what it makes of their places is the priority, and of a
    dict it would sort the names (dense10 before dense1).
    """

    def __init__(self, name: str) -> None:
        self._store = mx.kv.create(name)
        self.rank: int = self._store.rank
        self.size: int = self._store.num_workers
        self.divisor = self.size

    def trainer(self, network: mx.gluon.Block, settings: Settings) -> mx.gluon.Trainer:
        return mx.gluon.Trainer(ordered_parameters(network), "sgd", dict(settings), kvstore=self._store)


class BytePS:
    """BytePS's example of Gluon: its trainer takes a ParameterDict, broadcasts at its first step, divides by size."""

    divisor = 1

    def __init__(self) -> None:
        import byteps.mxnet as bps

        bps.init()
        self._bps = bps
        self.rank: int = bps.rank()
        self.size: int = bps.size()

    def trainer(self, network: mx.gluon.Block, settings: Settings) -> mx.gluon.Trainer:
        trainer: mx.gluon.Trainer = self._bps.DistributedTrainer(network.collect_params(), "sgd", dict(settings))
        return trainer


EXCHANGES: Mapping[str, Callable[[], Exchange]] = MappingProxyType(
    {"byteps": BytePS, "kvstore": lambda: KVStore("dist_sync"), "p3store": lambda: KVStore("p3store_dist")}
)


def ordered_parameters(network: mx.gluon.Block) -> list[mx.gluon.Parameter]:
    """The parameters that are trained, in the order in which forward uses them (that of their making)."""
    return [parameter for parameter in network.collect_params().values() if parameter.grad_req != "null"]


def model_record(network: mx.gluon.Block) -> tuple[list[str], str]:
    """(names of the parameters in order, digest of their values), for the recorder. Waits for all that is under way.

    By place: a name that Gluon makes up counts the blocks of a process.
    """
    parameters = ordered_parameters(network)
    weights = {f"{place:05}": parameter.data().asnumpy() for place, parameter in enumerate(parameters)}
    return [parameter.name for parameter in parameters], weights_sha256(weights)
