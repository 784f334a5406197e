"""The testbed: its arithmetic, and real nodes with real traffic where this machine lets us make namespaces."""

from __future__ import annotations

import contextlib
import io
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

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.lab.testbed import NodeSpec, Testbed, delay, launch, namespaces, require_namespaces
from prophet_scheduler.lab.testbed import testbed as testbed_module
from prophet_scheduler.lab.testbed.delay import MAX_DELAY_S, SLACK_S, require_relay, tcp_buffer_bytes
from prophet_scheduler.lab.testbed.shaping import LARGEST_PACKET_BYTES, MAX_BANDWIDTH_BPS, token_bucket
from support.roles import network

HARNESS = Path(__file__).with_name("harness.py")
LIMIT_S = 60.0
"""Limit for short operations."""
MEASURE_S = 0.9
TOLERANCE = 0.10
MEASURED = 5
"""Times at most: what a busy machine disturbs is right in one of them, and what is wrong is so in all."""


@pytest.fixture(scope="module")
def three_nodes() -> Iterator[Testbed]:
    """Three nodes, for root only; without root the tests in a user namespace of their own still run."""
    with network([NodeSpec("worker0", 100e6), NodeSpec("worker1", 1e9), NodeSpec("server", None)]) as testbed:
        yield testbed


def output_of(testbed: Testbed, node: str, script: str, log: Path) -> str:
    process = testbed.popen(node, ["sh", "-c", script], env={"PATH": os.environ["PATH"]}, log=log)
    assert process.wait(timeout=LIMIT_S) == 0, log.read_text()
    return log.read_text()


def rate_of(testbed: Testbed, source: str, target: str, bandwidth_bps: float, measure_s: float = MEASURE_S) -> float:
    """Bits per second from one node to the other: the first that is what was asked for, or else the last."""
    for _ in range(MEASURED):
        achieved = testbed.measure(source, target, measure_s)
        if achieved == pytest.approx(bandwidth_bps, rel=TOLERANCE):
            break
    return achieved


def checked(check: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Return the result of a testbed's check, which a busy machine may disturb a few times."""
    for _ in range(MEASURED - 1):
        with contextlib.suppress(UserError):
            return check()
    return check()


# ----------------------------------------------------------------------------------------- without namespaces


def test_token_bucket_sizes() -> None:
    for bandwidth_bps in (1e6, 100e6, 250e6, 1e9, 2e9):
        bucket = token_bucket(bandwidth_bps)
        assert bucket.rate * 8 == bandwidth_bps
        assert bucket.burst >= LARGEST_PACKET_BYTES
        assert bucket.burst < bucket.limit <= max(262_144, bucket.rate * 0.02)
    assert token_bucket(250e6).burst == 65_792 + 31_250
    assert token_bucket(1e9, 0.01) == token_bucket(1e9)
    assert token_bucket(1e9, 0.04).limit == 5_000_000, "what is under way on a long wire"


IMPOSSIBLE = [
    *(
        ([NodeSpec("worker0", rate)], r"bandwidth of worker0: .* 1 to 2500 Mbit/s[^\n]*")
        for rate in (0.0, -1e6, 999_999.0, MAX_BANDWIDTH_BPS * 1.01, math.inf, math.nan)
    ),
    *(
        ([NodeSpec("worker0", 1e9, delay_s=delay_s)], "delay of worker0: .* give 0 to 20 ms")
        for delay_s in (-0.001, MAX_DELAY_S * 1.01, math.inf, math.nan)
    ),
    ([], "a testbed has 1 to 250 nodes, not 0"),
]


@pytest.mark.parametrize(("nodes", "line"), IMPOSSIBLE)
def test_impossible_nodes_are_one_line(nodes: list[NodeSpec], line: str) -> None:
    with pytest.raises(UserError, match=f"^{line}$"):
        Testbed(nodes)


def test_buffers_fit_a_long_wire() -> None:
    assert tcp_buffer_bytes(0.0, 1e9) == 0, "Linux's own are enough"
    assert tcp_buffer_bytes(0.01, 1e6) == tcp_buffer_bytes(0.01, MAX_BANDWIDTH_BPS), "the rate may be raised later"
    buffers = launch.sysctls(tcp_buffer_bytes(0.0001, 1e6))
    assert int(buffers["ipv4/tcp_rmem"].split()[2]) > 6291456 == int(launch.sysctls(0)["ipv4/tcp_rmem"].split()[2])
    for bandwidth_bps in (250e6, MAX_BANDWIDTH_BPS, None):
        under_way = (bandwidth_bps or 1e10) / 8 * 0.04
        assert tcp_buffer_bytes(0.04, bandwidth_bps) > 2 * under_way


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


def test_check_refuses_wrong_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    testbed = Testbed([NodeSpec("worker0", 1e8), NodeSpec("server", None)])
    monkeypatch.setitem(testbed._shaped, "worker0", 1e8)
    rates = itertools.chain([99e6, 91e6], itertools.repeat(89e6))
    monkeypatch.setattr(testbed, "measure", lambda source, target, seconds: next(rates))
    assert testbed.check() == {"worker0 up": 99e6, "worker0 down": 91e6}
    with pytest.raises(UserError, match=r"^bandwidth of worker0: asked for 100 Mbit/s, got 89 Mbit/s up; [^\n]*$"):
        testbed.check()


def test_check_refuses_wrong_round_trip(monkeypatch: pytest.MonkeyPatch) -> None:
    testbed = Testbed([NodeSpec("worker0", 1e8, delay_s=0.005), NodeSpec("server", None)])
    times = iter([0.0102, 0.0116, 0.0099, math.inf])
    monkeypatch.setattr(testbed, "_round_trip", lambda source, target: next(times))
    assert testbed.check_round_trips() == {"worker0": 0.0102}
    for shown in ("11.60", "9.90", "inf"):
        line = rf"^delay of worker0: asked for a round trip of 10 ms, got {shown} ms; leave the machine idle$"
        with pytest.raises(UserError, match=line):
            testbed.check_round_trips()


def test_check_measures_unshaped_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """results.json has no place for a rate of 0 or a round trip without an end."""
    testbed = Testbed([NodeSpec("worker0", None, measured=True), NodeSpec("server", None)])
    monkeypatch.setattr(testbed, "measure", lambda source, target, seconds: 20e9)
    monkeypatch.setattr(testbed, "_round_trip", lambda source, target: 0.001)
    assert testbed.check() == {"worker0 up": 20e9, "worker0 down": 20e9}
    assert testbed.check_round_trips() == {"worker0": 0.001}
    monkeypatch.setattr(testbed, "measure", lambda source, target, seconds: 0.0)
    monkeypatch.setattr(testbed, "_round_trip", lambda source, target: math.inf)
    with pytest.raises(UserError, match=r"^bandwidth of worker0 up: no data arrived; leave the machine idle$"):
        testbed.check()
    with pytest.raises(UserError, match=r"^delay of worker0: no packet came back; leave the machine idle$"):
        testbed.check_round_trips()


class Stuck:
    """A program of the testbed's own that says where it listens, and nothing more."""

    def __init__(self) -> None:
        self.stdout = io.StringIO("4000\n")
        self.killed = False

    def communicate(self, timeout: float) -> tuple[str, None]:
        raise subprocess.TimeoutExpired("traffic.py", timeout)

    def kill(self) -> None:
        self.killed = True

    def wait(self) -> int:
        return -9


def test_stuck_measurement_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    testbed = Testbed([NodeSpec("worker0", None, measured=True)])
    started: list[Stuck] = []

    def start(node: str, *arguments: str) -> Stuck:
        started.append(Stuck())
        return started[-1]

    monkeypatch.setattr(testbed, "_traffic", start)
    with pytest.raises(UserError, match="no data arrived"):
        testbed.check()
    with pytest.raises(UserError, match="no packet came back"):
        testbed.check_round_trips()
    assert len(started) == 4 and all(program.killed for program in started)


def test_missing_relay_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = tmp_path / "launch.py"
    alone.write_text(namespaces.LAUNCHER.read_text())
    monkeypatch.setattr(namespaces, "LAUNCHER", alone)
    monkeypatch.setattr(delay, "try_alone", lambda *argv: subprocess.run(argv, capture_output=True, text=True))
    with pytest.raises(UserError, match=r"^links cannot be delayed here: it is not compiled; install Prophet again"):
        require_relay()


def test_missing_iproute2_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"^the testbed needs the command ip: "), Testbed([NodeSpec("server", None)]):
        pass


# -------------------------------------------------------------------------------------------- in namespaces


@pytest.mark.netns
@pytest.mark.parametrize("bandwidth_bps", [100e6, 250e6, 1e9])
def test_rate_is_right_both_ways(three_nodes: Testbed, bandwidth_bps: float) -> None:
    three_nodes.set_bandwidth("worker0", bandwidth_bps)
    for source, target in (("worker0", "server"), ("server", "worker0")):
        achieved = rate_of(three_nodes, source, target, bandwidth_bps)
        assert achieved == pytest.approx(bandwidth_bps, rel=TOLERANCE), f"{source} to {target}"


@pytest.mark.netns
def test_each_node_has_its_own_rate(three_nodes: Testbed) -> None:
    three_nodes.set_bandwidth("worker0", 100e6)
    assert rate_of(three_nodes, "worker1", "worker0", 100e6) == pytest.approx(100e6, rel=TOLERANCE)
    three_nodes.set_bandwidth("worker0", None)
    assert max(three_nodes.measure("server", "worker0", MEASURE_S) for _ in range(2)) > 1e9
    three_nodes.set_bandwidth("worker0", 200e6)
    assert checked(three_nodes.check) == {
        "worker0 up": pytest.approx(200e6, rel=TOLERANCE),
        "worker0 down": pytest.approx(200e6, rel=TOLERANCE),
        "worker1 up": pytest.approx(1e9, rel=TOLERANCE),
        "worker1 down": pytest.approx(1e9, rel=TOLERANCE),
    }


@pytest.mark.netns
@pytest.mark.parametrize("delay_s", [0.0, 0.001, 0.02])
def test_delay_is_right_and_keeps_the_rate(delay_s: float) -> None:
    nodes = [NodeSpec("worker0", 250e6, delay_s=delay_s), NodeSpec("server", None)]
    with network(nodes) as testbed:
        trip_s = checked(testbed.check_round_trips)["worker0"]
        assert 2 * delay_s <= trip_s <= 2 * delay_s * 1.1 + SLACK_S
        assert checked(testbed.check) == {
            "worker0 up": pytest.approx(250e6, rel=TOLERANCE),
            "worker0 down": pytest.approx(250e6, rel=TOLERANCE),
        }


@pytest.mark.netns
def test_long_wire_carries_a_gigabit() -> None:
    nodes = [NodeSpec("worker0", 1e9, delay_s=0.01), NodeSpec("worker1", 1e9, delay_s=0.01)]
    with network(nodes) as testbed:
        assert rate_of(testbed, "worker0", "worker1", 1e9, 3.0) == pytest.approx(1e9, rel=TOLERANCE)


@pytest.mark.netns
def test_relay_outlives_programs(tmp_path: Path) -> None:
    nodes = [NodeSpec("worker0", 250e6, delay_s=0.002), NodeSpec("server", None)]
    with network(nodes) as testbed:
        testbed.popen("worker0", ["sleep", "1000"], env={"PATH": os.environ["PATH"]}, log=tmp_path / "log")
        testbed.terminate_all()
        assert testbed.fault() is None
        assert checked(testbed.check_round_trips)["worker0"] >= 0.004
        assert testbed._holder
        (process,) = set(in_namespace(Path(testbed._bridge).stat().st_ino)) - {testbed._holder.pid}
        os.kill(process, signal.SIGTERM)
        wait_until(lambda: testbed.fault() is not None)
        assert testbed.fault() == "the relay of worker0's link ended with status -15: it said nothing"


@pytest.mark.netns
def test_traffic_takes_its_share() -> None:
    with network([NodeSpec("worker0", 300e6), NodeSpec("server", None)]) as testbed:
        testbed.set_traffic("worker0", 100e6)
        for source, target in (("worker0", "server"), ("server", "worker0")):
            assert rate_of(testbed, source, target, 200e6) == pytest.approx(200e6, rel=TOLERANCE), source
        assert testbed.fault() is None
        testbed.set_traffic("worker0", None)
        assert rate_of(testbed, "worker0", "server", 300e6) == pytest.approx(300e6, rel=TOLERANCE)
        testbed.set_traffic("worker0", 100e6)
        testbed.terminate_all()
        assert testbed.fault() is None, "it ended with the programs"


@pytest.mark.netns
@pytest.mark.parametrize("delay_s", [None, 0.001])
def test_link_that_is_down(delay_s: float | None, tmp_path: Path) -> None:
    with network([NodeSpec("worker0", 300e6, delay_s=delay_s), NodeSpec("server", None)]) as testbed:

        def answer(limit_s: float) -> str:
            """Try a port without a listener: it refuses if the link is up, and is silent if it is down."""
            script = f"timeout {limit_s} bash -c '</dev/tcp/{testbed.address('server')}/9'; echo $?"
            return output_of(testbed, "worker0", script, tmp_path / "log").splitlines()[-1]

        assert answer(LIMIT_S) == "1"
        testbed.set_link("worker0", passes=False)
        testbed.set_link("worker0", passes=False)
        assert answer(0.4) == "124"
        testbed.set_link("worker0", passes=True)
        assert answer(LIMIT_S) == "1"
        assert testbed.fault() is None
        assert rate_of(testbed, "worker0", "server", 300e6) == pytest.approx(300e6, rel=TOLERANCE)


@pytest.mark.netns
def test_signal_reaches_programs_of_one_node(three_nodes: Testbed, tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"]}
    script = ["sh", "-c", "sleep 1000 & echo ready; wait"]  # ready when there is nobody any more who is yet to come
    first, other = (
        three_nodes.popen(node, script, env=environ, log=tmp_path / node) for node in ("worker0", "worker1")
    )
    wait_until(lambda: all("ready" in (tmp_path / node).read_text() for node in ("worker0", "worker1")))

    def states(node: str) -> set[str]:
        stats = [Path(f"/proc/{pid}/stat").read_text() for pid in processes_in(three_nodes, node)]
        return {stat.rpartition(")")[2].split()[0] for stat in stats}

    three_nodes.send_signal("worker0", signal.SIGSTOP)
    wait_until(lambda: states("worker0") == {"T"})
    assert "T" not in states("worker1")
    three_nodes.send_signal("worker0", signal.SIGCONT)
    wait_until(lambda: "T" not in states("worker0"))
    three_nodes.send_signal("worker0", signal.SIGKILL)
    assert first.wait(timeout=LIMIT_S) == -signal.SIGKILL
    wait_until(lambda: processes_in(three_nodes, "worker0") == [])
    assert other.poll() is None
    three_nodes.send_signal("worker0", signal.SIGTERM)  # nobody is there any more
    three_nodes.terminate_all()


@pytest.mark.netns
def test_program_gets_environment_folder_and_network(three_nodes: Testbed, tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = ["sh", "-c", "pwd; env; ip -o -4 addr; echo complaint >&2; exit 3"]
    process = three_nodes.popen("worker1", script, env={"PATH": os.environ["PATH"], "A": "1"}, log=log, cwd=tmp_path)
    assert process.wait(timeout=LIMIT_S) == 3
    lines = log.read_text()
    assert f"{tmp_path}\n" in lines and "\nA=1\n" in lines and "complaint" in lines and "HOME=" not in lines
    assert f"inet {three_nodes.address('worker1')}/24" in lines
    assert three_nodes.interface("worker1") in lines


@pytest.mark.netns
def test_program_runs_on_cores_of_its_node(tmp_path: Path) -> None:
    mine = sorted(os.sched_getaffinity(0))
    nodes = [NodeSpec("worker0", None, (mine[-1],)), NodeSpec("server", None)]
    script = "grep Cpus_allowed_list /proc/self/status | cut -f 2"
    with network(nodes) as testbed:
        assert output_of(testbed, "worker0", script, tmp_path / "log") == f"{mine[-1]}\n"
        everywhere = Path("/proc/self/status").read_text().split("Cpus_allowed_list:\t")[1].split()[0]
        assert output_of(testbed, "server", script, tmp_path / "log") == f"{everywhere}\n"


@pytest.mark.netns
def test_program_that_cannot_start(three_nodes: Testbed, tmp_path: Path) -> None:
    process = three_nodes.popen("server", ["/no/such/program"], env={}, log=tmp_path / "log")
    assert process.wait(timeout=LIMIT_S) == 1
    assert (tmp_path / "log").read_text().count("\n") == 1
    assert "No such file or directory" in (tmp_path / "log").read_text()


@pytest.mark.netns
def test_shared_memory_is_private(three_nodes: Testbed, tmp_path: Path) -> None:
    outside = set(Path("/dev/shm").iterdir())
    script = "ls -A /dev/shm; echo there > /dev/shm/testbed; cat /dev/shm/testbed"
    for node in ("worker0", "worker0", "worker1"):
        assert output_of(three_nodes, node, script, tmp_path / "log") == "there\n"
    assert not {path for path in set(Path("/dev/shm").iterdir()) - outside if path.name == "testbed"}


@pytest.mark.netns
def test_terminate_all_leaves_empty_nodes(three_nodes: Testbed, tmp_path: Path) -> None:
    # The second ignores SIGTERM in a group of its own, and its parent is gone.
    script = "sleep 1000 & setsid sh -c 'trap \"\" TERM; echo ready; sleep 1000; sleep 1000' & exit 0"
    parent = three_nodes.popen("worker1", ["sh", "-c", script], env={"PATH": os.environ["PATH"]}, log=tmp_path / "log")
    assert parent.wait(timeout=LIMIT_S) == 0
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


def wait_until(condition: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
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
def test_killed_harness_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    names = {path.name for path in Path("/sys/class/net").iterdir()}
    killed = harness("wait", tmp_path / "log")
    assert killed.stdout
    namespaces = [int(inode) for inode in killed.stdout.readline().split()]
    wait_until(lambda: len(in_namespace(namespaces[0])) >= 2)  # the programs
    assert len(in_namespace(namespaces[-1])) == 2, "the holder and the relay"
    killed.send_signal(number)
    killed.wait(timeout=LIMIT_S)
    # A killed harness does not wait for the holder, which needs a moment.
    wait_until(lambda: not any(in_namespace(inode) for inode in namespaces))
    assert {path.name for path in Path("/sys/class/net").iterdir()} == names


@pytest.mark.netns
@pytest.mark.usefixtures("three_nodes")
def test_error_leaves_nothing(tmp_path: Path) -> None:
    failed = harness("error", tmp_path / "log")
    output, errors = failed.communicate(timeout=LIMIT_S)
    assert "a bug in the harness" in errors
    assert [in_namespace(int(inode)) for inode in output.split()] == [[]] * len(output.split())


@pytest.mark.netns
def test_ordinary_user_gets_a_testbed(tmp_path: Path) -> None:
    # Root becomes an ordinary user of this test's own making, who may read what root may.
    before = ["unshare", "--user", "--map-user=1000", "--map-group=1000"] if os.geteuid() == 0 else []
    allowed = subprocess.run([*before, "unshare", "--user", "--map-root-user", "--net", "true"], capture_output=True)
    if allowed.returncode != 0:
        pytest.skip(f"no user namespaces here: {allowed.stderr.decode().strip()}")
    used = harness("measure", tmp_path / "log", *before)
    output, errors = used.communicate(timeout=LIMIT_S)
    assert used.returncode == 0, errors
    rates = [float(line) for line in output.splitlines()[1:]]
    assert rates == [pytest.approx(100e6, rel=TOLERANCE)] * 2


def test_machine_without_namespaces_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = [sys.executable, "-c", "import sys; sys.exit('unshare: Operation not permitted')"]
    monkeypatch.setattr("prophet_scheduler.lab.testbed.namespaces.launcher", lambda *arguments: refused)
    monkeypatch.setattr(testbed_module, "launcher", lambda *arguments: refused)
    with pytest.raises(UserError, match=r"^the testbed needs root, or user namespaces [^\n]*Operation not permitted$"):
        require_namespaces()
    with (
        pytest.raises(UserError, match=r"^no network namespaces: unshare: Operation not permitted$"),
        Testbed([NodeSpec("server", None)]),
    ):
        pass
