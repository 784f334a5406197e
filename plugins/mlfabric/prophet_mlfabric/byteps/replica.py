"""Replica of an asynchronous job, from a worker's environment: where copies go, and the model the job begins with.

Rule of this file: from settings to a store and a model, before anything is sent, and messages about them.
prophet_mlfabric/torch/replicating.py makes copies.

A job that did not begin with its replica's model would overwrite it with an older one, so that is refused at the start.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from prophet_mlfabric.settings import coordinator_from_environ, resumed_from, token_of
from prophet_scheduler.core import settings as names
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.settings import is_first_machine
from prophet_scheduler.frontends.ending import say

if TYPE_CHECKING:  # a job without a replica loads none of it
    from prophet_mlfabric.replica import ReplicaModel, ReplicaStore

Named: TypeAlias = Iterable[tuple[str, Any]] | None
"""A program's parameters with their names; None if it gave none."""


@dataclass(frozen=True)
class Replica:
    """Replica as one worker sees it. `store` is None if no copies are made. `model`, with `where` it came from, is None
    except on the worker that starts the job with it. `resumes` is True if the job begins with a replica's model.
    """

    store: ReplicaStore | None = None
    model: ReplicaModel | None = None
    where: str = ""
    resumes: bool = False

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Replica:
        """Load the model to begin with, and check the replica that is to keep copies. Raises UserError.

        If the latter cannot be reached, the job continues.
        """
        source, coordinator = resumed_from(environ), coordinator_from_environ(environ)
        own = None if coordinator is None else coordinator.replica
        if source is None and own is None:
            return cls()
        root = is_first_machine(environ)
        model, where = _model(source, environ) if root and source is not None else (None, "")
        store, has = None if own is None else _store(own, environ), None
        if store is not None:
            with contextlib.suppress(OSError):
                has = store.updates()
            begins = 0 if model is None else model.updates
            if root and has is not None and has > begins:
                raise UserError(
                    f"{names.REPLICA}: replica {store.address} has a model with {has} updates, but this job begins "
                    f"with {begins}: begin with that model ({names.RESUME}={store.address}), or give "
                    "`prophet replicate` another --file"
                )
        return cls(store, model, where, source is not None)

    @property
    def is_of_one_model(self) -> bool:
        """True if the job keeps copies or begins with one, which is possible for one optimizer's model only."""
        return self.store is not None or self.resumes

    def begin(self, optimizer: Any, named: Named) -> int:
        """Set an optimizer's parameters to the replica's values, on the one worker that has them.

        Return the number of updates in them, 0 on other workers. Raises UserError if they are of another model.
        """
        if self.model is None:
            return 0
        from prophet_mlfabric.torch.replicating import begin_with, names_of

        parameters = parameters_of(optimizer)
        begin_with(self.model, parameters, names_of(parameters, named), self.where)
        say(
            f"this job begins with the {self.model.updates} updates that {self.where} has; later updates of its "
            f"server, with a total norm of at most {self.model.bound:g}, are lost"
        )
        return self.model.updates


def parameters_of(optimizer: Any) -> list[Any]:
    """Return the trained parameters, in the optimizer's order."""
    return [param for group in optimizer.param_groups for param in group["params"] if param.requires_grad]


def _store(at: tuple[str, int], environ: Mapping[str, str]) -> ReplicaStore:
    from prophet_mlfabric.replica import ReplicaStore

    file = environ.get(names.COORDINATOR_TOKEN_FILE, "")
    if not file:
        raise UserError(f"{names.RESUME} names a replica, but {names.COORDINATOR_TOKEN_FILE} no file with its token")
    tenant, token = token_of(Path(file), environ.get(names.COORDINATOR_TENANT) or None)
    return ReplicaStore(*at, tenant, token)


def _model(source: tuple[str, int] | Path, environ: Mapping[str, str]) -> tuple[ReplicaModel, str]:
    from prophet_mlfabric.replica import load

    if isinstance(source, Path):
        return load(source, f"{names.RESUME}: {source}"), str(source)
    store = _store(source, environ)
    where = f"replica {store.address}"
    try:
        return load(io.BytesIO(store.model()), f"{names.RESUME}: {where}"), where
    except OSError as error:
        why = error.strerror or str(error) or type(error).__name__
        raise UserError(f"{names.RESUME}: {where} cannot be reached ({why}); start it, or name its file") from None
    except UserError as error:
        raise UserError(str(error) if str(error).startswith(names.RESUME) else f"{names.RESUME}: {error}") from None
