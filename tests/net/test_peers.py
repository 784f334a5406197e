"""The peers do what their names say: looked at on the wire of real jobs, started by the runner."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from prophet_scheduler.core.settings import DDP_SCHEDULER
from prophet_scheduler.lab.config import Cell
from prophet_scheduler.lab.launchers import JOB_SCRIPTS
from prophet_scheduler.lab.runner import FIRST_PORT, run_experiment
from prophet_scheduler.lab.runs import CellRuns
from prophet_scheduler.lab.testbed import NodeSpec, Testbed
from support.configs import loaded
from support.fakes import FakeListener
from support.forks import ddp_server, torch_server

pytestmark = [pytest.mark.engine, pytest.mark.netns]

ITERATIONS, TOTAL_BYTES, SLICE_BYTES = 6, 4_000_000, 40_000 * 4
SHORT: dict[str, Any] = {
    "time_limit_s": 180,
    "job": {
        "kind": "replay",
        "profile": "resnet18",
        "total_bytes": TOTAL_BYTES,
        "backward_s": 0.2,
        "forward_s": 0.05,
        "iterations": ITERATIONS,
        "warmup": 1,
    },
    "cluster": {"workers": 2, "servers": 1},
}
VERBOSE = {"PS_VERBOSE": "2"}
"""Each role of ps-lite writes a line for each message that it sends or gets."""


class UnmeasuredTestbed(Testbed):
    """Testbed that does not measure its links: no test here is about a rate, and measuring takes 6 s a network."""

    def check(self) -> dict[str, float]:
        return {}


class ForkingTestbed(UnmeasuredTestbed):
    """Testbed that forks its torch scripts from a process with torch imported: several short jobs are compared."""

    def popen(
        self, node: str, argv: Sequence[str], *, env: Mapping[str, str], log: Path, cwd: Path | None = None
    ) -> Any:
        if cwd is None or not argv[2].startswith(JOB_SCRIPTS["torch"]):
            return super().popen(node, argv, env=env, log=log, cwd=cwd)
        server = ddp_server() if DDP_SCHEDULER in env else torch_server()
        return server.fork(argv[1:], cwd, env, log=str(log.resolve()), namespace=self.namespace(node), memory=True)


def run(
    policies: list[Any],
    folder: Path,
    testbed: Callable[[list[NodeSpec]], Testbed] = UnmeasuredTestbed,
    job: Mapping[str, Any] = SHORT["job"],
    bandwidth: str = "80mbit",
) -> CellRuns:
    def hosts(cell: Cell) -> Testbed:
        return testbed([NodeSpec(node, cell.cluster.bandwidth.rate(node)) for node in cell.cluster.nodes])

    cluster = {**SHORT["cluster"], "bandwidth": bandwidth}
    experiment = loaded({**SHORT, "job": job, "cluster": cluster, "policies": policies}, folder)
    (cell,) = run_experiment(experiment, folder / "out", hosts, FakeListener())
    return cell


PUSHED = re.compile(
    r"(?P<worker>9|11) => 8\. Meta: request=1, timestamp=(?P<issued>\d+), "
    r"(?:(?!=> ).)*push=1,(?:(?!=> ).)*data_size=8 data_size=(?P<bytes>\d+)\s"
)
"""Pattern of one message's line, unless another message's line runs into it. ps-lite numbers two workers 9 and 11."""


def pushes(log: Path) -> Mapping[str, list[tuple[int, int]]]:
    """Return the arrivals at server 8, by worker: (place in the order of issue, bytes)."""
    by_key: dict[str, list[tuple[int, int]]] = {}
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        match = PUSHED.search(line)
        if match is not None:
            by_key.setdefault(match["worker"], []).append((int(match["issued"]), int(match["bytes"])))
    return by_key


def overtaken(arrivals: Sequence[tuple[int, int]]) -> int:
    """Return the number of messages that came after one that their worker issued later."""
    latest, count = -1, 0
    for issued, _ in arrivals:
        count += issued < latest
        latest = max(latest, issued)
    return count


@pytest.fixture(scope="module")
def arrivals(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, list[tuple[int, int]]]]:
    """Return what the server got from each worker, by policy."""
    pytest.importorskip("mxnet", exc_type=ImportError)
    folder = tmp_path_factory.mktemp("order")
    names = ["mxnet-kvstore", "mxnet-p3"]
    cell = run([{"name": name, "env": VERBOSE} for name in names], folder)
    assert {name: [run.error for run in runs] for name, runs in cell.runs.items()} == {name: [None] for name in names}
    return {name: pushes(runs[0].folder / "server0.log") for name, runs in cell.runs.items()}


def test_every_gradient_is_pushed_by_every_worker(
    arrivals: Mapping[str, Mapping[str, list[tuple[int, int]]]],
) -> None:
    for by_worker in arrivals.values():
        assert len(by_worker) == 2
        for messages in by_worker.values():
            # One worker also pushes the parameters at the start. The server's threads write their lines without taking
            # turns, so now and then one is lost: the largest gradient is a fifth of all bytes.
            sent = sum(size for _, size in messages) / TOTAL_BYTES
            whole = round(sent + 0.2)
            assert whole in (ITERATIONS, ITERATIONS + 1)
            assert whole - 0.45 < sent <= whole * 1.0001


def test_the_kvstore_is_first_in_first_out(arrivals: Mapping[str, Mapping[str, list[tuple[int, int]]]]) -> None:
    assert [overtaken(messages) for messages in arrivals["mxnet-kvstore"].values()] == [0, 0]
    assert max(size for messages in arrivals["mxnet-kvstore"].values() for _, size in messages) > 2 * SLICE_BYTES


def test_p3_sends_slices_and_urgent_ones_overtake(
    arrivals: Mapping[str, Mapping[str, list[tuple[int, int]]]],
) -> None:
    for messages in arrivals["mxnet-p3"].values():
        assert overtaken(messages) > 10 * ITERATIONS
        # The last slice of a gradient has what is left over, less than two slices.
        assert max(size for _, size in messages) < 2 * SLICE_BYTES


class CountingTestbed(UnmeasuredTestbed):
    """Reads what worker0's interfaces have sent, before the first job and at the end of each."""

    def __init__(self, nodes: list[NodeSpec], folder: Path) -> None:
        super().__init__(nodes)
        self._log = folder / "counters"
        self.sent: list[dict[str, int]] = []

    def check(self) -> dict[str, float]:
        self._read()
        return super().check()

    def terminate_all(self) -> None:
        self._read()
        super().terminate_all()

    def _read(self) -> None:
        self.popen("worker0", ["cat", "/proc/net/dev"], env={"PATH": "/usr/bin:/bin"}, log=self._log).wait()
        lines = (line.split(":") for line in self._log.read_text().splitlines()[2:])
        self.sent.append({name.strip(): int(numbers.split()[8]) for name, numbers in lines})


def test_the_buckets_of_ddp_travel_by_gloo_over_the_testbed(tmp_path: Path) -> None:
    made: list[CountingTestbed] = []

    def counting(nodes: list[NodeSpec]) -> Testbed:
        made.append(CountingTestbed(nodes, tmp_path))
        return made[-1]

    debug = {"TORCH_CPP_LOG_LEVEL": "INFO", "TORCH_DISTRIBUTED_DEBUG": "INFO"}
    cell = run([{"name": "ddp-gloo", "env": debug}], tmp_path, counting, bandwidth="320mbit")
    (job,) = cell.runs["ddp-gloo"]
    assert job.error is None
    before, after = made[0].sent
    sent = {name: after[name] - before[name] for name in after}
    assert sent.pop("lo") < 100_000  # of the rendezvous
    # Each of two workers sends half of the sum and half of the result, and also the model once, and TCP's headers.
    ((interface, over_the_wire),) = sent.items()
    assert ITERATIONS * TOTAL_BYTES < over_the_wire < 1.1 * (ITERATIONS + 1) * TOTAL_BYTES
    log = (job.folder / "worker0.log").read_text()
    assert f"gloo_socket_ifname: {interface}" in log
    assert "backend_name: gloo" in log
    assert "2 buckets rebuilt with size limits: 1048576, 26214400 bytes" in log
    assert not (job.folder / "server0.log").exists()


def test_a_peer_trains_the_same_model_bit_for_bit(tmp_path: Path) -> None:
    pytest.importorskip("mxnet", exc_type=ImportError)
    job = {"kind": "digits", "batch_size": 64, "iterations": 14, "warmup": 4, "target_accuracy": 0.2}
    # 4.5 MB take 0.11 s, far longer than computing: a value that is used before it has arrived shows.
    cell = run(["prophet", "ddp-prophet", "mxnet-kvstore", "mxnet-p3"], tmp_path, ForkingTestbed, job, "320mbit")
    done = {name: runs[0] for name, runs in cell.runs.items()}
    assert {name: finished.error for name, finished in done.items()} == dict.fromkeys(done)
    digests = {name: {worker.weights_sha256 for worker in finished.workers} for name, finished in done.items()}
    assert digests["prophet"] == digests["ddp-prophet"] and len(digests["prophet"]) == 1
    assert [status.stepped_aside for status in done["ddp-prophet"].statuses] == ["", ""]
    assert digests["mxnet-kvstore"] == digests["mxnet-p3"] and len(digests["mxnet-p3"]) == 1
    assert digests["prophet"] != digests["mxnet-p3"], "the frameworks begin with other weights"
    assert min(worker.accuracy or 0.0 for finished in done.values() for worker in finished.workers) > 0.2


def test_a_transformer_whose_gradients_are_clipped_ends_with_the_same_bits_on_every_engine(tmp_path: Path) -> None:
    job = {"kind": "transformer", "batch_size": 8, "iterations": 12, "warmup": 4, "target_accuracy": 0.001}
    cell = run(["prophet", "ddp-gloo", "ddp-prophet"], tmp_path, ForkingTestbed, job)
    done = {name: runs[0] for name, runs in cell.runs.items()}
    assert {name: finished.error for name, finished in done.items()} == dict.fromkeys(done)
    assert len({worker.weights_sha256 for finished in done.values() for worker in finished.workers}) == 1
    assert {status.stepped_aside for finished in done.values() for status in finished.statuses} == {""}
    assert len({worker.accuracy for finished in done.values() for worker in finished.workers}) == 1


OCCUPY = str(Path(__file__).with_name("jobs") / "occupy.py")


class OccupiedTestbed(ForkingTestbed):
    """The first port of an experiment is busy in one node, until the first job is taken down."""

    def __init__(self, nodes: list[NodeSpec], node: str, log: Path) -> None:
        super().__init__(nodes)
        self._node = node
        self._log = log

    def __enter__(self) -> OccupiedTestbed:
        super().__enter__()
        argv = [sys.executable, "-P", OCCUPY, str(FIRST_PORT)]
        occupant = self.popen(self._node, argv, env={"PATH": "/usr/bin:/bin"}, log=self._log)
        while "bound" not in self._log.read_text():
            assert occupant.poll() is None, self._log.read_text()
        return self


@pytest.mark.parametrize(
    ("policy", "node", "reason"),
    [
        ("mxnet-kvstore", "scheduler", "scheduler ended with status 1: .*bind failed"),
        ("ddp-gloo", "worker0", "worker0 ended with status 1: .*EADDRINUSE"),
    ],
)
def test_a_busy_port_is_the_error_of_one_run_and_the_others_run(
    policy: str, node: str, reason: str, tmp_path: Path
) -> None:
    if policy.startswith("mxnet"):
        pytest.importorskip("mxnet", exc_type=ImportError)
    again = {"name": "again", "base": policy}

    def occupied(nodes: list[NodeSpec]) -> Testbed:
        return OccupiedTestbed(nodes, node, tmp_path / "occupant")

    cell = run([policy, again], tmp_path, occupied, bandwidth="320mbit")
    (failed,), (good,) = cell.runs[policy], cell.runs["again"]
    assert failed.error is not None and re.match(reason, failed.error), failed.error
    assert good.error is None
