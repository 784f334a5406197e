"""A replica of a job's model: a file that always holds a whole version, and the settings that name it.

Rule of this file: the file's format, and its checks before a job begins. lag.py decides when a copy is due, and
torch/replicating.py makes it.

The file is NumPy's .npz without pickles: `weights/NAME` for each parameter, and counts of the updates in the model. The
checksums of the ZIP format detect changed or truncated parts. A copy is written beside the file and replaces it once it
is complete. So the file is a valid model whenever this process ends.

A job that did not begin with its replica's model would overwrite it with an older one, so that is refused at the start.
"""

from __future__ import annotations

import glob
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.files import placed, require_places, whole_file
from prophet_scheduler.core.settings import REPLICA, RESUME, is_first_machine

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


def load(path: Path, where: str, with_weights: bool = True) -> ReplicaModel:
    """Return the model in a file, with or without its weights. Raises UserError that names the file as `where`."""
    if not path.is_file():
        raise UserError(f"{where}: there is no such file")
    try:
        with np.load(path, allow_pickle=False) as parts:
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
        raise UserError(f"{where}: not a replica of a model ({why}); name a file of {REPLICA}") from None
    return ReplicaModel(weights, counts, before, bound)


def keep(model: ReplicaModel, path: Path) -> None:
    """Replace the model in the file. Raises OSError, and UserError if the file has a newer one."""
    if path.exists() and (has := load(path, str(path), with_weights=False).updates) > model.updates:
        raise UserError(f"{path} has a model with {has} updates, and this one has {model.updates}")
    about = {"schema": SCHEMA, "counts": np.array(model.counts, np.int64), "before": model.before, "bound": model.bound}
    with whole_file(placed(path)) as file:
        np.savez(file, **about, **{WEIGHTS + name: array for name, array in model.weights.items()})  # type: ignore[arg-type]


@dataclass(frozen=True)
class JobReplica:
    """Replica as one worker sees it: the `file` of copies, and the `model` that the job begins with, from `where`. Both
    are None except on worker 0. `of_one_model` is True if the job has either.
    """

    file: Path | None = None
    model: ReplicaModel | None = None
    where: str = ""
    of_one_model: bool = False

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> JobReplica:
        """Load the model to begin with, and check the file that is to keep copies. Raises UserError."""
        where, own = environ.get(RESUME, ""), environ.get(REPLICA, "")
        if not is_first_machine(environ) or not (where or own):
            return cls(of_one_model=bool(where or own))
        model = load(Path(where), f"{RESUME}: {where}") if where else None
        if own:
            _check(Path(own), 0 if model is None else model.updates)
        return cls(Path(own) if own else None, model, where, True)


def _check(file: Path, begins: int) -> None:
    require_places({REPLICA: file})
    for left in file.absolute().parent.glob(glob.escape(file.name) + ".*.part"):  # left by a killed process
        left.unlink(missing_ok=True)
    has = load(file, f"{REPLICA}: {file}", with_weights=False).updates if file.exists() else 0
    if has > begins:
        raise UserError(
            f"{REPLICA}: {file} has a model with {has} updates, but this job begins with {begins}: begin with that "
            f"model ({RESUME}={file}), or name another file"
        )
