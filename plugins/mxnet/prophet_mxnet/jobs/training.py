"""Training of a Gluon model in a job, and its record at the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mxnet as mx

from prophet_mxnet.exchanges import ordered_parameters
from prophet_scheduler.engines.exchange import GluonJobExchange
from prophet_scheduler.lab.jobs.common import weights_sha256


def train(
    network: mx.gluon.Block,
    exchange: GluonJobExchange,
    recorder: Any,
    learning_rate: float,
    batches: Iterator[tuple[mx.nd.NDArray, mx.nd.NDArray]],
    iterations: int,
) -> None:
    """Train a classifier by SGD with momentum, on batches of (images, labels)."""
    trainer = exchange.trainer(network, {"learning_rate": learning_rate, "momentum": 0.9})
    loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    for _ in range(iterations):
        recorder.iteration_starts()
        images, labels = next(batches)
        with mx.autograd.record():
            loss = loss_of(network(images), labels)
        loss.wait_to_read()  # like a script that reads its loss
        recorder.backward_starts()
        loss.backward()
        trainer.step(len(images) * exchange.divisor)
        recorder.backward_ends()
        recorder.iteration_ends()


def model_record(network: mx.gluon.Block) -> tuple[dict[str, int], str]:
    """Return (bytes of each parameter by name, in order; digest of their values), for the recorder.

    Waits for all pending work. The digest goes by place: Gluon's generated names depend on the process's other blocks.
    """
    parameters = ordered_parameters(network)
    weights = {f"{place:05}": parameter.data().asnumpy() for place, parameter in enumerate(parameters)}
    sizes = {parameter.name: array.nbytes for parameter, array in zip(parameters, weights.values(), strict=True)}
    return sizes, weights_sha256(weights)
