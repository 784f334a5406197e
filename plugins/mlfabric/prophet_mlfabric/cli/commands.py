"""The commands of MLfabric, as entry points of the group `prophet.commands`.

What belongs here: arguments in. Imports are inside the commands to keep `prophet --help` quick.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def coordinate(
    token_file: Annotated[Path, typer.Option(help="File with a line `TENANT TOKEN` for each job.")],
    listen: Annotated[str, typer.Option(help="HOST:PORT, the host an address of this machine.")] = "0.0.0.0:9650",
    delay_bound: Annotated[int | None, typer.Option(help="Most versions an update may be late.")] = None,
    server: Annotated[str, typer.Option(help="Name of the parameter server's NIC among the nodes.")] = "server",
    server_rate: Annotated[str | None, typer.Option(help="Of that NIC, such as 10gbit; --rate where left out.")] = None,
    rate: Annotated[str, typer.Option(help="Of a NIC whose rate no worker has reported yet.")] = "10gbit",
    batch: Annotated[str, typer.Option(help="How long updates are gathered at most for one order.")] = "100ms",
    dead_after: Annotated[str, typer.Option(help="How long a worker may be silent before it counts as dead.")] = "10s",
    divergence_bound: Annotated[float | None, typer.Option(help="Most a replica may be behind, as a norm.")] = None,
    status: Annotated[Path | None, typer.Option(help="File (JSON) for what came of all updates.")] = None,
) -> None:
    """Be the coordinator of asynchronous jobs (MLfabric), until Ctrl-C or SIGTERM."""
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
    token_file: Annotated[Path, typer.Option(help="File with the job's line `TENANT TOKEN`, as its coordinator has.")],
    file: Annotated[Path, typer.Option(help="Where the model is kept; what is there is gone on from.")],
    listen: Annotated[str, typer.Option(help="HOST:PORT, the host an address of this machine.")] = "0.0.0.0:9651",
    tenant: Annotated[str | None, typer.Option(help="Which line of the file of tokens; the only one.")] = None,
) -> None:
    """Be the replica of an MLfabric job's model, until Ctrl-C or SIGTERM."""
    from prophet_mlfabric.cli import serving

    serving.replicate(listen, token_file, tenant, file, typer.echo)
