"""Trains a logistic regression on scikit-learn's digits and records loss against time; compute is mostly sleeping.

Rule of this file: an ordinary training script, synchronous or asynchronous. Each worker has its own share of samples.
The features are random cosines of the 64 pixels (Rahimi and Recht, Random features for large-scale kernel machines,
2007). Their number sets the size of an update: `features` x 10 weights. The loss is convex, as in MLfabric's section
3.1; the weights start at zero.

A computation takes `compute_s` or, with probability `slow_chance`, `slow_factor` times as long (MLfabric, section 7).
That includes the real computation and the recording of the loss. Synchronous workers average their gradients, so the
learning rate is multiplied by the number of workers: a sample then moves the weights as far as without averaging.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from prophet_scheduler.engines.exchange import TorchJobExchange
from prophet_scheduler.lab.jobs.common import begin
from prophet_scheduler.lab.jobs.datasets import batches, digits
from prophet_scheduler.lab.jobs.pytorch.training import model_record
from prophet_scheduler.lab.jobs.record import Convergence

CLASSES = 10
WIDTH = 4.0
"""Width of the kernel that the features approximate, on pixel values of 0 to 1."""
LOOKED_AT = 256
"""Number of samples in the recorded mean loss, the same samples on every worker."""
SLOW_STREAM = 2


class Features:
    """Random cosine features of images, [n, 1, 8, 8] to [n, `count`]; the same on every worker."""

    def __init__(self, count: int) -> None:
        noise = torch.Generator().manual_seed(0)
        self._weights = torch.randn(64, count, generator=noise) / WIDTH
        self._phases = 2 * torch.pi * torch.rand(count, generator=noise)
        self._scale = (2 / count) ** 0.5

    def of(self, images: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self._scale * torch.cos(images.flatten(1) @ self._weights + self._phases)
        return made


def computing_s(compute_s: float, chance: float, factor: float, seed: int, rank: int) -> Iterator[float]:
    """Yield the seconds that each computation of worker `rank` takes; the draws do not depend on the worker's speed."""
    random = np.random.default_rng([seed, SLOW_STREAM, rank])
    while True:
        yield compute_s * (factor if random.random() < chance else 1.0)


def main() -> None:
    torch.set_num_threads(1)
    exchange: TorchJobExchange
    spec, recorder, exchange = begin(__doc__)
    features = Features(spec.features)
    everybodys = digits()
    looked_at = features.of(torch.from_numpy(everybodys.images[:LOOKED_AT]))
    their_labels = torch.from_numpy(everybodys.labels[:LOOKED_AT])
    data = digits(exchange.rank, exchange.size)
    inputs, labels = features.of(torch.from_numpy(data.images)), torch.from_numpy(data.labels)

    model = nn.Linear(spec.features, CLASSES, bias=False)
    nn.init.zeros_(model.weight)
    apart = getattr(exchange, "asynchronous", False)
    rate = spec.learning_rate * (1 if apart else exchange.size)
    called, optimizer = exchange.distribute(model, torch.optim.SGD(model.parameters(), lr=rate))
    rounds = getattr(optimizer, "asynchronous", None)
    batch = batches(len(inputs), spec.batch_size, spec.seed + exchange.rank)
    computing = computing_s(spec.compute_s, spec.slow_chance, spec.slow_factor, spec.seed, exchange.rank)
    kept = Convergence()
    for _ in range(spec.iterations):
        recorder.iteration_starts()
        due = time.monotonic() + next(computing)
        with torch.no_grad():
            # The model must be complete here anyway, since this iteration's gradients are computed from it.
            loss = nn.functional.cross_entropy(model(looked_at), their_labels)
        kept.keep(time.monotonic(), float(loss), None if rounds is None else rounds.version)
        chosen = torch.from_numpy(next(batch))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(called(inputs[chosen]), labels[chosen])
        recorder.backward_starts()
        if not apart:
            _sleep_until(due)  # before the gradient is computed, since it is sent at once
        loss.backward()  # type: ignore[no-untyped-call]
        _sleep_until(due)
        recorder.backward_ends()
        optimizer.step()
        recorder.iteration_ends()
    if rounds is not None:
        tally = rounds.tally
        kept.sent, kept.dropped, kept.uncoordinated = tally.sent, tally.dropped, tally.uncoordinated
        kept.greatest_delay = tally.greatest_delay
        kept.applied = rounds.own_updates
    sizes, _ = model_record(model)
    recorder.write(sizes, None, exchange.rank, convergence=kept)
    exchange.close()


def _sleep_until(due: float) -> None:
    time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    main()
