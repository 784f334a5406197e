"""A replica of one job's model: a file that always holds a whole version, and a worker's access to it.

Rule of this file: the file's format, the copy in it, and requests over exchange.py. lag.py decides when a copy is due,
and a front end has the weights.

The file is NumPy's .npz without pickles: `weights/NAME` for each parameter, and counts of the updates in the model. The
checksums of the ZIP format detect changed or truncated parts.

A copy is written beside the file. It replaces the file once it is complete, is a model, and is no older than the
file's. So the file is a valid model whenever this process ends, and a copy that was reported as stored is not lost.
"""

from __future__ import annotations

import enum
import glob
import io
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from prophet_mlfabric.exchange import DONE, REFUSED, TIMEOUT_S, Asked, Listener, Request, key_of
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.files import whole_file

SCHEMA = 1
WEIGHTS = "weights/"
NO_MODEL = 2**64 - 1
"""Number of updates that a replica without a model reports."""
MOST_BYTES = 1 << 40
"""Maximum bytes of a model."""


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


class RequestKind(enum.IntEnum):
    """Kinds of requests. The `number` of a request or an answer is the number of updates in the model."""

    STATE = 1
    KEEP = 2
    """The model is the payload."""
    MODEL = 3


class KeptModel:
    """File of a replica. `updates` is the number of updates in its model; None without one."""

    def __init__(self, path: Path) -> None:
        """Raises UserError if the file exists and is not a replica of a model."""
        self.path = path
        self.updates = load(path, str(path), with_weights=False).updates if path.exists() else None
        self.copies = 0
        for left in path.absolute().parent.glob(glob.escape(path.name) + ".*.part"):  # left by a killed process
            left.unlink(missing_ok=True)

    def take(self, data: bytes, updates: int) -> None:
        """Replace the model in the file. Raises UserError if this model is older, invalid, or cannot be written."""
        if self.updates is not None and updates < self.updates:
            raise UserError(
                f"it has a model with {self.updates} updates, and this one has {updates}: it keeps the newer one"
            )
        if load(io.BytesIO(data), str(self.path), with_weights=False).updates != updates:
            raise UserError(f"this model does not have {updates} updates, as its sender says")
        try:
            with whole_file(self.path) as file:
                file.write(data)
        except OSError as error:
            raise UserError(f"it could not write the model ({error.strerror})") from None
        self.updates = updates
        self.copies += 1

    def handle(self, request: Request) -> None:
        """Answer a worker's request."""
        data = b""
        try:
            if request.kind not in list(RequestKind):
                raise UserError("there is no such request")
            if request.kind == RequestKind.KEEP:
                self.take(request.payload, request.number)
            elif request.kind == RequestKind.MODEL and self.updates is None:
                raise UserError("it has no model yet")
            elif request.kind == RequestKind.MODEL:
                data = self.path.read_bytes()
        except UserError as error:
            request.answer(REFUSED, 0, str(error).encode())
        else:
            request.answer(DONE, NO_MODEL if self.updates is None else self.updates, data)


def replica_server(host: str, port: int, tenant: str, token: str, kept: KeptModel) -> Listener:
    """Return the listener of a replica. Raises UserError if nothing can listen there."""
    try:
        return Listener(host, port, key_of(tenant, token), MOST_BYTES, kept.handle)
    except OSError as error:
        raise UserError(f"--listen {host}:{port}: {error.strerror}; choose an address of this machine") from None


class ReplicaStore:
    """Client of `tenant`'s replica at an address. Thread-safe: each call makes its own connection.

    Methods raise OSError if nothing answers for `timeout_s`, and UserError if it refuses or lacks the job's token.
    """

    def __init__(self, host: str, port: int, tenant: str, token: str, timeout_s: float = TIMEOUT_S) -> None:
        self.address = f"{host}:{port}"
        self._place = host, port
        self._key = key_of(tenant, token)
        self._timeout_s = timeout_s

    def updates(self) -> int | None:
        """Return the number of updates in the replica's model; None without a model."""
        updates, _ = self._ask(RequestKind.STATE)
        return None if updates == NO_MODEL else updates

    def keep(self, data: bytes, updates: int) -> None:
        """Send the replica this model with `updates` updates. Return when the model is on its disk."""
        self._ask(RequestKind.KEEP, data, updates)

    def model(self) -> bytes:
        """Return the replica's model, as the bytes of its file."""
        return self._ask(RequestKind.MODEL)[1]

    def _ask(self, kind: RequestKind, data: bytes = b"", updates: int = 0) -> tuple[int, bytes]:
        try:
            with Asked(self._place, self._key, kind, number=updates, payload=data, timeout_s=self._timeout_s) as asked:
                return asked.answer()
        except UserError as error:
            raise UserError(f"replica {self.address}: {error}") from None
