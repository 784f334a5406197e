"""BytePS's own tests of its MXNet part, out of the release's archive, with stock BytePS and with Prophet.

docs/engine.md says which of its tests and examples run on the CPU build, and why the others cannot.
"""

from __future__ import annotations

import re
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from prophet_byteps.build.rules import VERSION
from prophet_byteps.build.store import Store
from prophet_scheduler.lab.testbed import NodeSpec, Testbed
from support.programs import clean_environ
from support.roles import PATIENT, network

pytest.importorskip("mxnet")
pytest.importorskip("byteps")
pytestmark = [pytest.mark.engine, pytest.mark.netns]

RUNNER = Path(__file__).with_name("jobs") / "byteps_own_tests.py"
LIMIT_S = 240.0
TESTS = {"mxnet": 3, "onebit": 1, "topk": 1, "randomk": 1, "dithering": 1}
"""Number of tests of each file that run."""
NODES: Mapping[str, Mapping[str, str]] = {"stock": {}, "prophet": {"BYTEPS_SCHEDULER": "prophet"}}
"""Each with what is set beside."""


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of tests in the source that the engine was built from."""
    archive = Store.of_user().source / f"byteps-{VERSION}.tar.gz"
    if not archive.is_file():
        pytest.skip("the engine's source is not in the cache")
    folder = tmp_path_factory.mktemp("release")
    with tarfile.open(archive) as tar:
        inside = f"byteps-{VERSION}/tests/"
        tar.extractall(folder, [member for member in tar if member.name.startswith(inside)], filter="data")
    return folder / inside


@pytest.fixture(scope="module")
def testbed() -> Iterator[Testbed]:
    """A node for each: the tests start everything on the loopback, at a port of their own choice."""
    with network([NodeSpec(node, None) for node in NODES]) as testbed:
        yield testbed


@pytest.mark.parametrize("name", TESTS)
def test_it_passes_with_stock_byteps_and_with_prophet(
    name: str, release: Path, testbed: Testbed, short_folder: Path, tmp_path: Path
) -> None:
    environ = clean_environ() | PATIENT
    environ |= {
        "PATH": f"{Path(sys.executable).parent}:{environ['PATH']}",
        "BYTEPS_FORCE_DISTRIBUTED": "1",  # the tests set it for their worker alone, and no server would start
        "DMLC_NODE_HOST": "127.0.0.1",
        # They look at the network before they train it, for which MXNet may put weights into a layout of MKLDNN's own;
        # whether BytePS then finds them in time in their usual one is a matter of luck.
        "MXNET_MKLDNN_ENABLED": "0",
    }
    command = [sys.executable, "-P", str(RUNNER), str(release / f"test_{name}.py")]
    processes = {}
    try:
        for node, switch in NODES.items():
            place, own = tmp_path / node, short_folder / node
            place.mkdir()
            own.mkdir()
            settings = {**environ, "BYTEPS_SOCKET_PATH": str(own), **switch}
            processes[node] = testbed.popen(node, command, env=settings, log=place / "log", cwd=place)
        statuses = {node: process.wait(LIMIT_S) for node, process in processes.items()}
    finally:
        testbed.terminate_all()
    for node, status in statuses.items():
        said = (tmp_path / node / "log").read_text(encoding="utf-8", errors="replace")
        assert status == 0, f"{node}: {said[-3000:]}"
        ran = re.search(r"^Ran (\d+) tests? in", said, re.MULTILINE)
        assert ran is not None and int(ran.group(1)) == TESTS[name]
        assert "Prophet" not in said, "no warning"
