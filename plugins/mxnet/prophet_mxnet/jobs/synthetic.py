"""Trains a ResNet from Gluon's model zoo on random images: real computing on meaningless data.

Rule of this file: an ordinary Gluon script, the counterpart of pytorch/synthetic.py.
"""

from __future__ import annotations

import itertools

import mxnet as mx
from mxnet.gluon.model_zoo import vision

from prophet_mxnet.jobs.training import model_record, train
from prophet_scheduler.engines.exchange import GluonJobExchange
from prophet_scheduler.lab.jobs.common import begin
from prophet_scheduler.lab.jobs.datasets import random_images

CLASSES = 1000
MODELS = {"resnet18": vision.resnet18_v1, "resnet50": vision.resnet50_v1}


def main() -> None:
    exchange: GluonJobExchange
    spec, recorder, exchange = begin(__doc__)
    seed = spec.seed + exchange.rank
    batch = random_images(spec.batch_size, spec.image_size, CLASSES, seed)
    images, labels = (mx.nd.array(part) for part in batch)
    mx.random.seed(spec.seed)
    network = MODELS[spec.model](classes=CLASSES)
    network.initialize(mx.init.Xavier())
    network.hybridize()
    network(images).wait_to_read()  # determines the shapes
    train(network, exchange, recorder, 0.01, itertools.repeat((images, labels)), spec.iterations)
    recorder.write(*model_record(network), exchange.rank)


if __name__ == "__main__":
    main()
