"""The native parts under the compiler's checks: of memory and undefined behaviour, and of data races.

What belongs here: building and running the C++ programs of this folder. Where a compiler or a kernel has no such check
the tests are skipped, unless SANITIZERS=required, as `make sanitize` and CI have it.
"""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest

from prophet.core.event_record import EventRecord
from prophet.core.events import EVENT_DTYPE, EventKind, QueueEvent
from prophet.core.plan_codec import HEADER
from prophet.simulate.replay import replay

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NATIVE = ROOT / "prophet" / "core" / "native"
TESTBED = ROOT / "prophet" / "lab" / "testbed" / "native"
HOOK = ROOT / "plugins" / "byteps" / "prophet_byteps" / "native" / "hook.cc"

CHECKS = {
    "memory": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "races": ("-fsanitize=thread",),
}
TASKS = 60 * (60 + 250 + 250)
"""Handed over in stress.cc; of the first engine's, and of the last's, some leave without the hook."""


def build(out: Path, source: Path, *flags: str) -> Path:
    command = ["g++", "-std=c++17", "-O1", "-g", "-pthread", f"-I{NATIVE}", *flags, str(source), "-o", str(out), "-ldl"]
    subprocess.run(command, check=True)
    return out


def run(*command: object) -> None:
    """Ends with 0, and no check has anything to say. TSan and ASan end with a status of their own where they do."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=250)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), (done.stdout + done.stderr)[:8000]


@functools.cache
def why_not(check: str) -> str:
    """Why the check cannot be made here, or nothing."""
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder, "empty.cc")
        empty.write_text("int main() {}\n")
        built = subprocess.run(["g++", *CHECKS[check], str(empty), "-o", f"{folder}/empty"], capture_output=True)
        if built.returncode != 0:
            return "this compiler cannot make the check"
        ran = subprocess.run([f"{folder}/empty"], capture_output=True)
        return "" if ran.returncode == 0 else "the check cannot run on this kernel"


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
    run(build(tmp_path / "state_machines", HERE / "state_machines.cc", *flags), 4, 40_000)


def test_a_relays_delay_line(flags: tuple[str, ...], tmp_path: Path) -> None:
    run(build(tmp_path / "delay_line", HERE / "delay_line.cc", f"-I{TESTBED}", *flags), 20_000)


def test_every_task_passes_once_through_suspends_new_plans_and_stepping_aside(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    # Calls must go through the procedure linkage table, as they do between BytePS's files.
    shared = ("-fPIC", "-fno-inline", "-shared", *flags)
    hook = build(tmp_path / "hook.so", HOOK, *shared)
    core = build(tmp_path / "core.so", HERE / "stress.cc", *shared)
    program = build(tmp_path / "stress", HERE / "stress.cc", "-DSTRESS_MAIN", *flags)
    run(program, hook, core, tmp_path)
    what_the_threads_were_given_is_what_the_queue_decides(tmp_path)


def what_the_threads_were_given_is_what_the_queue_decides(folder: Path) -> None:
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
