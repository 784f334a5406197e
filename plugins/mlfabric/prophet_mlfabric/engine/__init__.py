"""The engine of BytePS's asynchronous servers: workers are not in step, and each update changes the model on arrival.

It is separate from BytePS's synchronous engine, where a policy orders one worker's gradients. Here MLfabric orders all
workers' updates, with a coordinator that runs beside BytePS's scheduler and ends with it.

Jobs are started as with BytePS, with BYTEPS_ENABLE_ASYNC (its docs/env.md) for workers and servers.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from prophet_scheduler.core import settings
from prophet_scheduler.core.files import write_whole
from prophet_scheduler.core.units import format_rate
from prophet_scheduler.engines import byteps
from prophet_scheduler.engines.spec import EngineSpec, RunNetwork, Variant, role_of
from prophet_scheduler.engines.topology import PARAMETER_SERVER

ASYNCHRONOUS = {settings.BYTEPS_ENABLE_ASYNC: "1"}
TOKEN_FILE = "coordinator.token"
TENANT = "experiment"
STATUS = "coordinator.json"
"""File with the outcomes of all updates, in the scheduler's working directory."""
PATIENCE_S = 5.0
PORTS_APART = 10_000
"""Difference between the coordinator's port and that of the job's scheduler."""


def make_token(path: Path) -> None:
    """Write the token file. Every process of a run writes the same content, so that none has to wait for another.

    It keeps a run's workers from another run's coordinator. It is no secret: the folder keeps others out.
    """
    if not path.exists():
        write_whole(f"{TENANT} {hashlib.sha256(str(path).encode()).hexdigest()}\n", path)


def _environment(node: str, network: RunNetwork) -> dict[str, str]:
    shared = Path(network.sockets).parent  # the parent of all nodes' folders
    env = {
        **byteps.environment(node, network),
        settings.COORDINATOR: f"{network.addresses['scheduler']}:{network.port + PORTS_APART}",
        settings.COORDINATOR_TOKEN_FILE: str(shared / TOKEN_FILE),
        settings.NODE: node,
    }
    if role_of(node) == "scheduler":
        # Options of the coordinator: the NICs' rates, a worker's until its pushes show another.
        rates = {"--server-rate": network.rates.get("server0"), "--rate": network.rates.get("worker0")}
        env[settings.LAB_RATES] = " ".join(f"{option} {format_rate(rate)}" for option, rate in rates.items() if rate)
    return env


ENGINE = EngineSpec(
    name="byteps_async",
    words="BytePS's asynchronous servers",
    exchanges={"torch": "prophet_mlfabric.engine.torch_exchange:AsynchronousInTorch"},
    programs={
        "scheduler": "from prophet_mlfabric.engine import main; main()",
        "server": byteps.SERVER,
    },
    environment=_environment,
    prefixes=("BYTEPS_", "DMLC_", "PS_"),
    settings=("BYTEPS_", settings.PREFIX),
    variants=(
        Variant("async-stock", ASYNCHRONOUS),
        Variant("async-mlfabric", {**ASYNCHRONOUS, settings.SCHEDULER: settings.MLFABRIC}, policy=settings.MLFABRIC),
    ),
    topology=PARAMETER_SERVER,
    package=byteps.PACKAGE,
    check="prophet_mlfabric.byteps.agent:check",
    unsimulated="since MLfabric has a simulator of its own (docs/policies/mlfabric.md)",
)


def command(environ: Mapping[str, str]) -> list[str]:
    """Return the command `prophet coordinate` with the experiment's settings."""
    argv = [sys.executable, "-m", "prophet_scheduler.cli.main", "coordinate"]
    argv += ["--listen", environ[settings.COORDINATOR], "--token-file", environ[settings.COORDINATOR_TOKEN_FILE]]
    argv += environ.get(settings.LAB_RATES, "").split()
    for option, name in (("--delay-bound", settings.LAB_DELAY_BOUND), ("--batch", settings.LAB_BATCH)):
        if value := environ.get(name):
            argv += [option, value]
    return [*argv, "--status", STATUS]


@contextlib.contextmanager
def coordinator(environ: Mapping[str, str]) -> Iterator[None]:
    """Run a coordinator within the context if the job has one."""
    if environ.get(settings.SCHEDULER) != settings.MLFABRIC:
        yield
        return
    make_token(Path(environ[settings.COORDINATOR_TOKEN_FILE]))
    process = subprocess.Popen(command(environ))
    try:
        yield
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE_S)
        process.kill()


def main() -> None:
    """Run BytePS's scheduler of an experiment, with the coordinator if the job has one."""
    with coordinator(os.environ):
        importlib.import_module("byteps.server")  # returns when the job has ended
