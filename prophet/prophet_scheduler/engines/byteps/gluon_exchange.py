"""What a script in Gluon says to BytePS, by BytePS's documentation, and nothing more."""

from __future__ import annotations

from collections.abc import Mapping

import mxnet as mx


class BytePSInGluon:
    """BytePS's example of Gluon: its trainer takes a ParameterDict, broadcasts at its first step, divides by size."""

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
