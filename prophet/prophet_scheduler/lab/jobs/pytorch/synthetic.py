"""Trains a ResNet on random images: real computing on data that says nothing.

Rule of this file: an ordinary training script. One batch a worker, made once, so that nothing is measured but
computing and the exchange.
"""

from __future__ import annotations

import torch
from torch import nn

from prophet_scheduler.engines.exchange import TorchJobExchange
from prophet_scheduler.lab.jobs.common import Recorder
from prophet_scheduler.lab.jobs.datasets import random_images
from prophet_scheduler.lab.jobs.pytorch.resnet import make_resnet
from prophet_scheduler.lab.jobs.pytorch.training import run, train
from prophet_scheduler.lab.jobs.record import Spec


def job(spec: Spec, exchange: TorchJobExchange, recorder: Recorder) -> tuple[nn.Module, None]:
    batch = random_images(spec.batch_size, spec.image_size, spec.classes, spec.seed + exchange.rank)
    images, labels = (torch.from_numpy(part) for part in batch)
    torch.manual_seed(spec.seed)
    model = make_resnet(spec.model, spec.classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=spec.learning_rate, momentum=0.9)
    train(
        spec,
        exchange,
        recorder,
        model,
        optimizer,
        lambda called, _: nn.functional.cross_entropy(called(images), labels),
    )
    return model, None


if __name__ == "__main__":
    run(__doc__, job)
