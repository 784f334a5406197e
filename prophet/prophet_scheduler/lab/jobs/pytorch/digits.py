"""Trains a small network on scikit-learn's handwritten digits: real data, real gradients.

Rule of this file: an ordinary training script. Every worker trains on its own share of the samples. With one seed and
up to two workers, the final weights are bitwise the same in every run, however transfers are scheduled. (The server
adds gradients in the order they arrive, and only a sum of two does not depend on that order.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from prophet_scheduler.engines.exchange import TorchJobExchange
from prophet_scheduler.lab.job_config import DigitsJob
from prophet_scheduler.lab.jobs.common import Recorder
from prophet_scheduler.lab.jobs.datasets import batches, digits
from prophet_scheduler.lab.jobs.pytorch.training import accuracy, run, train


def make_model() -> nn.Module:
    """Return a perceptron (4.5 MB) for batches of 8x8 images of shape [n, 1, 8, 8]."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )


def job(spec: DigitsJob, exchange: TorchJobExchange, recorder: Recorder) -> tuple[nn.Module, float]:
    data = digits(exchange.rank, exchange.size)
    images, labels = torch.from_numpy(data.images), torch.from_numpy(data.labels)
    torch.manual_seed(spec.seed)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batch = batches(len(images), spec.batch_size, spec.seed + exchange.rank)

    def loss_of(called: Any, iteration: int) -> torch.Tensor:
        chosen = torch.from_numpy(next(batch))
        return nn.functional.cross_entropy(called(images[chosen]), labels[chosen])

    train(spec, exchange, recorder, model, optimizer, loss_of)
    return model, accuracy(model, torch.from_numpy(data.test_images), torch.from_numpy(data.test_labels))


if __name__ == "__main__":
    run(__doc__, job)
