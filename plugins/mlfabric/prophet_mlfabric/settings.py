"""Settings of a worker whose job has a coordinator, from the variables in core's settings; token files.

Rule of this file: defaults and parsing; docs/mlfabric.md has the table for users. A tenant's workers authenticate to
the coordinator with a token; messages.py has the proof.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.files import read_text
from prophet_scheduler.core.settings import (
    COORDINATOR,
    COORDINATOR_BOUND_S,
    COORDINATOR_TENANT,
    COORDINATOR_TOKEN_FILE,
    MOST_PORT,
    NODE,
    REPLICA,
    number,
)

DEFAULT_COORDINATOR_BOUND_S = 5.0
_LINE = re.compile(r"([A-Za-z0-9._:-]{1,128})\s+(\S{16,})")
"""A shorter token could be guessed from one overheard proof."""


@dataclass(frozen=True)
class CoordinatorSettings:
    """Address of a worker's coordinator, and what this worker tells it.

    `bound_s` is the maximum silence of the coordinator, in seconds, before updates go in arrival order. `node` names
    the NIC; None for the host's name.
    """

    address: str
    tenant: str
    token: str
    bound_s: float = DEFAULT_COORDINATOR_BOUND_S
    node: str | None = None


def host_and_port(text: str, where: str, least_port: int = 1) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`, perhaps after tcp://. Raises UserError that names `where` it was given."""
    host, _, port = text.removeprefix("tcp://").rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        host.encode("idna")
    except UnicodeError:  # no name that can be looked up
        host = ""
    if not host or not (port.isascii() and port.isdecimal()) or not least_port <= int(port) <= MOST_PORT:
        raise UserError(f"{where} is {text!r}; it must be HOST:PORT, the port {least_port} to {MOST_PORT}")
    return host, int(port)


def coordinator_from_environ(environ: Mapping[str, str]) -> CoordinatorSettings | None:
    """Return the settings; None if the job has no coordinator. Raises UserError that names the invalid variable."""
    address = environ.get(COORDINATOR, "")
    if not address:
        if environ.get(REPLICA):
            raise UserError(f"{REPLICA} is set, but {COORDINATOR} is not: name the coordinator that is to order copies")
        return None
    host_and_port(address, COORDINATOR)
    token_file = environ.get(COORDINATOR_TOKEN_FILE, "")
    if not token_file:
        raise UserError(f"{COORDINATOR} is set, but {COORDINATOR_TOKEN_FILE} is not: name the file with its token")
    bound_s = number(environ.get(COORDINATOR_BOUND_S, str(DEFAULT_COORDINATOR_BOUND_S)), COORDINATOR_BOUND_S, 0.05)
    return CoordinatorSettings(
        address,
        *token_of(Path(token_file), environ.get(COORDINATOR_TENANT) or None),
        bound_s,
        environ.get(NODE) or None,
    )


def load_tokens(path: Path) -> dict[str, str]:
    """Return tokens by tenant from a file of lines `TENANT TOKEN`, skipping empty lines and lines that start with #.
    Raises UserError, which never contains a token.
    """
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UserError(f"{path}: cannot be read ({reason}); give a file with lines `TENANT TOKEN`") from None
    tokens: dict[str, str] = {}
    for place, line in enumerate(map(str.strip, text.splitlines()), start=1):
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None or match[1] in tokens:
            what = "a tenant once, and a token without spaces of 16 characters or more"
            raise UserError(f"{path}, line {place}: write `TENANT TOKEN`, {what}")
        tokens[match[1]] = match[2]
    if not tokens:
        raise UserError(f"{path} has no tenant: write a line `TENANT TOKEN`")
    return tokens


def token_of(file: Path, tenant: str | None) -> tuple[str, str]:
    """Return the tenant and its token from a token file; the only tenant if `tenant` is None. Raises UserError."""
    tokens = load_tokens(file)
    if tenant is None:
        if len(tokens) > 1:
            raise UserError(f"{file} has {len(tokens)} tenants: say in {COORDINATOR_TENANT} which one this job is")
        tenant = next(iter(tokens))
    if tenant not in tokens:
        raise UserError(f"{file} has no tenant {tenant}, which {COORDINATOR_TENANT} says")
    return tenant, tokens[tenant]
