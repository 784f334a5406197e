"""The runner against a scripted testbed on a virtual clock: what it starts, waits for, and gives up."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prophet_scheduler.lab.contenders import Contender
from prophet_scheduler.lab.runner import last_words, run_experiment
from prophet_scheduler.lab.runs import CellRuns
from support.configs import REPLAY, changed, loaded
from support.fakes import Clock, FakeHost, FakeListener, Script, status, worker_result

ITERATIONS = 6


def good(node: str, env: Mapping[str, str]) -> Script:
    """Servers serve for ever; workers train and write what a worker writes."""
    if not node.startswith("worker"):
        return Script(code=None, log=f"{node} serves\n")
    files: dict[str, Any] = {"json": worker_result([1.0] * (ITERATIONS - 1))}
    if "PROPHET_STATUS_OUT" in env:
        files["status.json"] = status()
    return Script(ITERATIONS, files=files)


class Bench:
    """Experiment on the fakes."""

    def __init__(self, folder: Path, raw: dict[str, Any] = REPLAY, script: Any = good) -> None:
        self.clock = Clock()
        self.host = FakeHost(self.clock, script)
        self.listener = FakeListener()
        self.folder = folder
        self.experiment = loaded(raw, folder)

    def run(self, obstacle: Callable[[Contender], str | None] = lambda policy: None) -> CellRuns:
        parts = self.host.opened, self.listener, self.clock.edges, obstacle
        (cell,) = run_experiment(self.experiment, self.folder / "out", *parts)
        return cell


def errors(cell: CellRuns) -> dict[str, list[str | None]]:
    return {name: [run.error for run in runs] for name, runs in cell.runs.items()}


def test_policies_are_interleaved(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    cell = bench.run()
    order = ["stock 0", "prophet 0", "stock 1", "prophet 1"]
    assert bench.listener.heard == [line for start in order for line in (start, None)]
    assert errors(cell) == {"stock": [None, None], "prophet": [None, None]}
    assert cell.runs["prophet"][1].workers[0].start_s == 4.0
    assert [len(run.statuses) for run in (cell.runs["stock"][0], cell.runs["prophet"][0])] == [0, 2]
    assert (cell.links, cell.round_trips) == ({"worker0 up": 249e6}, {"worker0": 0.0101})
    assert (bench.host.terminated, bench.host.closed) == (4, 1)
    assert bench.listener.most >= ITERATIONS - 1


def test_roles_get_no_settings_from_the_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BYTEPS_LOG_LEVEL", "TRACE")
    monkeypatch.setenv("PROPHET_FUSION", "0")
    monkeypatch.setenv("DMLC_ENABLE_RDMA", "1")
    monkeypatch.setenv("MY_OWN", "kept")
    bench = Bench(tmp_path)
    bench.run()
    environments = [env for _, _, env in bench.host.started]
    assert [name for name, _, _ in bench.host.started[:4]] == ["scheduler", "server0", "worker0", "worker1"]
    assert [env["DMLC_ROLE"] for env in environments[:4]] == ["scheduler", "server", "worker", "worker"]
    assert [env.get("DMLC_WORKER_ID") for env in environments[:4]] == [None, None, "0", "1"]
    assert all(env["MY_OWN"] == "kept" for env in environments)
    assert not any({"BYTEPS_LOG_LEVEL", "PROPHET_FUSION", "DMLC_ENABLE_RDMA"} & env.keys() for env in environments)
    assert len({env["BYTEPS_SOCKET_PATH"] for env in environments}) == len(environments)
    ports = [env["DMLC_PS_ROOT_PORT"] for env in environments]
    assert len(set(ports)) == 4 and len(set(ports[:4])) == 1


def test_stock_runs_without_prophet(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.run()
    stock, prophet = bench.host.started[:4], bench.host.started[4:8]
    assert not any(key.startswith("PROPHET_") or key == "BYTEPS_SCHEDULER" for _, _, env in stock for key in env)
    assert {env["BYTEPS_SCHEDULER"] for _, _, env in prophet} == {"prophet"}
    assert [("PROPHET_EVENTS_OUT" in env) for _, _, env in prophet] == [False, False, True, True]
    assert [argv[1:] for _, argv, _ in stock[2:]] != [] and all(
        before[1][1:6] == after[1][1:6] for before, after in zip(stock, prophet, strict=True)
    )


def test_records_of_policy_on_other_engine(tmp_path: Path) -> None:
    raw = {**changed(REPLAY, "policies", ["ddp-gloo", "ddp-prophet"]), "repeats": 1}
    bench = Bench(tmp_path, raw)
    cell = bench.run()
    assert [len(cell.runs[name][0].statuses) for name in ("ddp-gloo", "ddp-prophet")] == [0, 2]
    stock, prophet = (env for node, _, env in bench.host.started if node == "worker1")
    assert not any(key.startswith("PROPHET_") for key in stock)
    assert prophet["PROPHET_SCHEDULER"] == "prophet"
    assert prophet["PROPHET_CACHE"] == "off"
    written = {prophet[f"PROPHET_{name}_OUT"].rpartition("/")[2] for name in ("STATUS", "EVENTS", "PROFILE")}
    assert written == {"worker1.status.json", "worker1.events.npz", "worker1.profile.json"}


def test_run_has_time_of_last_recut(tmp_path: Path) -> None:
    def recut(node: str, env: Mapping[str, str]) -> Script:
        script, at_s = good(node, env), {"worker0": 103.5, "worker1": 103.25}.get(node)
        said = status(recuts=2, last_recut_s=at_s)
        return replace(script, files={**script.files, "status.json": said}) if "status.json" in script.files else script

    runs = Bench(tmp_path, script=recut).run().runs
    assert (runs["prophet"][0].recut_s, runs["stock"][0].recut_s) == (103.5, None)


def test_workers_get_job_and_scaled_profile(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.run()
    argv = bench.host.started[2][1]
    assert argv[1:3] == ["-m", "prophet_scheduler.lab.jobs.pytorch.replay"]
    spec = json.loads(Path(argv[argv.index("--spec") + 1]).read_text())
    assert (spec["iterations"], spec["seed"]) == (6, 0)
    profile = json.loads(Path(spec["profile"]).read_text())
    assert sum(gradient["bytes"] for gradient in profile["gradients"]) == pytest.approx(25.6e6, rel=1e-4)


def test_hang_is_reported_and_others_run(tmp_path: Path) -> None:
    def stuck(node: str, env: Mapping[str, str]) -> Script:
        if node == "worker1" and "BYTEPS_SCHEDULER" in env:
            return Script(2, code=None, log="\n".join(f"line {n}" for n in range(9)) + "\nwaiting for key 7\n")
        if node == "worker0" and "BYTEPS_SCHEDULER" in env:
            return Script(3, code=None)
        return good(node, env)

    bench = Bench(tmp_path, script=stuck)
    cell = bench.run()
    for run in cell.runs["prophet"]:
        assert run.error == "hung: nothing for 30 s (iterations of 6 done: worker0 3, worker1 2)"
        assert run.log_tail["worker1"] == ["line 5", "line 6", "line 7", "line 8", "waiting for key 7"]
        assert run.log_tail["server0"] == ["server0 serves"]
    assert [run.error for run in cell.runs["stock"]] == [None, None]
    assert len(bench.host.started) == 4 * 4, "a run that hung was started again"
    assert bench.host.terminated == 4


def test_time_limit_is_for_standing_still(tmp_path: Path) -> None:
    def slow(node: str, env: Mapping[str, str]) -> Script:
        script = good(node, env)
        script.iteration_s = 29.0
        return script

    assert Bench(tmp_path, script=slow).run().runs["stock"][0].error is None


def test_crash_of_a_role_ends_the_run(tmp_path: Path) -> None:
    def crashing(node: str, env: Mapping[str, str]) -> Script:
        return Script(3, 0.5, code=-6, log="Check failed: key\n") if node == "server0" else good(node, env)

    bench = Bench(tmp_path, script=crashing)
    run = bench.run().runs["stock"][0]
    assert run.error == "server0 ended with status -6: Check failed: key"
    assert run.log_tail["server0"] == ["Check failed: key"]
    assert run.workers == ()


@pytest.mark.parametrize(
    ("files", "error"),
    [
        ({}, "worker0 left no result"),
        ({"json": worker_result([1.0] * 5)}, "without Prophet: worker0 ran with stock BytePS instead of prophet"),
        (
            {"json": worker_result([1.0] * 5), "status.json": status(stepped_aside="odd task")},
            "Prophet stepped aside in worker0: odd task",
        ),
    ],
)
def test_policy_that_did_not_run_is_an_error(files: dict[str, Any], error: str, tmp_path: Path) -> None:
    def lacking(node: str, env: Mapping[str, str]) -> Script:
        if node.startswith("worker") and "BYTEPS_SCHEDULER" in env:
            return Script(ITERATIONS, files=files)
        return good(node, env)

    assert Bench(tmp_path, script=lacking).run().runs["prophet"][0].error == error


def test_series_of_rates_starts_with_training_and_is_undone(tmp_path: Path) -> None:
    series = [{"at_s": 0, "rate": "250mbit"}, {"at_s": 2, "rate": "100mbit"}, {"at_s": 3, "rate": "1gbit"}]
    raw = changed(changed(REPLAY, "cluster.bandwidth", series), "policies", ["prophet"])
    bench = Bench(tmp_path, changed(raw, "repeats", 1))
    began = bench.clock.now_s
    bench.run()
    changes = [(at - began, rate) for at, name, rate in bench.host.bandwidths if name == "worker1"]
    assert [at for at, _ in changes] == pytest.approx([3.0, 4.0, 6.0], abs=0.15)
    assert [rate for _, rate in changes] == [100e6, 1e9, 250e6]


def test_traffic_starts_and_ends_during_training(tmp_path: Path) -> None:
    traffic = [
        {"node": "server0", "from_s": 3, "until_s": 4, "rate": "20mbit"},
        {"node": "server0", "from_s": 2, "until_s": 3, "rate": "10mbit"},
    ]
    raw = changed(changed(REPLAY, "cluster.traffic", traffic), "policies", ["prophet"])
    bench = Bench(tmp_path, changed(raw, "repeats", 1))
    began = bench.clock.now_s
    bench.run()
    assert [(node, rate) for _, node, rate in bench.host.traffic] == [
        ("server0", 10e6),
        ("server0", None),
        ("server0", 20e6),
        ("server0", None),
        ("server0", None),  # after the job, however it ended
    ]
    assert [at - began for at, _, _ in bench.host.traffic] == pytest.approx([3.0, 4.0, 4.0, 5.0, 6.0], abs=0.15)


def faulty(*faults: dict[str, Any], policy: str = "prophet") -> dict[str, Any]:
    """Return an experiment of one run of a policy under these faults."""
    raw = changed(changed(REPLAY, "cluster.faults", list(faults)), "policies", [policy])
    return changed(raw, "repeats", 1)


def test_faults_start_and_end_during_training(tmp_path: Path) -> None:
    raw = faulty(
        {"kind": "link-down", "node": "worker0", "from_s": 1, "until_s": 9},
        {"kind": "slow-link", "node": "server0", "from_s": 1, "until_s": 2, "every_s": 2, "rate": "25mbit"},
        {"kind": "stopped", "node": "server0", "from_s": 3, "until_s": 4},
    )
    bench = Bench(tmp_path, raw)
    began = bench.clock.now_s
    (run,) = bench.run().runs["prophet"]
    assert (run.error, run.ended_after_s) == (None, None)
    assert [(node, what) for _, node, what in bench.host.broken] == [
        ("worker0", False),
        ("server0", signal.SIGSTOP),
        ("server0", signal.SIGCONT),
        ("worker0", True),  # after the job, however it ended
    ]
    assert [at - began for at, _, _ in bench.host.broken] == pytest.approx([2.0, 4.0, 5.0, 6.0], abs=0.15)
    server = [(at - began, rate) for at, node, rate in bench.host.bandwidths if node == "server0"]
    assert [rate for _, rate in server] == [25e6, None, 25e6, None, None]
    assert [at for at, _ in server] == pytest.approx([2.0, 3.0, 4.0, 5.0, 6.0], abs=0.15)


def test_killed_worker_is_not_the_reason_of_failure(tmp_path: Path) -> None:
    def left_alone(node: str, env: Mapping[str, str]) -> Script:
        return Script(5, code=75, log="prophet: no transfer has finished\n") if node == "worker0" else good(node, env)

    bench = Bench(tmp_path, faulty({"kind": "killed", "node": "worker1", "from_s": 2}), script=left_alone)
    (run,) = bench.run().runs["prophet"]
    assert run.error == "worker0 ended with status 75: prophet: no transfer has finished"
    assert run.ended_after_s == pytest.approx(2.0, abs=0.2)
    assert [(node, what) for _, node, what in bench.host.broken] == [("worker1", signal.SIGKILL)]


def test_end_without_killed_worker_is_an_error(tmp_path: Path) -> None:
    bench = Bench(tmp_path, faulty({"kind": "killed", "node": "worker1", "from_s": 2}))
    (run,) = bench.run().runs["prophet"]
    assert run.error == "worker1 was killed, and the others ended without it"


def test_killed_program_restarts_with_second_log(tmp_path: Path) -> None:
    bench = Bench(tmp_path, faulty({"kind": "killed", "node": "worker1", "from_s": 2, "until_s": 3}))
    (run,) = bench.run().runs["prophet"]
    assert run.error is None
    assert [node for node, _, _ in bench.host.started] == ["scheduler", "server0", "worker0", "worker1", "worker1"]
    assert {path.name for path in run.folder.glob("worker1*.log")} == {"worker1.log", "worker1.again.log"}
    first, again = bench.host.started[-2:]
    assert first == again


def test_every_role_drops_messages(tmp_path: Path) -> None:
    bench = Bench(tmp_path, faulty({"kind": "messages-dropped", "percent": 3}, policy="stock"))
    bench.run()
    assert [env["PS_DROP_MSG"] for _, _, env in bench.host.started] == ["3"] * 4
    assert all(env["PS_RESEND"] == "1" for _, _, env in bench.host.started)


def test_broken_link_fails_the_runs(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.host.breaks_at = bench.clock.now_s + ITERATIONS + 1  # in the second run
    cell = bench.run()
    line = "the relay of worker0's link ended with status 1: it said nothing"
    assert errors(cell) == {"stock": [None, line], "prophet": [line, line]}
    assert bench.host.terminated == 4


def test_files_of_earlier_run_are_no_results(tmp_path: Path) -> None:
    def silent(node: str, env: Mapping[str, str]) -> Script:
        return Script(ITERATIONS) if node.startswith("worker") else good(node, env)

    Bench(tmp_path).run()
    assert Bench(tmp_path, script=silent).run().runs["stock"][0].error == "worker0 left no result"


def test_interrupt_ends_everything(tmp_path: Path) -> None:
    bench = Bench(tmp_path)

    def interrupted(done: int) -> None:
        raise KeyboardInterrupt

    bench.listener.iterations = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        bench.run()
    assert (bench.host.terminated, bench.host.closed) == (1, 1)


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (["Traceback", "  File x", "ModuleNotFoundError: No module named 'mxnet'"], "ModuleNotFoundError: No module"),
        (["MXNetError: Check failed: port != -1 : bind failed", "[bt] (1) lib.so", "[bt] (2) lib.so"], "MXNetError"),
        (["terminate called after throwing an instance of 'dmlc::Error'", "  what():  bind: in use", "[bt]"], "what()"),
        (["serving", "Killed"], "Killed"),
        ([], "it said nothing"),
    ],
)
def test_last_words_of_a_log(log: list[str], words: str) -> None:
    assert last_words(log).startswith(words)


def test_policy_with_obstacle_is_reported_and_others_run(tmp_path: Path) -> None:
    raw = changed(REPLAY, "policies", ["stock", "ddp-gloo", "mxnet-kvstore"])
    bench = Bench(tmp_path, changed(raw, "repeats", 1))

    cell = bench.run(lambda policy: "MXNet: not installed" if policy.framework == "mxnet" else None)
    assert errors(cell) == {"stock": [None], "ddp-gloo": [None], "mxnet-kvstore": ["MXNet: not installed"]}
    assert [name for name, _, _ in bench.host.started[4:6]] == ["worker0", "worker1"], "DDP has no servers"
    assert len(bench.host.started) == 4 + 2
