"""Parts that the PyTorch job scripts share: the training loop and the record of the final model.

Rule of this file: the order of marks, backward pass and step; each script has its own model, data and loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from prophet_scheduler.engines.exchange import TorchJobExchange
from prophet_scheduler.lab.job_config import JobConfig
from prophet_scheduler.lab.jobs.common import Recorder, begin, weights_sha256


def model_record(model: torch.nn.Module) -> tuple[dict[str, int], str]:
    """Return the parameters' sizes in bytes by name, in order, and a digest of their values.

    Buffers are left out, since the running means of batch normalisation differ between workers.
    """
    weights = {name: parameter.detach().cpu().numpy() for name, parameter in model.named_parameters()}
    return {name: array.nbytes for name, array in weights.items()}, weights_sha256(weights)


def accuracy(model: torch.nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the share of right predictions; the last dimension of the output has a score per class."""
    model.eval()
    with torch.no_grad():
        right: torch.Tensor = (model(inputs).argmax(-1) == labels).float()
    return float(right.mean())


def train(
    spec: JobConfig,
    exchange: TorchJobExchange,
    recorder: Recorder,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_of: Callable[[Any, int], torch.Tensor],
    clip_norm: float = 0.0,
    schedule_of: Callable[[Any], Any] | None = None,
) -> None:
    """Train `model` for `spec.iterations`, clipped by the norm of all gradients if `clip_norm` is above 0.

    `loss_of` gets the model as wrapped by the exchange, and the iteration's number, from 0. `schedule_of` returns a
    learning-rate schedule for the wrapped optimizer.
    """
    called, wrapped = exchange.distribute(model, optimizer)
    schedule = None if schedule_of is None else schedule_of(wrapped)
    for iteration in range(spec.iterations):
        recorder.iteration_starts()
        wrapped.zero_grad()
        loss = loss_of(called, iteration)
        recorder.backward_starts()
        loss.backward()  # type: ignore[no-untyped-call]
        recorder.backward_ends()
        if clip_norm:
            with exchange.averaged(wrapped):
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
                wrapped.step()
        else:
            wrapped.step()
        if schedule is not None:
            schedule.step()
        recorder.iteration_ends()


def run(
    description: str | None,
    job: Callable[[Any, TorchJobExchange, Recorder], tuple[torch.nn.Module, float | None]],
    deterministic: bool = True,
) -> None:
    """Run a script: `job` trains, then returns the model and its accuracy (None if it is not tested)."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(deterministic)
    exchange: TorchJobExchange
    spec, recorder, exchange = begin(description)
    model, accuracy = job(spec, exchange, recorder)
    recorder.write(*model_record(model), exchange.rank, accuracy)
    exchange.close()
