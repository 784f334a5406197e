"""The command of docs/enabling.md as it stands, through BytePS's own bpslaunch: whole jobs, stock and with Prophet."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from prophet.lab.testbed import NodeSpec, Testbed
from support.privileges import skip_without_namespaces

pytestmark = pytest.mark.engine

BIN = Path(sys.executable).parent
WORKERS = ("worker0", "worker1")
LIMIT_S = 60.0
PORT = 23940
COMMAND = re.compile(r"^```\n(BYTEPS_SCHEDULER=prophet bpslaunch python train\.py)\n```$", re.MULTILINE)

TRAIN = """\
import hashlib, json
import torch
import byteps.torch as bps

bps.init()
torch.manual_seed(bps.rank())  # the broadcasts make models and rates alike
model = torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.ReLU(), torch.nn.Linear(300, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01 * (1 + bps.rank()))
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)
bps.broadcast_optimizer_state(optimizer, root_rank=0)
for _ in range(10):
    optimizer.zero_grad()
    model(torch.full((4, 20), 1.0 + bps.rank())).square().mean().backward()
    optimizer.step()
weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.state_dict().values())
group = optimizer.param_groups[0]
options = {name: value for name, value in group.items() if name != "params"}
with open("result.json", "w") as file:
    json.dump({"weights": hashlib.sha256(weights).hexdigest(), "options": options}, file)
bps.shutdown()
"""


@pytest.fixture(scope="module")
def testbed() -> Iterator[Testbed]:
    pytest.importorskip("byteps")
    skip_without_namespaces()
    with Testbed([NodeSpec(node, None) for node in ("scheduler", "server", *WORKERS)]) as testbed:
        yield testbed


def documented_command() -> str:
    found = COMMAND.search((Path(__file__).parents[2] / "docs/enabling.md").read_text(encoding="utf-8"))
    assert found is not None
    return found.group(1)


def launched(testbed: Testbed, folder: Path, port: int, command: str) -> list[dict[str, Any]]:
    """Starts every role with `bpslaunch`, the workers with `command` in a shell, and returns the workers' results."""
    with tempfile.TemporaryDirectory(prefix="prophet-") as sockets:  # names of UNIX sockets are short
        processes = {}
        for node in ("scheduler", "server", *WORKERS):
            place = folder / node
            place.mkdir()
            (place / "train.py").write_text(TRAIN, encoding="utf-8")
            Path(sockets, node).mkdir()
            environ = {k: v for k, v in os.environ.items() if not k.startswith(("BYTEPS_", "DMLC_", "PROPHET_"))}
            environ |= {
                "PATH": f"{BIN}:{environ['PATH']}",
                "DMLC_ROLE": node.rstrip("0123456789"),
                "DMLC_NUM_WORKER": str(len(WORKERS)),
                "DMLC_NUM_SERVER": "1",
                "DMLC_PS_ROOT_URI": testbed.address("scheduler"),
                "DMLC_PS_ROOT_PORT": str(port),
                "DMLC_NODE_HOST": testbed.address(node),
                "BYTEPS_SOCKET_PATH": str(Path(sockets, node)),
                "OMP_NUM_THREADS": "1",
            }
            line = "bpslaunch"
            if node in WORKERS:
                environ |= {"DMLC_WORKER_ID": node.removeprefix("worker"), "PROPHET_STATUS_OUT": "status.json"}
                line = command
            processes[node] = testbed.popen(node, ["sh", "-c", line], env=environ, log=place / "log", cwd=place)
        end = time.monotonic() + LIMIT_S
        try:
            for node in (*WORKERS, "server", "scheduler"):
                status = processes[node].wait(max(0.1, end - time.monotonic()))
                assert status == 0, f"{node}: {(folder / node / 'log').read_text()[-2000:]}"
        finally:
            testbed.terminate_all()
    return [json.loads((folder / worker / "result.json").read_text()) for worker in WORKERS]


@pytest.mark.netns
def test_the_pages_command_trains_and_gives_stocks_bits(testbed: Testbed, tmp_path: Path) -> None:
    folders = tmp_path / "stock", tmp_path / "scheduled"
    for folder in folders:
        folder.mkdir()
    command = documented_command()
    stock = launched(testbed, folders[0], PORT, command.removeprefix("BYTEPS_SCHEDULER=prophet "))
    scheduled = launched(testbed, folders[1], PORT + 1, command)
    assert len({result["weights"] for result in [*stock, *scheduled]}) == 1
    # broadcast_optimizer_state sent the numbers of worker 0, and left alone what has none.
    assert all(result["options"]["lr"] == pytest.approx(0.01) for result in [*stock, *scheduled])
    assert all(result["options"]["foreach"] is None for result in [*stock, *scheduled])
    assert not (folders[0] / "worker0/status.json").exists()
    for worker in WORKERS:
        status = json.loads((folders[1] / worker / "status.json").read_text())
        assert status["policy"] == "prophet", "the hook was on"


def launcher() -> ModuleType:
    """The installed bpslaunch as a module."""
    loader = importlib.machinery.SourceFileLoader("bpslaunch", str(BIN / "bpslaunch"))
    spec = importlib.util.spec_from_loader("bpslaunch", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode  # bin/ is no place for a cache
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of its own source
            loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    return module


@pytest.mark.parametrize(
    ("cores", "bound_to"),
    [(0, None), (1, None), (2, None), (4, [[0], [2]]), (8, [[0, 1], [4, 5]])],
    ids=["no NUMA information", "1 core", "2 cores", "4 cores", "8 cores"],
)
def test_it_starts_with_any_number_of_cores(
    cores: int, bound_to: list[list[int]] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where BytePS has cores to give it gives the same as ever; where it has none, a process has all."""
    pytest.importorskip("byteps")
    bpslaunch = launcher()
    for core in range(cores):
        (tmp_path / f"node0/cpu{core}").mkdir(parents=True)
    monkeypatch.setattr(bpslaunch, "NUMA_PATH", str(tmp_path if cores else tmp_path / "none"))
    started: list[tuple[object, ...]] = []
    monkeypatch.setattr(bpslaunch, "worker", lambda *arguments: started.append(arguments))
    monkeypatch.setattr(bpslaunch.sys, "argv", ["bpslaunch", "python", "train.py"])
    for name in ("NVIDIA_VISIBLE_DEVICES", *(name for name in os.environ if name.startswith("BYTEPS_"))):
        monkeypatch.delenv(name, raising=False)
    job = {"ROLE": "worker", "NUM_WORKER": "1", "NUM_SERVER": "1", "WORKER_ID": "0"}
    for name, value in job.items():
        monkeypatch.setenv(f"DMLC_{name}", value)
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")  # it sets this
    bpslaunch.launch_bps()
    assert started == [(0, 1, "python train.py", bound_to)]
