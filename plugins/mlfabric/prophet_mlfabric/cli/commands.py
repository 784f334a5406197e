"""The commands of MLfabric, as entry points of the group `prophet.commands`.

Rule of this file: arguments. Imports are inside the commands to keep `prophet --help` quick.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def coordinate(
    token_file: Annotated[Path, typer.Option(help="File with a line `TENANT TOKEN` for each job.")],
    listen: Annotated[str, typer.Option(help="HOST:PORT, with an address of this machine.")] = "0.0.0.0:9650",
    delay_bound: Annotated[int | None, typer.Option(help="Greatest delay of an update, in versions.")] = None,
    server: Annotated[str, typer.Option(help="Name of the parameter server's NIC among the nodes.")] = "server",
    server_rate: Annotated[str | None, typer.Option(help="Rate of that NIC, such as 10gbit; default: --rate.")] = None,
    rate: Annotated[str, typer.Option(help="Rate of a NIC until its worker has reported it.")] = "10gbit",
    batch: Annotated[str, typer.Option(help="Longest time to gather updates before ordering them.")] = "100ms",
    dead_after: Annotated[str, typer.Option(help="How long a worker may be silent before it counts as dead.")] = "10s",
    divergence_bound: Annotated[float | None, typer.Option(help="How far a replica may be behind, as a norm.")] = None,
    status: Annotated[Path | None, typer.Option(help="JSON file for the outcomes of all updates.")] = None,
) -> None:
    """Coordinate asynchronous jobs (MLfabric) until Ctrl-C or SIGTERM."""
    from prophet_mlfabric.cli import serving
    from prophet_mlfabric.terms import Terms
    from prophet_scheduler.cli.options import parsed
    from prophet_scheduler.core.units import parse_rate, parse_time

    terms = Terms(
        delay_bound=delay_bound,
        server=server,
        rate=parsed("--rate", rate, parse_rate) / 8,
        server_rate=None if server_rate is None else parsed("--server-rate", server_rate, parse_rate) / 8,
        batch_s=parsed("--batch", batch, parse_time),
        dead_s=parsed("--dead-after", dead_after, parse_time),
        divergence_bound=divergence_bound,
    )
    serving.coordinate(listen, token_file, terms, status, typer.echo)


def replicate(
    token_file: Annotated[Path, typer.Option(help="File with the job's line `TENANT TOKEN`, as the coordinator's.")],
    file: Annotated[Path, typer.Option(help="The model's file; an existing one is continued.")],
    listen: Annotated[str, typer.Option(help="HOST:PORT, with an address of this machine.")] = "0.0.0.0:9651",
    tenant: Annotated[str | None, typer.Option(help="Tenant in that file, if it has several.")] = None,
) -> None:
    """Keep a replica of an MLfabric job's model until Ctrl-C or SIGTERM."""
    from prophet_mlfabric.cli import serving

    serving.replicate(listen, token_file, tenant, file, typer.echo)
