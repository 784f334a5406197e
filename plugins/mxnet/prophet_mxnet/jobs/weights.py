"""Record of a Gluon model at the end of a job."""

from __future__ import annotations

import mxnet as mx

from prophet_mxnet.exchanges import ordered_parameters
from prophet_scheduler.lab.jobs.common import weights_sha256


def model_record(network: mx.gluon.Block) -> tuple[dict[str, int], str]:
    """Return (bytes of each parameter by name, in order; digest of their values), for the recorder.

    Waits for all pending work. The digest goes by place: Gluon's generated names depend on the process's other blocks.
    """
    parameters = ordered_parameters(network)
    weights = {f"{place:05}": parameter.data().asnumpy() for place, parameter in enumerate(parameters)}
    sizes = {parameter.name: array.nbytes for parameter, array in zip(parameters, weights.values(), strict=True)}
    return sizes, weights_sha256(weights)
