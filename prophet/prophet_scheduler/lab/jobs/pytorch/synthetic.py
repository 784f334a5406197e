"""Trains a ResNet on random images: real compute on meaningless data.

Rule of this file: an ordinary training script. Each worker makes one batch, once, so that only compute and the
exchange are measured. ResNet-18 and ResNet-50 have the shapes of He, Zhang, Ren and Sun, "Deep Residual Learning
for Image Recognition", CVPR 2016: table 1 (blocks of each stage), section 3.3 (projections where shapes change, option
B) and 3.4 (batch normalisation after each convolution, no bias). In a bottleneck block the 3x3 convolution has the
stride, as in Goyal et al. (2017). The number of parameters equals that of models/zoo.
"""

from __future__ import annotations

import torch
from torch import nn

from prophet_scheduler.engines.exchange import TorchJobExchange
from prophet_scheduler.lab.job_config import SyntheticJob
from prophet_scheduler.lab.jobs.common import Recorder
from prophet_scheduler.lab.jobs.datasets import random_images
from prophet_scheduler.lab.jobs.pytorch.training import run, train

STAGES = {"resnet18": (2, 2, 2, 2), "resnet50": (3, 4, 6, 3)}
CLASSES = 1000
EXPANSION = {"resnet18": 1, "resnet50": 4}
"""Output channels of a block, as a multiple of the channels of its 3x3 convolutions."""


class ResidualBlock(nn.Module):
    """Residual block: two 3x3 convolutions, or 1x1, 3x3 and 1x1 if `expansion` is above 1."""

    def __init__(self, inputs: int, width: int, stride: int, expansion: int) -> None:
        super().__init__()
        outputs = width * expansion
        if expansion == 1:
            layers = [(inputs, width, 3, stride), (width, width, 3, 1)]
        else:
            layers = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
        body: list[nn.Module] = []
        for layer in layers:
            body += [convolution(*layer), nn.BatchNorm2d(layer[1]), nn.ReLU()]
        self.body = nn.Sequential(*body[:-1])
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(self.body(images) + self.shortcut(images))


def convolution(inputs: int, outputs: int, size: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


def make_resnet(model: str) -> nn.Module:
    """Return `resnet18` or `resnet50`, for images [n, 3, height, width] with sides of at least 32 pixels."""
    expansion = EXPANSION[model]
    layers: list[nn.Module] = [convolution(3, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, stride=2, padding=1))
    channels = 64
    for stage, blocks in enumerate(STAGES[model]):
        width = 64 * 2**stage
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(ResidualBlock(channels, width, stride, expansion))
            channels = width * expansion
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)]
    return nn.Sequential(*layers)


def job(spec: SyntheticJob, exchange: TorchJobExchange, recorder: Recorder) -> tuple[nn.Module, None]:
    batch = random_images(spec.batch_size, spec.image_size, CLASSES, spec.seed + exchange.rank)
    images, labels = (torch.from_numpy(part) for part in batch)
    torch.manual_seed(spec.seed)
    model = make_resnet(spec.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    cross_entropy = nn.functional.cross_entropy
    train(spec, exchange, recorder, model, optimizer, lambda called, _: cross_entropy(called(images), labels))
    return model, None


if __name__ == "__main__":
    run(__doc__, job)
