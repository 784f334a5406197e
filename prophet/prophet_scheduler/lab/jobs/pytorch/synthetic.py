"""Trains a ResNet on random images: real computing on data that says nothing.

Rule of this file: an ordinary training script. One batch a worker, made once, so that nothing is measured but
computing and the exchange.
"""

from __future__ import annotations

import torch
from torch import nn

from prophet_scheduler.engines.exchange import TorchJobExchange
from prophet_scheduler.lab.jobs.common import Recorder, arguments
from prophet_scheduler.lab.jobs.datasets import random_images
from prophet_scheduler.lab.jobs.pytorch.resnet import make_resnet
from prophet_scheduler.lab.jobs.pytorch.weights import model_record


def main() -> None:
    options = arguments(__doc__)
    spec = options.spec
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    recorder = Recorder(options.out)
    exchange: TorchJobExchange = options.exchange()
    seed = spec.seed + exchange.rank
    batch = random_images(spec.batch_size, spec.image_size, spec.classes, seed)
    images, labels = (torch.from_numpy(part) for part in batch)
    torch.manual_seed(spec.seed)
    model = make_resnet(spec.model, spec.classes)
    plain = torch.optim.SGD(model.parameters(), lr=spec.learning_rate, momentum=0.9)
    called, optimizer = exchange.distribute(model, plain)
    for _ in range(spec.iterations):
        recorder.iteration_starts()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(called(images), labels)
        recorder.backward_starts()
        loss.backward()  # type: ignore[no-untyped-call]
        recorder.backward_ends()
        optimizer.step()
        recorder.iteration_ends()
    recorder.write(*model_record(model), exchange.rank)
    exchange.close()


if __name__ == "__main__":
    main()
