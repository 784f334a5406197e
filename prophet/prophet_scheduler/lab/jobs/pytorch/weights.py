"""Record of a PyTorch model at the end of a job."""

from __future__ import annotations

import torch

from prophet_scheduler.lab.jobs.common import weights_sha256


def model_record(model: torch.nn.Module) -> tuple[dict[str, int], str]:
    """Return (bytes of the parameters by name, in order, digest of their values), for the recorder.

    Buffers are left out, because each worker has its own running means of batch normalisation.
    """
    weights = {name: parameter.detach().cpu().numpy() for name, parameter in model.named_parameters()}
    return {name: array.nbytes for name, array in weights.items()}, weights_sha256(weights)
