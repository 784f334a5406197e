"""The command of MLfabric, as an entry point of the group `prophet.commands`.

Rule of this file: the user's options and output. server.py has the coordinator. Imports are inside the command to keep
`prophet --help` quick.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from prophet_mlfabric.coordination import Coordination

LEAST_DEAD_S = 2.0


def coordinate(
    token_file: Annotated[Path, typer.Option(help="File with a line `TENANT TOKEN` for each job.")],
    listen: Annotated[str, typer.Option(help="HOST:PORT, with an address of this machine.")] = "0.0.0.0:9650",
    delay_bound: Annotated[int | None, typer.Option(help="Greatest delay of an update, in versions.")] = None,
    server_rate: Annotated[str | None, typer.Option(help="Rate of the server's NIC; by default --rate.")] = None,
    rate: Annotated[str, typer.Option(help="Rate of a worker's NIC until its pushes show another.")] = "10gbit",
    batch: Annotated[str, typer.Option(help="Longest time to gather updates before ordering them.")] = "100ms",
    dead_after: Annotated[str, typer.Option(help="How long a worker may have no connection.")] = "10s",
    divergence_bound: Annotated[float | None, typer.Option(help="How far a replica may be behind, as a norm.")] = None,
    status: Annotated[Path | None, typer.Option(help="JSON file for the outcomes of all updates.")] = None,
) -> None:
    """Coordinate asynchronous jobs (MLfabric) until Ctrl-C or SIGTERM."""
    from prophet_mlfabric.coordination import Terms
    from prophet_mlfabric.server import CoordinatorServer, coordinator
    from prophet_mlfabric.settings import load_tokens
    from prophet_scheduler.cli.options import parsed
    from prophet_scheduler.core.errors import UserError
    from prophet_scheduler.core.files import placed, require_places, write_whole
    from prophet_scheduler.core.units import parse_rate, parse_time

    terms = Terms(
        delay_bound=delay_bound,
        rate=parsed("--rate", rate, parse_rate) / 8,
        server_rate=None if server_rate is None else parsed("--server-rate", server_rate, parse_rate) / 8,
        batch_s=parsed("--batch", batch, parse_time),
        dead_s=parsed("--dead-after", dead_after, parse_time),
        divergence_bound=divergence_bound,
    )
    if terms.dead_s < LEAST_DEAD_S:
        raise UserError(f"--dead-after {terms.dead_s:g}s: a worker may reconnect; give {LEAST_DEAD_S:g}s or more")
    tokens = load_tokens(token_file)
    readable = token_file.stat().st_mode & stat.S_IROTH
    if status is not None:
        require_places({"--status": status})
    connections = coordinator(tokens, terms)
    own = CoordinatorServer(listen, connections, say=typer.echo)
    if readable:
        typer.echo(f"{token_file} can be read by everybody on this machine: chmod o-r {token_file}")
    try:
        typer.echo(f"listening on {own.address} for {', '.join(sorted(tokens))}")
        own.serve()
    finally:
        for line in summary(connections.jobs):
            typer.echo(line)
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
                + (f"; {job.lag.copies} copies to the replica, {job.lag.failed} failed" if job.lag.bounded else "")
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
        if job.lag.bounded:
            lag = job.lag
            tenants[tenant] |= {"copies": lag.copies, "copies_failed": lag.failed, "greatest_divergence": lag.greatest}
    return json.dumps({"schema": 1, "refused": refused, "tenants": tenants}, indent=1) + "\n"
