"""Training scripts as BytePS users write them, each with the same bits under Prophet as under stock BytePS.

Every `torch_*.py` and `mxnet_*.py` in this folder is a script that knows nothing of Prophet. Each is run twice for
real, with data of its own on each of two workers: with stock BytePS, and with BYTEPS_SCHEDULER=prophet. What it
reports must be equal, worker by worker. The network is so narrow that transfers outlast the compute beside them: a
script that uses a weight before its update has come sees another value.

A script that stock BytePS does not run alike every time can show nothing, so there is none here: sharing parameters
between two optimizers (stock averages them twice, or raises), and a closure of step() with backward() but without
synchronize() (stock updates with gradients that are on their way).
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.jobs import Ahead, Cluster
from support.forks import ForkServer
from support.privileges import skip_without_namespaces
from support.roles import WORKERS

pytestmark = [pytest.mark.engine, pytest.mark.netns]

FOLDER = Path(__file__).parent
IMPORTED_FIRST = {"torch": ("torch", "torch._dynamo"), "mxnet": ("numpy",)}
"""Modules already imported when a script starts. MXNet does not survive a fork after it was imported."""
MODES = {"stock": {}, "prophet": {"BYTEPS_SCHEDULER": "prophet", "PROPHET_STATUS_OUT": "status.json"}}
JOBS_AT_A_TIME = 8
LIMIT_S = 180.0


SCRIPTS = [path.stem for framework in IMPORTED_FIRST for path in sorted(FOLDER.glob(f"{framework}_*.py"))]


def framework_of(name: str) -> str:
    return name.partition("_")[0]


@pytest.fixture(scope="module")
def jobs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ahead]:
    """Jobs of all chosen scripts; one with stock BytePS and one with Prophet train at a time."""
    skip_without_namespaces()
    jobs = Ahead(request, tmp_path_factory.mktemp("scripts"), JOBS_AT_A_TIME)
    names = [str(each["name"]) for each in jobs.chosen if importlib.util.find_spec(framework_of(str(each["name"])))]
    turns = {mode: threading.Semaphore(1) for mode in MODES}
    with contextlib.ExitStack() as stack:
        clusters = {}
        for framework in sorted({framework_of(name) for name in names}):
            server = stack.enter_context(ForkServer(IMPORTED_FIRST[framework]))
            for mode, settings in MODES.items():
                clusters[framework, mode] = stack.enter_context(Cluster(settings, server, turns[mode]))
        stack.callback(jobs.close)
        for name in names:
            for mode in MODES:
                jobs.add(mode, name, clusters[framework_of(name), mode].run, FOLDER / f"{name}.py", LIMIT_S)
        yield jobs


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_ends_with_the_bits_of_stock(jobs: Ahead, name: str) -> None:
    pytest.importorskip(framework_of(name))
    stock = jobs.result("stock", name)
    assert stock[0]["weights"] == stock[1]["weights"], "stock's workers differ: the script shows nothing"
    scheduled = jobs.result("prophet", name)
    for worker, expected, measured in zip(WORKERS, stock, scheduled, strict=True):
        other = [value for value in expected if measured.get(value) != expected[value]]
        assert not other, f"{worker} ended with other {' and '.join(other)}"
    for worker in WORKERS:
        status = json.loads((jobs.place("prophet", name) / worker / "status.json").read_text())
        assert status["stepped_aside"] == ""
        assert status["hook"]["active"]
        assert status["hook"]["tasks"] > 0
        assert status["half"] == name.endswith("_half_precision")
