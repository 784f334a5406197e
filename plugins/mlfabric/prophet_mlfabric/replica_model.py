"""The file format of a replica's model, which NumPy can read as well.

Rule of this file: weights to bytes and back, and errors about invalid bytes. exchange.py sends the bytes, and a front
end has the weights.

The file is NumPy's .npz without pickles: `weights/NAME` for each parameter, and counts of the updates in the model. The
checksums of the ZIP format detect changed or truncated parts.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from prophet_scheduler.core.errors import UserError

SCHEMA = 1
WEIGHTS = "weights/"


@dataclass(frozen=True)
class ReplicaModel:
    """One version of a model.

    `weights` are float32 by parameter name, in the optimizer's order. `counts` has the number of updates of each worker
    since the job began; `before` is the number of updates in the model that the job began with. `bound` is the maximum
    lag of the replica behind its server, as a norm.
    """

    weights: Mapping[str, NDArray[np.float32]]
    counts: tuple[int, ...]
    before: int
    bound: float

    @property
    def updates(self) -> int:
        """Number of updates in the model, from this job and the jobs that it continues."""
        return self.before + sum(self.counts)


def encoded(model: ReplicaModel) -> bytes:
    """Return the content of the file."""
    file = io.BytesIO()
    about: dict[str, NDArray[np.generic]] = {
        "schema": np.array(SCHEMA),
        "counts": np.array(model.counts, dtype=np.int64),
        "before": np.array(model.before),
        "bound": np.array(model.bound),
    }
    np.savez(file, **about, **{WEIGHTS + name: array for name, array in model.weights.items()})
    return file.getvalue()


def load(source: Path | IO[bytes], where: str, with_weights: bool = True) -> ReplicaModel:
    """Return the model in a file, with or without its weights. Raises UserError that names the file as `where`."""
    try:
        with np.load(source, allow_pickle=False) as parts:
            if int(parts["schema"]) != SCHEMA:
                raise ValueError(f"schema {int(parts['schema'])}, but this Prophet knows {SCHEMA}")
            counts = tuple(int(count) for count in parts["counts"])
            before, bound = int(parts["before"]), float(parts["bound"])
            names = [name for name in parts.files if name.startswith(WEIGHTS)] if with_weights else []
            weights = {name.removeprefix(WEIGHTS): parts[name] for name in names}
        if before < 0 or any(count < 0 for count in counts):
            raise ValueError("a negative number of updates")
        other = next((array.dtype for array in weights.values() if array.dtype != np.float32), None)
        if other is not None:
            raise ValueError(f"weights of {other}")
    except OSError as error:
        raise UserError(f"{where}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{where}: not a replica of a model ({why}); name the file of a `prophet replicate`") from None
    return ReplicaModel(weights, counts, before, bound)
