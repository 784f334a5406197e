"""A Gluon job as a user writes one: a small network on scikit-learn's handwritten digits, through BytePS.

Rule of this file: an ordinary MXNet program. It knows nothing of Prophet and runs in a process of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path

import byteps.mxnet as bps
import mxnet as mx
from mxnet import autograd, gluon
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

BATCH = 64


def make_net() -> gluon.nn.HybridSequential:
    """3.3 MB; sorted by name, all of its batch norms come before all of its dense layers."""
    net = gluon.nn.HybridSequential()
    with net.name_scope():
        for _ in range(4):
            net.add(gluon.nn.Dense(512), gluon.nn.BatchNorm(), gluon.nn.Activation("relu"))
        net.add(gluon.nn.Dense(10))
    return net


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--iterations", type=int, required=True)
    options = parser.parse_args()

    bps.init()
    data = load_digits()
    parts = train_test_split(data.data / 16, data.target, test_size=0.2, random_state=0, stratify=data.target)
    images, test_images, labels, test_labels = (mx.nd.array(part) for part in parts)
    mine = mx.nd.arange(bps.rank(), len(labels), bps.size())  # every worker has its own share
    mx.random.seed(7)
    net = make_net()
    net.initialize(mx.init.Xavier())
    net.hybridize()
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.05, "momentum": 0.9})
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    for iteration in range(options.iterations):
        chosen = mine[(mx.nd.arange(BATCH) + iteration * BATCH) % len(mine)]
        with autograd.record():
            loss = loss_of(net(images[chosen]), labels[chosen])
        loss.backward()
        trainer.step(BATCH)
        loss.mean().asscalar()  # as one does for a log
    digest = hashlib.sha256()
    learned = [parameter for parameter in net.collect_params().values() if parameter.grad_req != "null"]
    for parameter in learned:
        digest.update(parameter.data().asnumpy().tobytes())
    result = {
        "accuracy": float((net(test_images).argmax(axis=1) == test_labels).mean().asscalar()),
        "gradients": len(learned),
        "weights_sha256": digest.hexdigest(),
    }
    options.out.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
