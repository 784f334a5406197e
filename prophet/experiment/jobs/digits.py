"""Trains a small network on scikit-learn's handwritten digits: real data, real gradients.

Rule of this file: an ordinary BytePS program. Every worker trains on its own share of the samples. From
one seed the final weights are the same bits in every run with up to two workers, whatever schedules the
transfers (the server adds gradients as they come, and only the sum of two does not depend on the order).
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from prophet.experiment.jobs.common import Recorder, arguments

TEST_SHARE = 0.2


def make_model(kind: str) -> nn.Module:
    """`mlp` (4.5 MB) or `cnn` (4.7 MB), for batches of 8x8 images of shape [n, 1, 8, 8]."""
    if kind == "cnn":
        return nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 4 * 4, 1024),
            nn.ReLU(),
            nn.Linear(1024, 100),
            nn.ReLU(),
            nn.Linear(100, 10),
        )
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 1024),
        nn.ReLU(),
        nn.Linear(1024, 1024),
        nn.ReLU(),
        nn.Linear(1024, 10),
    )


def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(training images, test images, training labels, test labels); the split never changes."""
    data = load_digits()
    images = (data.images / 16.0).astype("float32")[:, None]
    parts = train_test_split(images, data.target, test_size=TEST_SHARE, random_state=0, stratify=data.target)
    train_images, test_images, train_labels, test_labels = (torch.from_numpy(part) for part in parts)
    return train_images, test_images, train_labels, test_labels


def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    model.eval()
    with torch.no_grad():
        correct: torch.Tensor = (model(images).argmax(1) == labels).float()
    return float(correct.mean())


def main() -> None:
    spec, out = arguments(__doc__)
    import byteps.torch as bps

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    recorder = Recorder(out)
    bps.init()
    images, test_images, labels, test_labels = digits()
    images, labels = images[bps.rank() :: bps.size()], labels[bps.rank() :: bps.size()]
    torch.manual_seed(spec["seed"])
    model = make_model(spec["model"])
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=spec["learning_rate"], momentum=0.9),
        named_parameters=model.named_parameters(),
    )
    shuffle = torch.Generator().manual_seed(spec["seed"] + bps.rank())
    order: list[int] = []
    for _ in range(spec["iterations"]):
        recorder.iteration_starts()
        if len(order) < spec["batch_size"]:
            order = torch.randperm(len(images), generator=shuffle).tolist()
        batch, order = order[: spec["batch_size"]], order[spec["batch_size"] :]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        recorder.backward_starts()
        loss.backward()  # type: ignore[no-untyped-call]
        recorder.backward_ends()
        optimizer.step()
        recorder.iteration_ends()
    recorder.write(model, {"rank": bps.rank(), "accuracy": accuracy(model, test_images, test_labels)})


if __name__ == "__main__":
    main()
