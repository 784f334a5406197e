"""A Gluon job on a real shaped network, with stock BytePS and with Prophet switched on by its variable."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from privileges import skip_without_namespaces
from prophet.tools.testbed import NodeSpec, Testbed

from prophet.model import UNPROFILED_GRADIENT, EventKind, QueueKind
from prophet.profiles import load_profile

pytest.importorskip("mxnet")
pytestmark = [pytest.mark.engine, pytest.mark.netns]

JOB = Path(__file__).with_name("mxnet_digits.py")
WORKERS = ("worker0", "worker1")
ITERATIONS = 30
LIMIT_S = 60.0
PORT = 23900


@pytest.fixture(scope="module")
def testbed() -> Iterator[Testbed]:
    skip_without_namespaces()
    limited = [NodeSpec(worker, 400e6) for worker in WORKERS]
    with Testbed([*limited, NodeSpec("server", None), NodeSpec("scheduler", None)]) as testbed:
        yield testbed


@pytest.fixture(scope="module")
def stock(testbed: Testbed, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return train(testbed, tmp_path_factory.mktemp("stock"), PORT, {})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scheduled")


@pytest.fixture(scope="module")
def scheduled(testbed: Testbed, folder: Path) -> list[dict[str, Any]]:
    records = {f"PROPHET_{kind}_OUT": name for kind, name in (("STATUS", "s.json"), ("EVENTS", "e.npy"))}
    records["PROPHET_PROFILE_OUT"] = "p.json"  # each worker has a folder of its own
    return train(testbed, folder, PORT + 1, {"BYTEPS_SCHEDULER": "prophet", **records})


def train(testbed: Testbed, folder: Path, port: int, settings: dict[str, str]) -> list[dict[str, Any]]:
    """Runs the job to its end and returns what its workers wrote; fails with their last words."""
    with tempfile.TemporaryDirectory(prefix="prophet-") as sockets:  # names of UNIX sockets are short
        processes = {}
        for node in ("scheduler", "server", *WORKERS):
            place = folder / node
            place.mkdir()
            Path(sockets, node).mkdir()
            environ = {k: v for k, v in os.environ.items() if not k.startswith(("BYTEPS_", "DMLC_", "PROPHET_"))}
            environ |= {
                "DMLC_ROLE": node.rstrip("0123456789"),
                "DMLC_NUM_WORKER": str(len(WORKERS)),
                "DMLC_NUM_SERVER": "1",
                "DMLC_PS_ROOT_URI": testbed.address("scheduler"),
                "DMLC_PS_ROOT_PORT": str(port),
                "DMLC_NODE_HOST": testbed.address(node),
                "BYTEPS_LOCAL_RANK": "0",
                "BYTEPS_LOCAL_SIZE": "1",
                "BYTEPS_FORCE_DISTRIBUTED": "1",
                "BYTEPS_SOCKET_PATH": str(Path(sockets, node)),
                "NVIDIA_VISIBLE_DEVICES": "0",
                "OMP_NUM_THREADS": "1",
            }
            command = [sys.executable, "-c", "import byteps.server"]
            if node in WORKERS:
                environ |= {"DMLC_WORKER_ID": node.removeprefix("worker"), **settings}
                command = [sys.executable, "-P", str(JOB), "--out", "result.json", "--iterations", str(ITERATIONS)]
            processes[node] = testbed.popen(node, command, env=environ, log=place / "log", cwd=place)
        end = time.monotonic() + LIMIT_S
        try:
            for worker in WORKERS:
                status = processes[worker].wait(max(0.1, end - time.monotonic()))
                assert status == 0, f"{worker}: {(folder / worker / 'log').read_text()[-2000:]}"
        finally:
            testbed.terminate_all()
    return [json.loads((folder / worker / "result.json").read_text()) for worker in WORKERS]


def test_it_learns_the_same_bit_for_bit(stock: list[dict[str, Any]], scheduled: list[dict[str, Any]]) -> None:
    digests = {result["weights_sha256"] for result in [*stock, *scheduled]}
    assert len(digests) == 1
    assert min(result["accuracy"] for result in scheduled) >= 0.95


def test_every_task_went_through_the_queues_and_nothing_was_forced(
    scheduled: list[dict[str, Any]], folder: Path
) -> None:
    for worker, result in zip(WORKERS, scheduled, strict=True):
        assert "Prophet" not in (folder / worker / "log").read_text()
        status = json.loads((folder / worker / "s.json").read_text())
        assert status["stepped_aside"] == ""
        assert status["hook"]["active"]
        assert status["plans"] >= 1
        events = np.load(folder / worker / "e.npy")
        gradients = events[events["gradient"] < UNPROFILED_GRADIENT]
        for queue in (QueueKind.PUSH, QueueKind.PULL):
            for kind in EventKind:
                chosen = gradients[(gradients["queue"] == queue) & (gradients["kind"] == kind)]
                first = chosen[chosen["partition"] == 0]
                assert len(first) == result["gradients"] * ITERATIONS
            assert chosen["bytes"].max() <= 131072


def test_the_profile_is_in_forward_order(scheduled: list[dict[str, Any]], folder: Path) -> None:
    profile = load_profile(folder / "worker0" / "p.json")
    sizes = [gradient.size_bytes for gradient in profile.gradients]
    layer = [4 * 512 * 512, 2048, 2048, 2048]  # weight, bias, gamma, beta
    assert sizes == [4 * 512 * 64, 2048, 2048, 2048, *layer * 3, 4 * 512 * 10, 40]
