"""A model as a replica keeps it: one file, which NumPy can read as well.

Rule of this file: weights to bytes and back, and errors about other bytes. exchange.py carries the bytes, and a front
end has the weights.

The file is NumPy's .npz without pickles: `weights/NAME` for each parameter, and the updates in the model. The checksums
of the ZIP format reveal a part that was changed or cut off.
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

    `weights` are float32 by the parameters' names, in the order of the optimizer. `counts` has the number of updates of
    each worker since the job began; `before` is the number in the model with which the job began. `bound` is the
    maximum lag of the replica behind its server, as a norm.
    """

    weights: Mapping[str, NDArray[np.float32]]
    counts: tuple[int, ...]
    before: int
    bound: float

    @property
    def updates(self) -> int:
        """Number of updates in it, from this job and the jobs that it continues."""
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
    """Return the model in a file, perhaps without its weights; `where` names the file in errors. Raises UserError."""
    try:
        with np.load(source, allow_pickle=False) as parts:
            if int(parts["schema"]) != SCHEMA:
                raise ValueError(f"schema {int(parts['schema'])}, and this Prophet knows {SCHEMA}")
            counts = tuple(int(count) for count in parts["counts"])
            before, bound = int(parts["before"]), float(parts["bound"])
            names = [name for name in parts.files if name.startswith(WEIGHTS)] if with_weights else []
            weights = {name.removeprefix(WEIGHTS): parts[name] for name in names}
        if before < 0 or any(count < 0 for count in counts):
            raise ValueError("fewer than no updates")
        other = next((array.dtype for array in weights.values() if array.dtype != np.float32), None)
        if other is not None:
            raise ValueError(f"weights of {other}")
    except OSError as error:
        raise UserError(f"{where}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{where}: no replica of a model ({why}); name the file of a `prophet replicate`") from None
    return ReplicaModel(weights, counts, before, bound)
