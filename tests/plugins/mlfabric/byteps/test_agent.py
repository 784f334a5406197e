"""Start and end of a worker that trains asynchronously: refused settings, missing parts, and dead workers."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from prophet_mlfabric.byteps import agent as agent_module
from prophet_mlfabric.byteps.agent import AsynchronousAgent, check_job, connect
from prophet_mlfabric.replica import ReplicaModel, keep
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.settings import from_environ
from support.ending import ProcessEnded, end_process

JOB = {"BYTEPS_SCHEDULER": "mlfabric", "BYTEPS_ENABLE_ASYNC": "1", "DMLC_NUM_SERVER": "1"}


def fake_byteps(size: int, happened: list[str] | None = None) -> Any:
    """Return a fake byteps.torch of worker 0. Calls of init and shutdown are appended to `happened`."""
    calls = [] if happened is None else happened
    return SimpleNamespace(
        init=lambda: calls.append("init"),
        shutdown=lambda: calls.append("shutdown"),
        size=lambda: size,
        rank=lambda: 0,
        DistributedOptimizer=lambda *arguments: "BytePS's own",
        broadcast_parameters=lambda *arguments: None,
        Compression=SimpleNamespace(none="none"),
    )


@pytest.mark.parametrize(
    ("framework", "changes", "line"),
    [
        ("torch", {"BYTEPS_ENABLE_ASYNC": "0"}, "set BYTEPS_ENABLE_ASYNC=1 for workers and servers"),
        ("mxnet", {}, "supports only PyTorch"),
        ("torch", {"DMLC_NUM_SERVER": "2"}, "DMLC_NUM_SERVER is 2, make it 1"),
        ("torch", {"BYTEPS_LOCAL_SIZE": "4"}, "BYTEPS_LOCAL_SIZE has to be 1"),
        ("torch", {"PROPHET_COORDINATOR": "somewhere"}, "it must be HOST:PORT"),
        ("torch", {"PROPHET_COORDINATOR": "a:1", "PROPHET_COORDINATOR_TOKEN_FILE": "/none"}, "/none: cannot be read"),
    ],
)
def test_impossible_jobs_are_refused_in_one_line(framework: str, changes: dict[str, str], line: str) -> None:
    with pytest.raises(UserError) as caught:
        check_job(framework, {**JOB, **changes})
    assert line in str(caught.value) and "\n" not in str(caught.value)


def test_wrong_settings_are_refused_before_the_library_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prophet_byteps.hook.find_library", lambda framework: pytest.fail("it was looked for"))
    with pytest.raises(UserError, match="BYTEPS_ENABLE_ASYNC"):
        AsynchronousAgent.prepare("torch", {**JOB, "BYTEPS_ENABLE_ASYNC": "0"})


def test_without_a_coordinator_updates_go_in_order_of_arrival(caplog: pytest.LogCaptureFixture) -> None:
    assert connect(0, JOB) is None
    assert "PROPHET_COORDINATOR is not set: updates go in order of arrival" in caplog.text


def test_a_failing_client_gives_one_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fails(*of: Any) -> None:
        raise OSError("no sockets left")

    monkeypatch.setattr(agent_module, "coordinator_from_environ", lambda environ: "settings")
    monkeypatch.setattr("prophet_mlfabric.client.CoordinatorClient", fails)
    assert connect(0, JOB) is None
    assert [record.message for record in caplog.records] == [
        "Prophet: updates go in order of arrival: OSError: no sockets left"
    ]


def test_a_coordinator_that_refuses_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(seconds: float) -> None:
        raise UserError("coordinator tcp://a:1: wrong token")

    monkeypatch.setattr(agent_module, "coordinator_from_environ", lambda environ: "settings")
    monkeypatch.setattr("prophet_mlfabric.client.CoordinatorClient", lambda *of: SimpleNamespace(wait_welcome=refused))
    monkeypatch.setattr(agent_module, "end_process", end_process)
    with pytest.raises(ProcessEnded) as ended:
        connect(0, JOB)
    assert ended.value.args == ("coordinator tcp://a:1: wrong token", 2)


def test_only_the_first_optimizer_gets_the_coordinator(caplog: pytest.LogCaptureFixture) -> None:
    agent = AsynchronousAgent(from_environ(JOB), None, None)
    coordinator: Any = object()
    agent._coordinator = coordinator
    assert agent.take_coordinator() is coordinator
    assert agent.take_coordinator() is None
    assert "a coordinator counts one model" in caplog.text


def test_the_status_says_why_the_hook_is_missing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    status = tmp_path / "status.json"
    settings = from_environ({**JOB, "PROPHET_STATUS_OUT": str(status)})
    agent = AsynchronousAgent(settings, None, None, "it is another BytePS")
    agent.step_aside("it is another BytePS")
    agent._finish()
    written = json.loads(status.read_text())
    assert (written["policy"], written["stepped_aside"]) == ("mlfabric", "it is another BytePS")
    assert "pulls also push" in caplog.text


def test_wrapping_an_optimizer_refuses_compression() -> None:
    bps = fake_byteps(2)
    agent_module.install(bps, AsynchronousAgent(from_environ(JOB), None, None))
    with pytest.raises(ValueError, match="does not compress updates"):
        bps.DistributedOptimizer(None, compression="fp16")
    bps.size = lambda: 1
    assert bps.DistributedOptimizer(None) == "BytePS's own", "nobody to send to"


def test_a_worker_leaves_its_coordinator_before_byteps_shuts_down(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    bps = fake_byteps(2, happened)

    def wait_for_others() -> tuple[int, ...]:
        happened.append("others have finished")
        return ()

    coordinator = SimpleNamespace(wait_for_others=wait_for_others, close=lambda: happened.append("coordinator left"))
    monkeypatch.setattr(agent_module, "connect", lambda worker, environ, replicates: coordinator)
    monkeypatch.setattr("atexit.register", lambda function: happened.append(f"at exit: {function.__name__}"))
    agent = AsynchronousAgent(from_environ(JOB), None, None)
    agent._wrap_init(bps)
    bps.init()
    replicating: Any = SimpleNamespace(close=lambda: happened.append("the replica is closed"))
    agent.replicating = replicating
    bps.shutdown()
    assert happened == [
        "init",
        "at exit: _leave_at_exit",
        "the replica is closed",
        "others have finished",
        "coordinator left",
        "shutdown",
    ]


def test_the_process_skips_byteps_shutdown_if_a_worker_died(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    status = tmp_path / "status.json"
    happened: list[str] = []
    bps = fake_byteps(3, happened)
    coordinator = SimpleNamespace(wait_for_others=lambda: (2,), close=lambda: None)
    monkeypatch.setattr(agent_module, "connect", lambda worker, environ, replicates: coordinator)
    monkeypatch.setattr("atexit.register", lambda function: function)
    monkeypatch.setattr(agent_module, "end_process", end_process)
    agent = AsynchronousAgent(from_environ({**JOB, "PROPHET_STATUS_OUT": str(status)}), None, None)
    agent._wrap_init(bps)
    bps.init()
    bps.shutdown()  # returns: the program may have more to do
    assert happened == ["init"], "BytePS's shutdown would wait"
    with pytest.raises(ProcessEnded) as ended:
        agent._leave_at_exit()
    line = "worker 2 has died: this worker ends without waiting for BytePS's end, which waits for all"
    assert ended.value.args == (line, 75)
    assert status.exists()


def replicated(environ: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, AsynchronousAgent]:
    """Return BytePS and the agent of a worker with this environment; a file has a model with 14 updates."""
    keep(ReplicaModel({"weight": np.full((2,), 3.0, np.float32)}, (7, 2), 5, 2.5), folder / "model.npz")
    for name, text in environ.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr(agent_module, "end_process", end_process)
    bps = fake_byteps(1)
    agent = AsynchronousAgent(from_environ(JOB), None, None)
    agent._wrap_init(bps)
    agent_module.install(bps, agent)
    return bps, agent


def test_a_job_resumes_only_from_a_replica_of_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bps, agent = replicated({"PROPHET_RESUME": str(tmp_path / "model.npz")}, tmp_path, monkeypatch)
    bps.init()
    parameter = torch.nn.Parameter(torch.zeros(2))
    bps.DistributedOptimizer(torch.optim.SGD([parameter], lr=0.1), [("weight", parameter)])
    assert parameter.tolist() == [3.0, 3.0]
    with pytest.raises(ValueError, match="PROPHET_REPLICA and PROPHET_RESUME are of one optimizer's model"):
        bps.DistributedOptimizer(torch.optim.SGD([parameter], lr=0.1), [("weight", parameter)])
    agent._taken = False
    with pytest.raises(ProcessEnded, match=r"it is of another model: weight \[2\] where") as ended:
        bps.DistributedOptimizer(torch.optim.SGD([torch.nn.Parameter(torch.zeros(3))], lr=0.1), [("weight", parameter)])
    assert ended.value.status == 2


def test_a_wrong_replica_ends_the_process_before_byteps_init(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bps, agent = replicated({"PROPHET_REPLICA": str(tmp_path / "model.npz")}, tmp_path, monkeypatch)
    with pytest.raises(ProcessEnded, match="begin with that model") as ended:
        bps.init()
    assert ended.value.status == 2 and agent.replica is None


def test_synchronous_jobs_refuse_a_replica_to_resume_from(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="PROPHET_RESUME is for asynchronous jobs"):
        from_environ({"BYTEPS_SCHEDULER": "prophet", "PROPHET_RESUME": str(tmp_path)})
