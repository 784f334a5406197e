"""Trains a small network in Gluon on scikit-learn's handwritten digits: real data, real gradients.

Rule of this file: an ordinary Gluon script, the counterpart of pytorch/digits.py, with the same data, batches, layers
and optimizer. The initial weights are Gluon's own, so trained models are compared only within one framework.
"""

from __future__ import annotations

import mxnet as mx
from mxnet.gluon import nn

from prophet_mxnet.jobs.training import model_record, train
from prophet_scheduler.engines.exchange import GluonJobExchange
from prophet_scheduler.lab.jobs.common import begin
from prophet_scheduler.lab.jobs.datasets import batches, digits


def make_network() -> mx.gluon.HybridBlock:
    """Return a perceptron (4.5 MB) for batches of 8x8 images of shape [n, 1, 8, 8]; not yet initialised.

    All shapes are given, since a trainer needs them before the first batch.
    """
    network = nn.HybridSequential()
    network.add(
        nn.Dense(1024, activation="relu", in_units=64),
        nn.Dense(1024, activation="relu", in_units=1024),
        nn.Dense(10, in_units=1024),
    )
    return network


def accuracy(network: mx.gluon.Block, images: mx.nd.NDArray, labels: mx.nd.NDArray) -> float:
    correct = network(images).argmax(axis=1) == labels
    return float(correct.mean().asscalar())


def main() -> None:
    exchange: GluonJobExchange
    spec, recorder, exchange = begin(__doc__)
    data = digits(exchange.rank, exchange.size)
    images, labels = mx.nd.array(data.images), mx.nd.array(data.labels)
    mx.random.seed(spec.seed)
    network = make_network()
    network.initialize(mx.init.Xavier())
    network.hybridize()
    chosen = map(mx.nd.array, batches(len(data.images), spec.batch_size, spec.seed + exchange.rank))
    train(network, exchange, recorder, 0.1, ((images[each], labels[each]) for each in chosen), spec.iterations)
    names, digest = model_record(network)
    reached = accuracy(network, mx.nd.array(data.test_images), mx.nd.array(data.test_labels))
    recorder.write(names, digest, exchange.rank, reached)


if __name__ == "__main__":
    main()
