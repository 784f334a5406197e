"""The command: arguments in, one line and an exit status out, and nothing left behind."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import prophet_scheduler
from prophet_scheduler.core.event_record import EventRecord, save_record
from prophet_scheduler.core.events import BOTH_LANES, EVENT_DTYPE, NO_PLAN, EventKind, QueueEvent
from prophet_scheduler.lab import doctor, session
from prophet_scheduler.lab.config import Experiment
from prophet_scheduler.lab.screen import IN_A_PIPE, screen
from prophet_scheduler.models.profiles import save_profile
from support.commands import Command
from support.configs import REPLAY, written
from support.profiles import resnet50


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Experiment, Path]]:
    """Experiments that would have been run, and where to; none fails."""
    calls: list[tuple[Experiment, Path]] = []

    def run_session(experiment: Experiment, out: Path) -> int:
        calls.append((experiment, out))
        return 0

    monkeypatch.setattr(session, "run_session", run_session)
    return calls


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return written(REPLAY, tmp_path)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A profile."""
    path = tmp_path / "small.profile.json"
    save_profile(resnet50(5_000_000), path, source="a test")
    return path


def test_version(prophet: Command) -> None:
    assert prophet("--version") == (0, f"prophet {prophet_scheduler.__version__}\n", "")


def test_run_passes_options(prophet: Command, config: Path, ran: list[tuple[Experiment, Path]]) -> None:
    options = ["--policy", "p3", "--policy", "stock", "--repeats", "4", "--out", config.parent / "out"]
    assert prophet("run", config, *options)[0] == prophet("run", config)[0] == 0
    (experiment, out), (_, by_default) = ran
    assert [policy.name for policy in experiment.cells[0].policies] == ["p3", "stock"]
    assert (experiment.repeats, out) == (4, config.parent / "out")
    assert by_default.parent == Path("results") and by_default.name.startswith("small-20")


def test_ignored_variables_are_one_line_on_stderr(
    prophet: Command, config: Path, ran: list[tuple[Experiment, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("PROPHET_")]:
        monkeypatch.delenv(name)
    assert prophet("run", config) == (0, "", "")
    monkeypatch.setenv("PROPHET_FUSION", "0")
    for command, folder in (("run", "out"), ("simulate", "simulated")):
        options = ["--policy", "fifo", "--repeats", "1", "--out", config.parent / folder]
        status, _, errors = prophet(command, config, *options)
        assert errors.startswith("prophet: an experiment ignores the shell's PROPHET_FUSION;")
        assert (status, errors.count("\n")) == (0, 1)


def test_failed_policy_is_status_1(prophet: Command, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "run_session", lambda experiment, out: 2)
    assert prophet("run", config)[0] == 1


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("run none.yaml", "none.yaml: cannot be read (No such file or directory); give the path of a YAML config, or"),
        ("run quickstat", "quickstat: cannot be read (No such file or directory); did you mean quickstart? give the"),
        ("profile none.json", "none.json: no such profile file"),
        ("replay none.npz", "none.npz does not exist"),
        ("advise . --bandwidth 1gbit", ".: no worker's record is there; give a folder that PROPHET_RECORD has left"),
        ("report .", ". has neither a results.json, as `prophet run` leaves it"),
        ("advise resnet50", "--bandwidth is missing"),
        (
            "advise resnet50 --bandwidth 1gbit --policy fsdp",
            "--policy: unknown policy 'fsdp'; did you mean fsdp2? the known ones are fsdp2, fsdp2-prophet, stock,",
        ),
        ("advise resnet50 --bandwidth fast", "--bandwidth: 'fast' is not a rate"),
        ("advise resnet50 --bandwidth 1gbit --delay x", "--delay: 'x' is not a time"),
        ("plan resnet5 --bandwidth 1gbit", "resnet5: no such profile file, and no built-in"),
        ("plan resnet50 --bandwidth fast", "--bandwidth: 'fast' is not a rate; write e.g. 250mbit"),
        ("plan none.json --bandwidth 1gbit", "none.json: no such profile file"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_file(
    arguments: str, line: str, prophet: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert prophet.refuses(*arguments.split()).startswith(f"prophet: {line}")
    assert list(tmp_path.iterdir()) == []


def test_unusable_path_is_one_line(prophet: Command, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_session(experiment: Experiment, out: Path) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", "locked/runs")

    monkeypatch.setattr(session, "run_session", run_session)
    assert prophet.refuses("run", config) == "prophet: locked/runs: cannot be used (Permission denied)\n"


ADD, START, FINISH = EventKind.ADD, EventKind.START, EventKind.FINISH
EMPTY = (3.0, NO_PLAN, 0, 0, BOTH_LANES, QueueEvent.EMPTY, 0)
TASKS = [
    (time_s + kind_at / 10, gradient, size, part, lane, kind, 0)
    for lane, time_s in ((0, 1.0), (1, 2.0))
    for kind_at, kind in enumerate((ADD, START, FINISH))
    for gradient, size, part in ((5, 100, 0), (5, 0, 1), (5, 0, 2), (6, 0, 0))
]
"""Tasks pushed and pulled, some without bytes."""
WITHOUT = [row for row in TASKS if row[3] != 2 or row[5] == ADD]
"""The same, but one of them only waits."""


@pytest.mark.parametrize(
    ("rows", "status", "line"),
    [
        ([(2.0, 5, 8, 0, 0, ADD, 0), (2.0, 5, 8, 0, 0, START, 0)], 0, "1 decision under 0 plans, all the same"),
        ([(2.0, 5, 8, 0, 0, START, 0)], 1, "1 decision under 0 plans, 1 different"),
        ([*TASKS, EMPTY], 0, "8 decisions under 0 plans, all the same"),
        (WITHOUT, 1, "3 decisions under 0 plans, 1 different"),
        ([*WITHOUT, EMPTY], 1, "3 decisions under 0 plans, 1 different"),  # what follows a difference is not checked
    ],
)
def test_replay_that_differs_is_status_1(
    rows: list[tuple[float, ...]], status: int, line: str, prophet: Command, tmp_path: Path
) -> None:
    save_record(EventRecord(np.array(rows, EVENT_DTYPE)), tmp_path / "e.npz")
    ended, out, _ = prophet("replay", tmp_path / "e.npz")
    assert (ended, out.splitlines()[0]) == (status, line)


def test_record_that_cannot_be_replayed_is_one_line(prophet: Command, tmp_path: Path) -> None:
    save_record(EventRecord(np.array([TASKS[1], EMPTY], EVENT_DTYPE)), tmp_path / "e.npz")
    line = prophet.refuses("replay", tmp_path / "e.npz")
    assert line == "prophet: event 1 says that the queue is empty, but it is not\n"
    save_record(EventRecord(np.zeros(0, EVENT_DTYPE), agreed=True), tmp_path / "e.npz")
    assert "agreed on the sequence" in prophet.refuses("replay", tmp_path / "e.npz")


@pytest.mark.parametrize(
    "arguments",
    [
        "replay FILE",
        "profile FILE",
        "plan FILE --bandwidth 1gbit",
        "advise FILE --bandwidth 1gbit",
        "advise resnet50 --status FILE",
        "simulate FILE",
        "run FILE",
        "report FOLDER",
    ],
)
def test_damaged_file_is_one_line_and_status_2(
    arguments: str, prophet: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "results.json"
    gradient = {"name": "two\nlines", "bytes": 0, "generation_s": 1, "forward_s": 0}
    deep, name = "[" * 5000, json.dumps({"schema": 1, "gradients": [gradient]})
    for content in (b"", b"\xff\xfe\0", b"{", deep.encode(), b'{"job": {"iterations": 1e400}}', name.encode()):
        path.write_bytes(content)
        words = [{"FILE": path, "FOLDER": tmp_path}.get(word, word) for word in arguments.split()]
        assert "results.json" in prophet.refuses(*words)
    assert [entry.name for entry in tmp_path.iterdir()] == ["results.json"]


def test_full_disk_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "prophet_scheduler.cli.main", "doctor"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, cwd=tmp_path)
    assert b"Traceback" not in done.stderr and b"No space left" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        ("walk", "prophet"),
        ("run", "prophet run"),
        ("run x.yaml --repeats many", "prophet run"),
        ("run --slow", "prophet run"),
        ("top --count 0", "prophet top"),
        ("run quickstart --repeats 0", "prophet run"),
        ("plan resnet50 --bandwidth 1gbit --servers 0", "prophet plan"),
        ("advise resnet50 --bandwidth 1gbit --workers 0", "prophet advise"),
        ("testbed --bandwidth 1gbit --workers 1 true", "prophet testbed"),
        ("testbed --bandwidth 1gbit --compare A=1 --pairs 1 true", "prophet testbed"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(arguments: str, command: str, prophet: Command) -> None:
    assert prophet.refuses(*arguments.split()).endswith(f"; see `{command} --help`\n")


def test_no_argument_prints_help(prophet: Command) -> None:
    status, out, error = prophet()
    assert (status, error) == (2, "") and "coordinate" in out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interruption_is_status_130(
    number: signal.Signals, prophet: Command, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleaned: list[str] = []

    def interrupted(experiment: Experiment, out: Path) -> int:
        try:
            signal.raise_signal(number)
        finally:
            cleaned.append("up")
        raise AssertionError("not reached")

    monkeypatch.setattr(session, "run_session", interrupted)
    assert prophet("run", config)[0] == 130
    assert cleaned == ["up"]


@pytest.mark.parametrize(("item", "looks"), [("BytePS", "_package"), ("hook", "_plugin")])
def test_run_needs_a_usable_byteps(
    item: str, looks: str, prophet: Command, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def examined(*subject: object) -> Iterator[doctor.Finding]:
        yield doctor.Finding(item, False, "is of a kind we do not know; install another")

    monkeypatch.setattr(doctor, looks, examined)
    folder = config.parent / "out"
    line = prophet.refuses("run", config, "--out", folder)
    assert line == f"prophet: {item}: is of a kind we do not know; install another\n"
    assert not folder.exists()


def test_config_for_simulator_is_not_run(prophet: Command, tmp_path: Path) -> None:
    path = written({**REPLAY, "repeats": 1, "engine": "simulator"}, tmp_path)
    assert prophet.refuses("run", path, "--out", tmp_path / "out").startswith("prophet: engine: ")


def test_doctor_prints_findings_and_verdict(prophet: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (("starting", "one start in five hangs"), ("freeing", "it grows"))
    findings = [
        doctor.Finding("BytePS", True, "0.2.5"),
        doctor.Finding("BytePS's faults", True, "2 of 7", warning=True, rows=rows),
        doctor.Finding("testbed", False, "needs root"),
    ]
    monkeypatch.setattr(doctor, "examine", lambda: findings)
    monkeypatch.setattr(doctor, "verdict", lambda: (True, "ready for a toy; run next: train"))
    status, out, _ = prophet("doctor")
    assert (status, out.splitlines()) == (
        0,
        [
            "ok       BytePS: 0.2.5",
            "warning  BytePS's faults: 2 of 7",
            "           starting  one start in five hangs",
            "           freeing   it grows",
            "missing  testbed: needs root",
            "verdict  ready for a toy; run next: train",
        ],
    )
    monkeypatch.setattr(doctor, "verdict", lambda: (False, "not ready, BytePS: not installed"))
    assert prophet("doctor")[0] == 2


def test_profile_shows_steps(prophet: Command, tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    save_profile(resnet50(25_600_000), file, source="a test")
    status, out, _ = prophet("profile", file)
    assert status == 0 and "161 gradients in 13 steps" in out
    assert sum(" ms" in line for line in out.splitlines()) == 13 + 1, "a row a step, and all of them"


def test_help_imports_nothing_heavy() -> None:
    names = "'torch', 'pydantic', 'numpy'"
    heavy = f"import sys, prophet_scheduler.cli; print([m for m in ({names}) if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_plan_shows_blocks_and_policies(prophet: Command, small: Path) -> None:
    status, shown, _ = prophet("plan", small, "--bandwidth", "100mbit")
    assert status == 0 and "Algorithm 1's blocks" in shown
    assert "ddp-gloo" in shown and "bytescheduler" not in shown, "of DDP"
    status, shown, _ = prophet("plan", small, "--bandwidth", "100mbit", "--engine", "byteps")
    assert status == 0 and "bytescheduler" in shown


@pytest.mark.parametrize("width", [60, 80, 120])
def test_tables_cut_no_number(width: int, prophet: Command, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for command in (
        ["advise", small, "--bandwidth", "1Gbps"],
        ["plan", small, "--bandwidth", "1Gbps"],
        ["profile", small],
    ):
        tables = []
        for columns in (500, width):
            monkeypatch.setenv("COLUMNS", str(columns))
            status, shown, _ = prophet(*command)
            assert status == 0 and "…" not in shown
            tables.append(sorted(re.findall(r"[0-9.]+%?", shown)))
        assert tables[0] == tables[1]


def test_width_of_pipe_and_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert screen().width == IN_A_PIPE
    monkeypatch.setenv("COLUMNS", "60")
    assert screen().width == 60


@pytest.mark.parametrize(
    ("command", "key"),
    [("doctor", "verdict"), ("plan FILE --bandwidth 1Gbps", "iteration_s"), ("profile FILE", "steps")],
)
def test_commands_print_json(command: str, key: str, prophet: Command, small: Path) -> None:
    status, out, _ = prophet(*command.replace("FILE", str(small)).split(), "--json")
    assert status in (0, 2) and json.loads(out)[key]


def test_short_help_option_and_completion(prophet: Command) -> None:
    for command in ([], ["doctor"], ["testbed"]):
        status, out, _ = prophet(*command, "-h")
        assert status == 0 and "Usage: " in out
    command = [sys.executable, "-m", "prophet_scheduler", "--help"]
    assert "--install-completion" in subprocess.run(command, capture_output=True, text=True, timeout=240).stdout


@pytest.mark.parametrize("command", ["run", "simulate"])
def test_impossible_out_folder_is_one_line(command: str, prophet: Command, config: Path) -> None:
    line = prophet.refuses(command, config, "--out", f"{config}/out")
    assert line == f"prophet: --out: {config} is not a folder; name another\n"
