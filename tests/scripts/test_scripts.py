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
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from scripts.jobs import Cluster, JobFailed
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


class Jobs:
    """The jobs of the tests that were chosen, run ahead of the tests that wait for them."""

    def __init__(self, clusters: dict[tuple[str, str], Cluster], folder: Path, names: list[str]) -> None:
        self._folder = folder
        self._pool = ThreadPoolExecutor(JOBS_AT_A_TIME)
        self._runs: dict[tuple[str, str], Future[list[dict[str, Any]]]] = {}
        for name in names:
            for mode in MODES:
                cluster = clusters[framework_of(name), mode]
                script = FOLDER / f"{name}.py"
                self._runs[mode, name] = self._pool.submit(cluster.run, script, self.place(mode, name), LIMIT_S)

    def result(self, mode: str, name: str) -> list[dict[str, Any]]:
        """Return what each worker reported; fails with the roles' last words."""
        try:
            return self._runs[mode, name].result()
        except JobFailed as error:
            pytest.fail(f"under {mode}: {error}", pytrace=False)

    def place(self, mode: str, name: str) -> Path:
        """Return the job's folder, which has one for each of its roles."""
        return self._folder / mode / name

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def framework_of(name: str) -> str:
    return name.partition("_")[0]


@pytest.fixture(scope="module")
def jobs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """Jobs of all chosen scripts; one with stock BytePS and one with Prophet train at a time."""
    skip_without_namespaces()
    items = [item for item in request.session.items if item.path == Path(__file__)]
    chosen = [str(item.callspec.params["name"]) for item in items if isinstance(item, pytest.Function)]
    names = [name for name in chosen if importlib.util.find_spec(framework_of(name))]
    turns = {mode: threading.Semaphore(1) for mode in MODES}
    frameworks = sorted({framework_of(name) for name in names})
    with contextlib.ExitStack() as stack:
        servers = {framework: stack.enter_context(ForkServer(IMPORTED_FIRST[framework])) for framework in frameworks}
        clusters = {
            (framework, mode): stack.enter_context(Cluster(settings, servers[framework], turns[mode]))
            for framework in frameworks
            for mode, settings in MODES.items()
        }
        running = Jobs(clusters, tmp_path_factory.mktemp("scripts"), names)
        stack.callback(running.close)
        yield running


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_ends_with_the_bits_of_stock(jobs: Jobs, name: str) -> None:
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
