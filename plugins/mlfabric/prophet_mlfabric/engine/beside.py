"""The program of an experiment's node `scheduler`: BytePS's scheduler with MLfabric's coordinator beside it.

Rule of this file: starting both, and ending the coordinator with the scheduler.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from prophet_mlfabric.engine import make_token
from prophet_scheduler.core import settings

STATUS = "coordinator.json"
"""File with the outcomes of all updates, in the scheduler's working directory."""
PATIENCE_S = 5.0


def command(environ: Mapping[str, str]) -> list[str]:
    """Return the command `prophet coordinate` with the experiment's settings: options for NICs, the delay bound in
    versions, and the longest time to gather updates, such as 50ms.
    """
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
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()


def main() -> None:
    with coordinator(os.environ):
        importlib.import_module("byteps.server")  # returns when the job has ended
