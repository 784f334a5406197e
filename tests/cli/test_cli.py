"""The command: arguments in, one line and an exit status out, and nothing left behind."""

from __future__ import annotations

import errno
import importlib.machinery
import importlib.metadata
import importlib.util
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
from prophet_scheduler.cli import main as cli
from prophet_scheduler.core.event_record import EventRecord, save_record
from prophet_scheduler.core.events import BOTH_LANES, EVENT_DTYPE, NO_PLAN, EventKind, QueueEvent
from prophet_scheduler.engines.registry import engines
from prophet_scheduler.lab import doctor, session
from prophet_scheduler.lab.config import Experiment
from prophet_scheduler.lab.contenders import Contender
from prophet_scheduler.lab.screen import IN_A_PIPE, screen
from prophet_scheduler.models.profiles import save_profile
from support.configs import REPLAY, changed, written
from support.profiles import resnet50


def invoked(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit status of `prophet ARGUMENTS`, through the entry point."""
    monkeypatch.setattr(sys, "argv", ["prophet", *arguments])
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as left:
            cli.main()
    finally:
        signal.signal(signal.SIGTERM, before)
    return int(left.value.code or 0)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Experiment, Path]]:
    """Experiments that would have been run, and where to; none fails."""
    calls: list[tuple[Experiment, Path]] = []

    def run_session(experiment: Experiment, out: Path) -> int:
        calls.append((experiment, out))
        return 0

    monkeypatch.setattr(session, "run_session", run_session)
    return calls


def test_the_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoked(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"prophet {prophet_scheduler.__version__}\n"


def test_run_passes_its_options_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ran: list[tuple[Experiment, Path]]
) -> None:
    path = str(written(REPLAY, tmp_path))
    options = ["--policy", "p3", "--policy", "stock", "--repeats", "4", "--out", str(tmp_path / "out")]
    assert invoked(monkeypatch, "run", path, *options) == 0
    ((experiment, out),) = ran
    assert [policy.name for policy in experiment.cells[0].policies] == ["p3", "stock"]
    assert (experiment.repeats, out) == (4, tmp_path / "out")


def test_variables_of_the_shell_are_one_line_on_standard_error(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    ran: list[tuple[Experiment, Path]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = str(written(REPLAY, tmp_path))
    for name in [name for name in os.environ if name.startswith("PROPHET_")]:
        monkeypatch.delenv(name)
    assert invoked(monkeypatch, "run", path) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("PROPHET_FUSION", "0")
    for command, folder in (("run", "out"), ("simulate", "simulated")):
        options = ["--policy", "fifo", "--repeats", "1", "--out", str(tmp_path / folder)]
        assert invoked(monkeypatch, command, path, *options) == 0
        errors = capsys.readouterr().err
        assert errors.startswith("prophet: an experiment takes nothing from the shell's PROPHET_FUSION;")
        assert errors.count("\n") == 1


def test_results_go_to_a_folder_of_the_experiments_name_and_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ran: list[tuple[Experiment, Path]]
) -> None:
    assert invoked(monkeypatch, "run", str(written(REPLAY, tmp_path))) == 0
    assert ran[0][1].parent == Path("results")
    assert ran[0][1].name.startswith("small-20")


def test_an_experiment_with_a_failed_policy_is_status_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(session, "run_session", lambda experiment, out: 2)
    assert invoked(monkeypatch, "run", str(written(REPLAY, tmp_path))) == 1


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["run", "none.yaml"], "prophet: none.yaml: cannot be read (No such file or directory)"),
        (["profile", "none.json"], "prophet: none.json: no such profile file"),
        (["replay", "none.npz"], "prophet: none.npz does not exist"),
        (["advise", ".", "--bandwidth", "1gbit"], "prophet: . has neither a results.json, as `prophet run` leaves it"),
        (
            ["advise", "resnet50", "--bandwidth", "1gbit", "--cell", "1"],
            "prophet: --cell is of a folder of `prophet run`, and resnet50 is a profile; leave it out",
        ),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    arguments: list[str],
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoked(monkeypatch, *arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(line) and printed.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_nothing_can_be_done_with_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def run_session(experiment: Experiment, out: Path) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", "locked/runs")

    monkeypatch.setattr(session, "run_session", run_session)
    assert invoked(monkeypatch, "run", str(written(REPLAY, tmp_path))) == 2
    assert capsys.readouterr().err == "prophet: locked/runs: cannot be used (Permission denied)\n"


def test_a_replay_that_differs_is_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    add, start = (2.0, 5, 8, 0, 0, EventKind.ADD, 0), (2.0, 5, 8, 0, 0, EventKind.START, 0)
    for rows, status, line in (
        ([add, start], 0, "1 decisions under 0 plans, all the same"),
        ([start], 1, "1 decisions under 0 plans, 1 otherwise"),
    ):
        save_record(EventRecord(np.array(rows, EVENT_DTYPE)), tmp_path / "e.npz")
        assert invoked(monkeypatch, "replay", str(tmp_path / "e.npz")) == status
        assert capsys.readouterr().out.splitlines()[0] == line


def test_tasks_of_no_bytes_are_replayed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Two of one gradient beside one with bytes, pushed and pulled; and a record in which one of them never came."""
    rows = []
    for lane, time_s in ((0, 1.0), (1, 2.0)):
        tasks = [(5, 100, 0), (5, 0, 1), (5, 0, 2), (6, 0, 0)]
        for place, kind in enumerate((EventKind.ADD, EventKind.START, EventKind.FINISH)):
            rows += [(time_s + place / 10, gradient, size, part, lane, kind, 0) for gradient, size, part in tasks]
    empty = (3.0, NO_PLAN, 0, 0, BOTH_LANES, QueueEvent.EMPTY, 0)
    without = [row for row in rows if row[3] != 2 or row[5] == EventKind.ADD]
    for events, status, line in (
        ([*rows, empty], 0, "8 decisions under 0 plans, all the same"),
        (without, 1, "3 decisions under 0 plans, 1 otherwise"),
    ):
        save_record(EventRecord(np.array(events, EVENT_DTYPE)), tmp_path / "e.npz")
        assert invoked(monkeypatch, "replay", str(tmp_path / "e.npz")) == status
        assert capsys.readouterr().out.splitlines()[0] == line
    save_record(EventRecord(np.array([*without, empty], EVENT_DTYPE)), tmp_path / "e.npz")
    assert invoked(monkeypatch, "replay", str(tmp_path / "e.npz")) == 1, "what follows a difference is not checked"
    save_record(EventRecord(np.array([rows[1], empty], EVENT_DTYPE)), tmp_path / "e.npz")
    assert invoked(monkeypatch, "replay", str(tmp_path / "e.npz")) == 2
    assert capsys.readouterr().err == "prophet: event 1 says that nothing waits or is in flight, and something does\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("replay", "FILE"),
        ("profile", "FILE"),
        ("plan", "FILE", "--bandwidth", "1gbit"),
        ("advise", "FILE", "--bandwidth", "1gbit"),
        ("advise", "resnet50", "--status", "FILE"),
        ("simulate", "FILE"),
        ("run", "FILE"),
        ("report", "FOLDER"),
        ("advise", "FOLDER"),
    ],
)
def test_a_damaged_file_is_one_line_and_status_2(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "results.json"
    gradient = {"name": "two\nlines", "bytes": 0, "generation_s": 1, "forward_s": 0}
    deep, name = "[" * 5000, json.dumps({"schema": 1, "gradients": [gradient]})
    for content in (b"", b"\xff\xfe\0", b"{", deep.encode(), b'{"job": {"iterations": 1e400}}', name.encode()):
        path.write_bytes(content)
        given = [{"FILE": str(path), "FOLDER": str(tmp_path)}.get(word, word) for word in arguments]
        assert invoked(monkeypatch, *given) == 2
        printed = capsys.readouterr()
        assert printed.out == "" and printed.err.count("\n") == 1
        assert printed.err.startswith("prophet: ") and "results.json" in printed.err
    assert [entry.name for entry in tmp_path.iterdir()] == ["results.json"]


def test_a_disk_without_room_for_what_is_printed_is_one_line(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "prophet_scheduler.cli.main", "doctor"],
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
        )
    assert b"Traceback" not in done.stderr and b"No space left" in done.stderr


def test_a_sequence_that_ranks_agreed_on_is_no_record_to_replay(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    save_record(EventRecord(np.zeros(0, EVENT_DTYPE), agreed=True), tmp_path / "e.npz")
    assert invoked(monkeypatch, "replay", str(tmp_path / "e.npz")) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["walk"], "prophet"),
        (["run"], "prophet run"),
        (["run", "x.yaml", "--repeats", "many"], "prophet run"),
        (["run", "--slow"], "prophet run"),
        (["top", "--count", "0"], "prophet top"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(
    arguments: list[str], command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoked(monkeypatch, *arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    assert printed.err.startswith("prophet: ") and printed.err.endswith(f"; see `{command} --help`\n")


def test_without_any_argument_there_is_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoked(monkeypatch) == 2
    printed = capsys.readouterr()
    assert "coordinate" in printed.out and printed.err == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_its_like_are_status_130(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cleaned: list[str] = []

    def interrupted(experiment: Experiment, out: Path) -> int:
        try:
            signal.raise_signal(number)
        finally:
            cleaned.append("up")
        raise AssertionError("not reached")

    monkeypatch.setattr(session, "run_session", interrupted)
    assert invoked(monkeypatch, "run", str(written(REPLAY, tmp_path))) == 130
    assert cleaned == ["up"]


@pytest.mark.parametrize("item", ["BytePS", "hook"])
def test_without_a_usable_byteps_nothing_is_run_or_written(
    item: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def examined(*subject: object) -> Iterator[doctor.Finding]:
        yield doctor.Finding(item, False, "is of a kind we do not know; install another")

    monkeypatch.setattr(doctor, {"BytePS": "_package", "hook": "_plugin"}[item], examined)
    folder = tmp_path / "out"
    assert invoked(monkeypatch, "run", str(written(REPLAY, tmp_path)), "--out", str(folder)) == 2
    assert capsys.readouterr().err == f"prophet: {item}: is of a kind we do not know; install another\n"
    assert not folder.exists()


def test_the_simulator_is_not_run_as_byteps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = written(changed(REPLAY, "repeats", 1) | {"engine": "simulator"}, tmp_path)
    assert invoked(monkeypatch, "run", str(path), "--out", str(tmp_path / "out")) == 2
    assert capsys.readouterr().err.startswith("prophet: engine: ")


def test_doctor_has_a_line_an_item_and_status_0_where_a_job_can_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    findings = [doctor.Finding("BytePS", True, "0.2.5"), doctor.Finding("testbed", False, "needs root")]
    monkeypatch.setattr(doctor, "examine", lambda: findings)
    monkeypatch.setattr(doctor, "verdict", lambda: (True, "ready for a toy; run next: train"))
    assert invoked(monkeypatch, "doctor") == 0
    assert capsys.readouterr().out.splitlines() == [
        "ok       BytePS: 0.2.5",
        "missing  testbed: needs root",
        "verdict  ready for a toy; run next: train",
    ]
    monkeypatch.setattr(doctor, "verdict", lambda: (False, "not ready, BytePS: not installed"))
    assert invoked(monkeypatch, "doctor") == 2


def test_doctor_warns_of_what_keeps_no_job_from_running(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = (("starting", "one start in five hangs"), ("freeing", "it grows"))
    finding = doctor.Finding("BytePS's faults", True, "2 of 7", warning=True, rows=rows)
    monkeypatch.setattr(doctor, "examine", lambda: [finding])
    assert invoked(monkeypatch, "doctor") == 0
    *findings, last = capsys.readouterr().out.splitlines()
    assert findings == [
        "warning  BytePS's faults: 2 of 7",
        "           starting  one start in five hangs",
        "           freeing   it grows",
    ]
    assert last.startswith("verdict  ")


def test_doctor_looks_at_everything_an_experiment_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROPHET_FUSON", "0")
    examined = doctor.examine()
    of_ddp = ["DistributedDataParallel", "Prophet for DDP", "NCCL"]
    of_byteps = ["BytePS", "BytePS's faults", "PyTorch", "hook", "MLfabric"]
    items = [*of_byteps, *of_ddp, "MXNet", "hook (MXNet)", "testbed", "tc", "delay", "variables"]
    assert [finding.item for finding in examined if not finding.item.startswith("NIC ")] == items
    assert any(finding.item.startswith("NIC ") for finding in examined)
    assert all("\n" not in finding.line and finding.line for finding in examined)


def test_doctor_lists_the_variables_that_mean_nothing() -> None:
    (finding,) = doctor._variables({"PROPHET_FUSON": "0", "PROPHET_XYZ": "", "PROPHET_CREDIT_BYTES": "4", "HOME": "/"})
    assert str(finding).splitlines() == [
        "warning  variables: Prophet knows nothing of these, which have no effect",
        "           PROPHET_FUSON  did you mean PROPHET_FUSION?",
        "           PROPHET_XYZ    none of Prophet's is like it",
    ]
    assert not list(doctor._variables({"PROPHET_FUSION": "0", "BYTEPS_SCHEDULER": "p3"}))


def test_doctor_says_nothing_of_mxnet_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "mxnet" else find_spec(name))
    assert not [finding for finding in doctor.examine() if "MXNet" in finding.item]


def test_doctor_misses_no_pytorch_where_there_is_mxnet(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find_spec(name))
    items = [finding.item for finding in doctor.examine()]
    assert "PyTorch" not in items and "hook" not in items and "NCCL" not in items
    assert "hook (MXNet)" in items


def test_no_byteps_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    line = doctor.obstacle(Contender("stock", "stock"))
    assert line is not None and line.startswith("BytePS: not installed; `python -m prophet_byteps.build install`")


def test_what_was_built_in_its_source_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    spec = importlib.machinery.ModuleSpec("byteps", None, origin="/src/byteps/__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    assert list(doctor._package(engines()["byteps"])) == [doctor.Finding("BytePS", True, "in /src/byteps/__init__.py")]
    assert doctor._framework("torch") == doctor.Finding("PyTorch", True, "in /src/byteps/__init__.py")


def test_each_policy_is_stopped_by_what_it_needs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"mxnet": "1.9.1", "numpy": "1.23.5", "torch": "2.13.0"}
    here = {"mxnet", "torch"}
    monkeypatch.setattr(importlib.metadata, "version", versions.__getitem__)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name in here or None)
    kvstore, ddp = Contender("k", "mxnet-kvstore", framework="mxnet"), Contender("d", "ddp-gloo")
    assert (doctor.obstacle(kvstore), doctor.obstacle(ddp)) == (None, None)
    versions["numpy"] = "2.0.1"
    line = "MXNet: 1.9.1 cannot be imported beside NumPy 2.0.1; `pip install mxnet==1.9.1 numpy==1.23.5`"
    assert (doctor.obstacle(kvstore), doctor.obstacle(ddp)) == (line, None)
    here.remove("mxnet")
    assert doctor.obstacle(kvstore) == "MXNet: not installed; `pip install mxnet==1.9.1 numpy==1.23.5`"


def test_the_doctor_says_beside_what_mxnet_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"mxnet": "1.9.1", "numpy": "2.0.1"}
    monkeypatch.setattr(importlib.metadata, "version", versions.__getitem__)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(doctor, "_plugin", lambda *subject, **more: iter(()))
    (found,) = doctor._mxnet()
    assert str(found).startswith("missing  MXNet: 1.9.1 cannot be imported beside NumPy 2.0.1")


def test_profile_shows_the_steps_and_draws_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file, plot = tmp_path / "p.json", tmp_path / "p.png"
    save_profile(resnet50(25_600_000), file, source="a test")
    assert invoked(monkeypatch, "profile", str(file), "--plot", str(plot)) == 0
    assert "161 gradients in 13 steps" in capsys.readouterr().out
    assert plot.read_bytes()[:4] == b"\x89PNG"


def test_help_does_not_load_what_only_experiments_need() -> None:
    names = "'torch', 'matplotlib', 'pydantic', 'numpy'"
    heavy = f"import sys, prophet_scheduler.cli; print([m for m in ({names}) if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_simulate_writes_its_results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path, out = str(written(REPLAY, tmp_path)), tmp_path / "out"
    assert invoked(monkeypatch, "simulate", path, "--policy", "fifo", "--repeats", "1", "--out", str(out)) == 0
    assert (out / "results.json").exists()


def test_plan_shows_the_blocks_and_every_policy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = tmp_path / "small.json"
    save_profile(resnet50(5_000_000), profile, source="a test")
    figure = tmp_path / "plan.png"
    assert invoked(monkeypatch, "plan", str(profile), "--bandwidth", "100mbit", "--plot", str(figure)) == 0
    shown = capsys.readouterr().out
    assert "Algorithm 1's blocks" in shown
    assert "ddp-gloo" in shown and "bytescheduler" not in shown, "of DDP"
    assert invoked(monkeypatch, "plan", str(profile), "--bandwidth", "100mbit", "--engine", "byteps") == 0
    assert "bytescheduler" in capsys.readouterr().out
    assert figure.stat().st_size > 10_000


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_table_cuts_a_figure(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    profile = tmp_path / "small.json"
    save_profile(resnet50(5_000_000), profile, source="a test")
    commands = (["advise", str(profile), "--bandwidth", "1Gbps"], ["plan", str(profile), "--bandwidth", "1Gbps"])
    for command in (*commands, ["profile", str(profile)]):
        monkeypatch.setenv("COLUMNS", "500")
        assert invoked(monkeypatch, *command) == 0
        figures = re.findall(r"[0-9.]+%?", capsys.readouterr().out)
        monkeypatch.setenv("COLUMNS", str(width))
        assert invoked(monkeypatch, *command) == 0
        shown = capsys.readouterr().out
        assert "…" not in shown
        assert sorted(re.findall(r"[0-9.]+%?", shown)) == sorted(figures)


def test_a_pipe_has_lines_as_long_as_tables_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert screen().width == IN_A_PIPE
    monkeypatch.setenv("COLUMNS", "60")
    assert screen().width == 60


@pytest.mark.parametrize("command", [["doctor"], ["plan", "FILE", "--bandwidth", "1Gbps"], ["profile", "FILE"]])
def test_what_a_command_shows_is_there_for_programs_too(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    profile = tmp_path / "small.json"
    save_profile(resnet50(5_000_000), profile, source="a test")
    assert invoked(monkeypatch, *[str(profile) if word == "FILE" else word for word in command], "--json") in (0, 2)
    shown = json.loads(capsys.readouterr().out)
    keys = {"doctor": "verdict", "plan": "iteration_s", "profile": "steps"}
    assert shown[keys[command[0]]]


def test_help_has_a_short_name_and_completion_is_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ([], ["doctor"], ["testbed"]):
        assert invoked(monkeypatch, *command, "-h") == 0
        assert "Usage: " in capsys.readouterr().out
    assert (
        "--install-completion"
        in subprocess.run(
            [sys.executable, "-m", "prophet_scheduler", "--help"], capture_output=True, text=True, timeout=240
        ).stdout
    )


def test_a_folder_that_cannot_be_is_one_line_before_anything_is_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = str(written(REPLAY, tmp_path))
    for command in ("run", "simulate"):
        assert invoked(monkeypatch, command, path, "--out", f"{path}/out") == 2
        printed = capsys.readouterr()
        assert (printed.out, printed.err) == ("", f"prophet: --out: {path} is no folder; name another\n")


@pytest.mark.parametrize("command", [["profile", "p.json"], ["plan", "p.json", "--bandwidth", "1gbit"]])
@pytest.mark.parametrize(
    ("plot", "line"),
    [
        ("p.json/plot.png", "prophet: --plot: {here}/p.json is no folder; name another"),
        ("plot.doc", "prophet: --plot: plot.doc: Format 'doc' is not supported; name a file that ends in .png"),
        (".", "prophet: --plot: . is a folder; name a file in it"),
    ],
)
def test_a_figure_that_cannot_be_written_is_one_line_before_anything_is_done(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    command: list[str],
    plot: str,
    line: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    save_profile(resnet50(5_000_000), Path("p.json"), source="a test")
    assert invoked(monkeypatch, *command, "--plot", plot) == 2
    assert capsys.readouterr() == ("", line.format(here=Path.cwd()) + "\n")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["plan", "resnet5", "--bandwidth", "1gbit"], "prophet: resnet5: no such profile file, and no built-in"),
        (["plan", "resnet50", "--bandwidth", "fast"], "prophet: --bandwidth: 'fast' is not a rate; write e.g. 250mbit"),
        (["plan", "none.json", "--bandwidth", "1gbit"], "prophet: none.json: no such profile file"),
        (
            ["plan", "resnet50", "--bandwidth", "1gbit", "--engine", "byteps", "--workers", "0"],
            "prophet: --workers and --servers are 0 and 1",
        ),
    ],
)
def test_a_bad_plan_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    assert invoked(monkeypatch, *arguments) == 2
    errors = capsys.readouterr().err
    assert errors.startswith(line)
    assert errors.count("\n") == 1
