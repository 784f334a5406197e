"""The testbed: its arithmetic, and real nodes with real traffic where this machine lets us make namespaces."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from prophet.core.errors import UserError
from prophet.lab.testbed import NodeSpec, Testbed, require_namespaces
from prophet.lab.testbed import testbed as testbed_module
from prophet.lab.testbed.shaping import LARGEST_PACKET_BYTES, MAX_BANDWIDTH_BPS, token_bucket
from support.roles import network

HARNESS = Path(__file__).with_name("harness.py")
MEASURE_S = 0.9
TOLERANCE = 0.10


@pytest.fixture(scope="module")
def three_nodes() -> Iterator[Testbed]:
    """As root; without it the tests in a user namespace of their own still run."""
    with network([NodeSpec("worker0", 100e6), NodeSpec("worker1", 1e9), NodeSpec("server", None)]) as testbed:
        yield testbed


def output_of(testbed: Testbed, node: str, script: str, log: Path) -> str:
    process = testbed.popen(node, ["sh", "-c", script], env={"PATH": os.environ["PATH"]}, log=log)
    assert process.wait(timeout=20) == 0, log.read_text()
    return log.read_text()


# ----------------------------------------------------------------------------------------- without namespaces


def test_bucket_holds_a_whole_packet_and_the_queue_stays_short() -> None:
    for bandwidth_bps in (1e6, 100e6, 250e6, 1e9, 2e9):
        bucket = token_bucket(bandwidth_bps)
        assert bucket.rate * 8 == bandwidth_bps
        assert bucket.burst >= LARGEST_PACKET_BYTES
        assert bucket.burst < bucket.limit <= max(262_144, bucket.rate * 0.02)
    assert token_bucket(250e6).burst == 65_792 + 31_250


@pytest.mark.parametrize("bandwidth_bps", [0.0, -1e6, 999_999.0, MAX_BANDWIDTH_BPS * 1.01, math.inf, math.nan])
def test_impossible_bandwidth_is_one_line(bandwidth_bps: float) -> None:
    with pytest.raises(UserError, match=r"^bandwidth of worker0: .* 1 to 2500 Mbit/s[^\n]*$"):
        Testbed([NodeSpec("worker0", bandwidth_bps)])


def test_impossible_nodes_are_one_line() -> None:
    with pytest.raises(UserError, match=r"^a testbed has 1 to 250 nodes, not 0$"):
        Testbed([])
    with pytest.raises(UserError, match=r"^node names must differ: server is there twice$"):
        Testbed([NodeSpec("server", None), NodeSpec("server", 1e8)])


def test_unknown_node_is_one_line(tmp_path: Path) -> None:
    testbed = Testbed([NodeSpec("worker0", 1e8), NodeSpec("server", None)])
    for use in (
        lambda: testbed.address("worker7"),
        lambda: testbed.interface("worker7"),
        lambda: testbed.set_bandwidth("worker7", 1e8),
        lambda: testbed.measure("server", "worker7"),
        lambda: testbed.popen("worker7", ["true"], env={}, log=tmp_path / "log"),
    ):
        with pytest.raises(UserError, match=r"^no node 'worker7' in the testbed; there are worker0, server$"):
            use()


def test_check_refuses_what_is_off_by_more_than_the_tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    testbed = Testbed([NodeSpec("worker0", 1e8), NodeSpec("server", None)])
    monkeypatch.setitem(testbed._shaped, "worker0", 1e8)
    rates = itertools.chain([99e6, 91e6], itertools.repeat(89e6))
    monkeypatch.setattr(testbed, "_measure", lambda source, target, seconds: next(rates))
    assert testbed.check() == {"worker0 up": 99e6, "worker0 down": 91e6}
    with pytest.raises(UserError, match=r"^bandwidth of worker0: asked for 100 Mbit/s, got 89 Mbit/s up; [^\n]*$"):
        testbed.check()


def test_missing_iproute2_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"^the testbed needs the command ip: "), Testbed([NodeSpec("server", None)]):
        pass


# -------------------------------------------------------------------------------------------- in namespaces


@pytest.mark.netns
@pytest.mark.parametrize("bandwidth_bps", [100e6, 250e6, 1e9])
def test_rate_is_what_was_asked_for_both_ways(three_nodes: Testbed, bandwidth_bps: float) -> None:
    three_nodes.set_bandwidth("worker0", bandwidth_bps)
    for source, target in (("worker0", "server"), ("server", "worker0")):
        achieved = three_nodes.measure(source, target, MEASURE_S)
        assert achieved == pytest.approx(bandwidth_bps, rel=TOLERANCE), f"{source} to {target}"


@pytest.mark.netns
def test_each_node_has_its_own_rate_and_may_lose_it(three_nodes: Testbed) -> None:
    three_nodes.set_bandwidth("worker0", 100e6)
    assert three_nodes.measure("worker1", "worker0", MEASURE_S) == pytest.approx(100e6, rel=TOLERANCE)
    three_nodes.set_bandwidth("worker0", None)
    assert three_nodes.measure("server", "worker0", MEASURE_S) > 1e9
    three_nodes.set_bandwidth("worker0", 200e6)
    assert three_nodes.check() == {
        "worker0 up": pytest.approx(200e6, rel=TOLERANCE),
        "worker0 down": pytest.approx(200e6, rel=TOLERANCE),
        "worker1 up": pytest.approx(1e9, rel=TOLERANCE),
        "worker1 down": pytest.approx(1e9, rel=TOLERANCE),
    }


@pytest.mark.netns
def test_program_gets_its_environment_folder_and_network(three_nodes: Testbed, tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = ["sh", "-c", "pwd; env; ip -o -4 addr; echo complaint >&2; exit 3"]
    process = three_nodes.popen("worker1", script, env={"PATH": os.environ["PATH"], "A": "1"}, log=log, cwd=tmp_path)
    assert process.wait(timeout=20) == 3
    lines = log.read_text()
    assert f"{tmp_path}\n" in lines and "\nA=1\n" in lines and "complaint" in lines and "HOME=" not in lines
    assert f"inet {three_nodes.address('worker1')}/24" in lines
    assert three_nodes.interface("worker1") in lines


@pytest.mark.netns
def test_program_runs_on_its_nodes_cores(tmp_path: Path) -> None:
    mine = sorted(os.sched_getaffinity(0))
    nodes = [NodeSpec("worker0", None, (mine[-1],)), NodeSpec("server", None)]
    script = "grep Cpus_allowed_list /proc/self/status | cut -f 2"
    with network(nodes) as testbed:
        assert output_of(testbed, "worker0", script, tmp_path / "log") == f"{mine[-1]}\n"
        everywhere = Path("/proc/self/status").read_text().split("Cpus_allowed_list:\t")[1].split()[0]
        assert output_of(testbed, "server", script, tmp_path / "log") == f"{everywhere}\n"


@pytest.mark.netns
def test_program_that_cannot_start_says_so_in_its_log(three_nodes: Testbed, tmp_path: Path) -> None:
    process = three_nodes.popen("server", ["/no/such/program"], env={}, log=tmp_path / "log")
    assert process.wait(timeout=20) == 1
    assert (tmp_path / "log").read_text().count("\n") == 1
    assert "No such file or directory" in (tmp_path / "log").read_text()


@pytest.mark.netns
def test_shared_memory_is_private_to_each_program(three_nodes: Testbed, tmp_path: Path) -> None:
    outside = set(Path("/dev/shm").iterdir())
    script = "ls -A /dev/shm; echo there > /dev/shm/testbed; cat /dev/shm/testbed"
    for node in ("worker0", "worker0", "worker1"):
        assert output_of(three_nodes, node, script, tmp_path / "log") == "there\n"
    assert not {path for path in set(Path("/dev/shm").iterdir()) - outside if path.name == "testbed"}


@pytest.mark.netns
def test_terminate_all_leaves_the_nodes_and_nothing_in_them(three_nodes: Testbed, tmp_path: Path) -> None:
    # The second ignores SIGTERM in a group of its own, and its parent is gone.
    script = "sleep 1000 & setsid sh -c 'trap \"\" TERM; echo ready; sleep 1000; sleep 1000' & exit 0"
    parent = three_nodes.popen("worker1", ["sh", "-c", script], env={"PATH": os.environ["PATH"]}, log=tmp_path / "log")
    assert parent.wait(timeout=20) == 0
    wait_until(lambda: "ready" in (tmp_path / "log").read_text())
    assert len(processes_in(three_nodes, "worker1")) >= 2
    three_nodes.terminate_all()
    assert processes_in(three_nodes, "worker1") == []
    assert output_of(three_nodes, "worker1", "echo still there", tmp_path / "log") == "still there\n"


def processes_in(testbed: Testbed, node: str) -> list[int]:
    namespace = Path(testbed._namespaces[testbed._place(node)]).stat().st_ino
    return in_namespace(namespace)


def in_namespace(inode: int) -> list[int]:
    processes = []
    for link in Path("/proc").glob("[0-9]*/ns/net"):
        with contextlib.suppress(OSError):  # it ended while we looked
            if link.stat().st_ino == inode:
                processes.append(int(link.parts[2]))
    return processes


def wait_until(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def harness(how: str, log: Path, *before: str) -> subprocess.Popen[str]:
    command = [*before, sys.executable, "-P", str(HARNESS), how, str(log)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.netns
@pytest.mark.usefixtures("three_nodes")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_of_a_harness_that_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    names = {path.name for path in Path("/sys/class/net").iterdir()}
    killed = harness("wait", tmp_path / "log")
    assert killed.stdout
    namespaces = [int(inode) for inode in killed.stdout.readline().split()]
    assert len(in_namespace(namespaces[0])) >= 2, "the programs"
    assert len(in_namespace(namespaces[-1])) == 1, "the holder"
    killed.send_signal(number)
    killed.wait(timeout=20)
    # A killed harness does not wait for the holder, which needs a moment.
    wait_until(lambda: not any(in_namespace(inode) for inode in namespaces))
    assert {path.name for path in Path("/sys/class/net").iterdir()} == names


@pytest.mark.netns
@pytest.mark.usefixtures("three_nodes")
def test_nothing_is_left_after_an_error(tmp_path: Path) -> None:
    failed = harness("error", tmp_path / "log")
    output, errors = failed.communicate(timeout=30)
    assert "a bug in the harness" in errors
    assert [in_namespace(int(inode)) for inode in output.split()] == [[]] * len(output.split())


@pytest.mark.netns
def test_an_ordinary_user_gets_a_testbed_in_a_user_namespace(tmp_path: Path) -> None:
    # Root becomes an ordinary user of this test's own making, who may read what root may.
    before = ["unshare", "--user", "--map-user=1000", "--map-group=1000"] if os.geteuid() == 0 else []
    allowed = subprocess.run([*before, "unshare", "--user", "--map-root-user", "--net", "true"], capture_output=True)
    if allowed.returncode != 0:
        pytest.skip(f"no user namespaces here: {allowed.stderr.decode().strip()}")
    used = harness("measure", tmp_path / "log", *before)
    output, errors = used.communicate(timeout=60)
    assert used.returncode == 0, errors
    rates = [float(line) for line in output.splitlines()[1:]]
    assert rates == [pytest.approx(100e6, rel=TOLERANCE)] * 2


def test_a_machine_without_namespaces_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = [sys.executable, "-c", "import sys; sys.exit('unshare: Operation not permitted')"]
    monkeypatch.setattr("prophet.lab.testbed.namespaces.launcher", lambda *arguments: refused)
    monkeypatch.setattr(testbed_module, "launcher", lambda *arguments: refused)
    with pytest.raises(UserError, match=r"^the testbed needs root, or user namespaces [^\n]*Operation not permitted$"):
        require_namespaces()
    with (
        pytest.raises(UserError, match=r"^no network namespaces: unshare: Operation not permitted$"),
        Testbed([NodeSpec("server", None)]),
    ):
        pass
