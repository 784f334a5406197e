"""The native parts under the compiler's checks: of memory and undefined behaviour, and of data races.

What belongs here: building and running the C++ programs of this folder. Where a compiler or a kernel has no such check
the tests are skipped, unless SANITIZERS=required, as `make sanitize` and CI have it.
"""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Iterator
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from prophet_scheduler.core.event_record import EventRecord
from prophet_scheduler.core.events import EVENT_DTYPE, EventKind, QueueEvent
from prophet_scheduler.core.plan_codec import HEADER
from prophet_scheduler.simulate.replay import replay
from tools.native_stress import CHECKS, PLAIN, build, build_stress, run_tasks, why_not

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TESTBED = ROOT / "prophet" / "prophet_scheduler" / "lab" / "testbed" / "native"
TASKS, SEED = 30_000, 1
"""Of stress.cc. With this seed BytePS is suspended twice; of the last engine's tasks some leave without the hook."""


def run(*command: object) -> str:
    """Return what it says. It ends with 0, and no check has anything to say: TSan and ASan then end with another."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=900)
    assert (done.returncode, done.stderr) == (0, ""), (done.stdout + done.stderr)[:8000]
    return done.stdout


@pytest.fixture(params=sorted(CHECKS))
def flags(request: pytest.FixtureRequest) -> tuple[str, ...]:
    check: str = request.param
    why = why_not(check)
    if why and os.environ.get("SANITIZERS") != "required":
        pytest.skip(f"{check}: {why}")
    assert not why, f"{check}: {why}"
    return CHECKS[check]


def test_the_checks_check(flags: tuple[str, ...], tmp_path: Path) -> None:
    """A program with a fault of each kind is noticed: what passes below is not just unwatched."""
    faulty = tmp_path / "faulty.cc"
    faulty.write_text(
        "#include <thread>\n"
        "int shared[2];\n"
        "int main(int count, char**) {\n"
        "  std::thread other([&] { for (int i = 0; i < 100000; ++i) shared[0] += i % 2; });\n"
        "  for (int i = 0; i < 100000; ++i) shared[0] += i % 2;\n"
        "  other.join();\n"
        "  return shared[count + 1] == 5;\n"
        "}\n"
    )
    program = build(tmp_path / "faulty", faulty, *flags)
    done = subprocess.run([str(program)], capture_output=True, text=True)
    assert done.returncode != 0
    assert "runtime error: index 2 out of bounds" in done.stderr or "WARNING: ThreadSanitizer: data race" in done.stderr


def test_queue_plans_and_simulator(flags: tuple[str, ...], tmp_path: Path) -> None:
    assert run(build(tmp_path / "state_machines", HERE / "state_machines.cc", *flags), 4, 40_000) == ""


class Fed:
    """The program that does to the queue what it is told, under the checks of memory."""

    def __init__(self, program: Path) -> None:
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None

    def do(self, what: bytes) -> bytes:
        """Return its line, which is empty if every check held. A program that stands still or is gone ends here."""
        process = self._process
        if process is None or process.poll() is not None:
            process = self._process = subprocess.Popen(
                [self._program, "fed"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(len(what).to_bytes(4, "little") + what)
        process.stdin.flush()
        if not select.select([process.stdout], [], [], 30)[0]:
            process.kill()
        return process.stdout.readline() or b"it ended with status %d" % process.wait()

    def end(self) -> int:
        if self._process is None:
            return 0
        self._process.communicate()
        return self._process.returncode


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fed]:
    if why := why_not("memory"):
        assert os.environ.get("SANITIZERS") != "required", why
        pytest.skip(why)
    sources = HERE / "state_machines.cc"
    program = Fed(build(tmp_path_factory.mktemp("fed") / "fed", sources, *CHECKS["memory"]))
    yield program
    assert program.end() == 0


@given(what=st.binary(max_size=4000))
def test_any_sequence_of_calls_keeps_the_queues_invariants(fed: Fed, what: bytes) -> None:
    """Tasks of no bytes and of the most, ids twice, finishes of what never came: `make fuzz` tries the most of it."""
    assert fed.do(what) == b"\n"


def test_a_relays_delay_line(flags: tuple[str, ...], tmp_path: Path) -> None:
    assert run(build(tmp_path / "delay_line", HERE / "delay_line.cc", f"-I{TESTBED}", *flags), 20_000) == ""


def test_every_task_passes_once_through_suspends_new_plans_and_stepping_aside(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    built = build_stress(tmp_path, flags)
    said = run(built.program, built.hook, built.core, TASKS, SEED, tmp_path)
    assert said.split()[-4:] == ["suspensions", "2", "asides", "1"], said
    the_record_replays_to_the_same_decisions(tmp_path)


def the_record_replays_to_the_same_decisions(folder: Path) -> None:
    """The record of that run, replayed: neither the lock nor the log lets two threads' calls change places."""
    events = np.frombuffer((folder / "events").read_bytes(), EVENT_DTYPE)
    plans: dict[int, bytes] = {}
    data = (folder / "plans").read_bytes()
    while data:
        size = int(np.frombuffer(data[: HEADER.itemsize], HEADER)[0]["bytes"])
        plans[len(plans)], data = data[:size], data[size:]
    kinds = events["kind"]
    assert int((kinds == QueueEvent.PLAN).sum()) == len(plans) > 20
    assert int((kinds == QueueEvent.FORGOTTEN).sum()) >= 2
    starts = int((kinds == EventKind.START).sum())
    assert starts > TASKS / 2
    result = replay(EventRecord(events, plans, watchdog_s=1.0, most_in_flight=256))
    assert (result.same, result.differences[:3], result.unchecked) == (starts, (), ())


def test_a_soak_of_tasks_counts_what_passed_and_what_was_done_meanwhile(tmp_path: Path) -> None:
    built = build_stress(tmp_path)
    soaked = run_tasks(built, PLAIN, 100_000, seed=5, limit_s=900)
    assert soaked.wrong == ""
    assert soaked.tasks >= 100_000 - 60 * 400 and soaked.asides == 1 and soaked.plans > 20
    broken = run_tasks(built.__class__(built.program, tmp_path / "no.so", built.core), PLAIN, 1000, 5, 10)
    assert broken.tasks == 0 and broken.wrong.startswith("status 1: ") and "no.so" in broken.wrong
