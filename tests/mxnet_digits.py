"""A Gluon job as a user writes one: a small network on scikit-learn's handwritten digits, through BytePS.

Rule of this file: an ordinary MXNet program. It knows nothing of Prophet and runs in a process of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from pathlib import Path

import byteps.mxnet as bps
import mxnet as mx
from mxnet import autograd, gluon
from sklearn.datasets import load_digits

BATCH = 64


def make_net(kind: str) -> gluon.nn.HybridSequential:
    """`mlp` or `cnn`; with more than ten layers of a kind, so that names do not sort in forward order."""
    net = gluon.nn.HybridSequential()
    with net.name_scope():
        if kind == "cnn":
            for channels in (32, 64, 64):
                net.add(gluon.nn.Conv2D(channels, 3, padding=1), gluon.nn.BatchNorm(), gluon.nn.Activation("relu"))
            net.add(gluon.nn.MaxPool2D(), gluon.nn.Flatten())
            net.add(gluon.nn.Dense(1024, activation="relu"), gluon.nn.Dense(100, activation="relu"))
        else:
            for _ in range(11):
                net.add(gluon.nn.Dense(320, activation="relu"))
        net.add(gluon.nn.Dense(10))
    return net


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--hybridize", action="store_true")
    options = parser.parse_args()

    bps.init()
    data = load_digits()
    # Every worker has its own share; the last fifth is for the test.
    images, labels = mx.nd.array(data.images[:, None] / 16.0), mx.nd.array(data.target)
    train = len(labels) * 4 // 5
    mine = mx.nd.arange(bps.rank(), train, bps.size())
    mx.random.seed(7)
    net = make_net(options.model)
    net.initialize(mx.init.Xavier())
    if options.hybridize:
        net.hybridize()
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.05, "momentum": 0.9})
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    starts, losses = [], []
    for iteration in range(options.iterations):
        starts.append(time.monotonic())
        chosen = mine[(mx.nd.arange(BATCH) + iteration * BATCH) % len(mine)]
        with autograd.record():
            loss = loss_of(net(images[chosen]), labels[chosen])
        loss.backward()
        trainer.step(BATCH)
        losses.append(float(loss.mean().asscalar()))
    mx.nd.waitall()
    digest = hashlib.sha256()
    for name, parameter in sorted(net.collect_params().items()):
        digest.update(name.encode())
        digest.update(parameter.data().asnumpy().tobytes())
    guesses = net(images[train:]).argmax(axis=1)
    result = {
        "starts": starts,
        "losses": losses,
        "weights_sha256": digest.hexdigest(),
        "accuracy": float((guesses == labels[train:]).mean().asscalar()),
        "parameters": {name: parameter.data().size for name, parameter in net.collect_params().items()},
    }
    options.out.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
