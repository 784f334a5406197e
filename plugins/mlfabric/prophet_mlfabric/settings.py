"""Settings of a worker whose job has a coordinator, from the variables that core's settings name.

What belongs here: defaults and parsing; docs/mlfabric.md has the table for people.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.settings import (
    COORDINATOR,
    COORDINATOR_BOUND_S,
    COORDINATOR_TENANT,
    COORDINATOR_TOKEN_FILE,
    MOST_PORT,
    NODE,
    REPLICA,
    RESUME,
    STALENESS,
    is_first_machine,
    number,
)

DEFAULT_COORDINATOR_BOUND_S = 2.0
MOST_STALENESS = 10**6


@dataclass(frozen=True)
class CoordinatorSettings:
    """Place of a worker's coordinator and terms for it, in seconds. `node` is None for the host's name."""

    address: str
    token_file: Path
    tenant: str | None
    bound_s: float
    node: str | None
    staleness: int | None = None
    replica: tuple[str, int] | None = None
    """Host and port."""


def host_and_port(text: str, where: str, least_port: int = 1) -> tuple[str, int]:
    """Return the parts of `HOST:PORT`, before which tcp:// may be. Raises UserError that names `where` it stands."""
    host, _, port = text.removeprefix("tcp://").rpartition(":")
    if not host or not (port.isascii() and port.isdecimal()) or not least_port <= int(port) <= MOST_PORT:
        raise UserError(f"{where} is {text!r}; it must be HOST:PORT, the port {least_port} to {MOST_PORT}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def resumed_from(environ: Mapping[str, str] = os.environ) -> tuple[str, int] | Path | None:
    """Return the replica or the file that the job is to begin with. Raises UserError where it is neither.

    A file is on the machine of worker 0, which alone reads it.
    """
    text = environ.get(RESUME, "")
    if not text:
        return None
    if ":" in text and "/" not in text and not Path(text).exists():
        return host_and_port(text, RESUME)
    if is_first_machine(environ) and not Path(text).is_file():
        raise UserError(f"{RESUME} is {text!r}; there is no such file: name that of a replica, or write its HOST:PORT")
    return Path(text)


def coordinator_from_environ(environ: Mapping[str, str] = os.environ) -> CoordinatorSettings | None:
    """Read the settings; None where the job has no coordinator. Raises UserError naming the variable that is wrong."""
    address, staleness = environ.get(COORDINATOR, ""), environ.get(STALENESS, "")
    if staleness and not (staleness.isascii() and staleness.isdecimal() and int(staleness) <= MOST_STALENESS):
        raise UserError(f"{STALENESS} is {staleness!r}; it must be a whole number of rounds, 0 to {MOST_STALENESS}")
    if staleness and not address:
        raise UserError(f"{STALENESS} is set, and {COORDINATOR} is not: name the coordinator that is to keep it")
    if not address and environ.get(REPLICA):
        raise UserError(f"{REPLICA} is set, and {COORDINATOR} is not: name the coordinator that is to order copies")
    if not address:
        return None
    host_and_port(address, COORDINATOR)
    token_file = environ.get(COORDINATOR_TOKEN_FILE, "")
    if not token_file:
        raise UserError(f"{COORDINATOR} is set, and {COORDINATOR_TOKEN_FILE} is not: name the file with its token")
    return CoordinatorSettings(
        address,
        Path(token_file),
        environ.get(COORDINATOR_TENANT) or None,
        number(environ.get(COORDINATOR_BOUND_S, str(DEFAULT_COORDINATOR_BOUND_S)), COORDINATOR_BOUND_S, 0.05),
        environ.get(NODE) or None,
        int(staleness) if staleness else None,
        host_and_port(environ[REPLICA], REPLICA) if environ.get(REPLICA) else None,
    )
