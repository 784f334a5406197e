"""Command `prophet replicate`: options to a replica, and a server until the end.

Rule of this file: the user's options and output. replica.py has the replica.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from prophet_mlfabric.replica import KeptModel, replica_server
from prophet_mlfabric.settings import host_and_port
from prophet_mlfabric.tokens import token_of
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.files import placed, require_places


def serve(listen: str, token_file: Path, tenant: str | None, file: Path, say: Callable[[str], None]) -> None:
    """Serve until KeyboardInterrupt. Raises UserError for wrong input before it listens."""
    name, token = token_of(token_file, tenant, "--tenant")
    host, port = host_and_port(listen, "--listen", 0)
    require_places({"--file": file})
    try:
        kept = KeptModel(file)
    except UserError as error:
        raise UserError(f"--file {error}") from None
    with contextlib.closing(replica_server(host, port, name, token, kept)) as server:
        placed(file)  # only once it listens, so that wrong input leaves no files
        has = "no model yet" if kept.updates is None else f"a model with {kept.updates} updates"
        say(f"listening on {server.address[0]}:{server.address[1]} for {name}; {file} has {has}")
        try:
            server.serve()
        except KeyboardInterrupt:
            pass
        finally:
            has = "no model" if kept.updates is None else f"a model with {kept.updates} updates"
            say(f"{kept.copies} copies were kept; {file} has {has}")
