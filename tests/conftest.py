"""Settings of all tests: Ctrl-C works in programs they start, no test depends on the machine's speed, and several
processes share the tests.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

os.environ["PROPHET_VALIDATE"] = "1"  # before the first import of what reads it
# Golden numbers hold for one set of kernels: OpenBLAS rounds differently on each kind of processor.
os.environ["OPENBLAS_CORETYPE"] = "Haswell"

from prophet_scheduler.frontends import notices  # noqa: F401  # Prophet's lines begin as in a job.
from support.commands import Command
from support.golden import FOLDER, Golden

# A program started in a shell's background ignores Ctrl-C, and its children inherit this.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run, and no time limit for an example or for making it.
settings.register_profile(
    "deterministic", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
# `make fuzz`: other examples in every run, after those that once failed (.hypothesis/examples).
settings.register_profile(
    "fuzz",
    deadline=None,
    max_examples=int(os.environ.get("EXAMPLES", "2000")),
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("deterministic")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-golden", action="store_true", help="write the files of tests/golden anew")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from support.shares import Shares

    return Shares(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # one of several processes
        from support.shares import place

        items.sort(key=lambda item: place(item.nodeid))


def pytest_sessionfinish() -> None:
    from support.forks import close_shared

    close_shared()


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder with a short path, as sockets need."""
    with tempfile.TemporaryDirectory(prefix="prophet-") as name:
        yield Path(name)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(FOLDER, write=bool(request.config.getoption("--write-golden")))


@pytest.fixture
def prophet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capsys)
