"""The work of `prophet coordinate` and `prophet replicate`: from options to a server that runs until the end.

Rule of this file: the user's options and output. server.py has the coordinator, replica.py the replica.
"""

from __future__ import annotations

import contextlib
import json
import stat
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from prophet_mlfabric.coordination import Coordination
from prophet_mlfabric.replica import KeptModel, replica_server
from prophet_mlfabric.server import CoordinatorServer, coordinator
from prophet_mlfabric.settings import host_and_port, load_tokens, token_of
from prophet_mlfabric.terms import Terms
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.files import placed, require_places, write_whole

LEAST_DEAD_S = 2.0


def coordinate(listen: str, token_file: Path, terms: Terms, status: Path | None, say: Callable[[str], None]) -> None:
    """Serve until KeyboardInterrupt. Raises UserError for invalid input before it listens."""
    if terms.dead_s < LEAST_DEAD_S:
        raise UserError(f"--dead-after {terms.dead_s:g}s: workers speak once a second; give {LEAST_DEAD_S:g}s or more")
    tokens = load_tokens(token_file)
    readable = token_file.stat().st_mode & stat.S_IROTH
    if status is not None:
        require_places({"--status": status})
    connections = coordinator(tokens, terms)
    server = CoordinatorServer(listen, connections, say=say)
    if readable:
        say(f"{token_file} can be read by everybody on this machine: chmod o-r {token_file}")
    try:
        say(f"listening on {server.address} for {', '.join(sorted(tokens))}")
        server.serve()
    finally:
        for line in summary(connections.jobs):
            say(line)
        if status is not None:
            write_whole(status_text(connections.jobs, connections.refused), placed(status))


def summary(jobs: Mapping[str, Coordination]) -> list[str]:
    """Return one line for each job with any update or refused request."""
    lines = []
    for tenant, job in sorted(jobs.items()):
        counts = job.counts
        if counts.applied or counts.dropped or counts.lost or counts.refused:
            lines.append(
                f"{tenant}: {counts.applied} updates applied, greatest delay {counts.greatest_delay}; "
                f"{counts.dropped} dropped, {counts.lost} lost, {counts.ungranted} without a grant, "
                f"{counts.refused} requests refused"
                + (f"; {job.lag.copies} copies to the replica, {job.lag.failed} failed" if job.replicated else "")
            )
    return lines


def status_text(jobs: Mapping[str, Coordination], refused: int) -> str:
    """Return `{"schema": 1, "refused": N, "tenants": {NAME: {"version": ..., counts}}}`, as JSON.

    `refused` counts messages refused before they reached a job. With a replica, `copies` and `copies_failed` count its
    copies, and `greatest_divergence` is the maximum norm that it may have lacked while it was reachable.
    """
    tenants: dict[str, dict[str, float]] = {}
    for tenant, job in jobs.items():
        tenants[tenant] = {"version": job.version, **asdict(job.counts)}
        if job.replicated:
            lag = job.lag
            tenants[tenant] |= {"copies": lag.copies, "copies_failed": lag.failed, "greatest_divergence": lag.greatest}
    return json.dumps({"schema": 1, "refused": refused, "tenants": tenants}, indent=1) + "\n"


def replicate(listen: str, token_file: Path, tenant: str | None, file: Path, say: Callable[[str], None]) -> None:
    """Serve until KeyboardInterrupt. Raises UserError for invalid input before it listens."""
    name, token = token_of(token_file, tenant, "--tenant")
    host, port = host_and_port(listen, "--listen", 0)
    require_places({"--file": file})
    try:
        kept = KeptModel(file)
    except UserError as error:
        raise UserError(f"--file {error}") from None

    def has() -> str:
        return f"{file} has {'no model yet' if kept.updates is None else f'a model with {kept.updates} updates'}"

    with contextlib.closing(replica_server(host, port, name, token, kept)) as server:
        placed(file)  # only once it listens, so that invalid input leaves no files
        say("listening on {}:{} for {}; {}".format(*server.address, name, has()))
        try:
            server.serve()
        finally:
            say(f"{kept.copies} copies were kept; {has()}")
