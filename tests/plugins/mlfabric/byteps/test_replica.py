"""Tests of the settings of a job's replica: what is refused at the start, and what the job begins with."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from prophet_mlfabric.byteps import agent as agent_module
from prophet_mlfabric.byteps.agent import AsynchronousAgent
from prophet_mlfabric.byteps.replica import Replica
from prophet_mlfabric.replica import KeptModel, ReplicaModel, encoded, replica_server
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.settings import from_environ
from support.ending import ProcessEnded, end_process

TOKEN = "a token of the tests"
MODEL = ReplicaModel({"weight": np.full((2,), 3.0, np.float32)}, (7, 2), 5, 2.5)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "tokens").write_text(f"job {TOKEN.replace(' ', '-')}\n")
    (tmp_path / "model.npz").write_bytes(encoded(MODEL))
    return {
        "BYTEPS_SCHEDULER": "mlfabric",
        "PROPHET_COORDINATOR": "127.0.0.1:1",
        "PROPHET_COORDINATOR_TOKEN_FILE": str(tmp_path / "tokens"),
    }


@pytest.fixture
def address(tmp_path: Path, environ: dict[str, str]) -> Iterator[str]:
    """A replica that has the model."""
    server = replica_server("127.0.0.1", 0, "job", TOKEN.replace(" ", "-"), KeptModel(tmp_path / "model.npz"))
    thread = threading.Thread(target=server.serve)
    thread.start()
    yield "{}:{}".format(*server.address)
    server.stop()
    thread.join()
    server.close()


def sgd(size: int = 2) -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(size))], lr=0.1)


def test_without_a_word_of_it_there_is_none(environ: dict[str, str]) -> None:
    replica = Replica.from_environ(environ)
    assert (replica.store, replica.model, replica.resumes) == (None, None, False)
    assert replica.begin(sgd(), None) == 0


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"PROPHET_REPLICA": "somewhere"}, "PROPHET_REPLICA is 'somewhere'; it must be HOST:PORT"),
        ({"PROPHET_REPLICA": "a:1", "PROPHET_COORDINATOR": ""}, "is set, but PROPHET_COORDINATOR is not"),
        ({"PROPHET_RESUME": "/none"}, "PROPHET_RESUME is '/none'; there is no such file"),
        ({"PROPHET_RESUME": "a:b"}, "PROPHET_RESUME is 'a:b'; it must be HOST:PORT"),
        ({"PROPHET_RESUME": "{tokens}"}, "PROPHET_RESUME: {tokens}: not a replica of a model ("),
        ({"PROPHET_RESUME": "127.0.0.1:1"}, "replica 127.0.0.1:1 cannot be reached (Connection refused)"),
        (
            {"PROPHET_RESUME": "127.0.0.1:1", "PROPHET_COORDINATOR": "", "PROPHET_COORDINATOR_TOKEN_FILE": ""},
            "PROPHET_RESUME names a replica, but PROPHET_COORDINATOR_TOKEN_FILE no file",
        ),
    ],
)
def test_what_cannot_be_is_one_line(environ: dict[str, str], changes: dict[str, str], line: str) -> None:
    tokens = environ["PROPHET_COORDINATOR_TOKEN_FILE"]
    changed = {name: text.format(tokens=tokens) for name, text in changes.items()}
    with pytest.raises(UserError) as caught:
        Replica.from_environ({**environ, **changed})
    assert line.format(tokens=tokens) in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_is_on_the_machine_of_worker_0_alone(environ: dict[str, str]) -> None:
    assert Replica.from_environ({**environ, "PROPHET_RESUME": "/none", "DMLC_WORKER_ID": "1"}).resumes


def test_a_wrong_token_is_one_line_on_every_worker(environ: dict[str, str], address: str) -> None:
    Path(environ["PROPHET_COORDINATOR_TOKEN_FILE"]).write_text("job another-token-of-tests\n")
    for worker in ("0", "1"):
        with pytest.raises(UserError, match=f"^replica {address}: the token is wrong$"):
            Replica.from_environ({**environ, "PROPHET_REPLICA": address, "DMLC_WORKER_ID": worker})
    with pytest.raises(UserError, match=f"^PROPHET_RESUME: replica {address}: the token is wrong$"):
        Replica.from_environ({**environ, "PROPHET_RESUME": address})


def test_a_job_that_would_replace_a_replicas_model_by_less_does_not_begin(
    environ: dict[str, str], address: str, tmp_path: Path
) -> None:
    own = {**environ, "PROPHET_REPLICA": address}
    with pytest.raises(UserError, match=f"has a model with 14 updates.+ with 0: begin with .+PROPHET_RESUME={address}"):
        Replica.from_environ(own)
    older = tmp_path / "older.npz"
    older.write_bytes(encoded(ReplicaModel(MODEL.weights, (7, 1), 5, 2.5)))
    with pytest.raises(UserError, match="but this job begins with 13"):
        Replica.from_environ({**own, "PROPHET_RESUME": str(older)})
    assert Replica.from_environ({**own, "DMLC_WORKER_ID": "1"}).store is not None, "worker 0 says it for all"
    assert Replica.from_environ({**own, "PROPHET_RESUME": address}).store is not None


def test_one_that_is_not_there_yet_stops_nobody(environ: dict[str, str]) -> None:
    assert Replica.from_environ({**environ, "PROPHET_REPLICA": "127.0.0.1:1"}).store is not None


@pytest.mark.parametrize("of", ["replica", "file"])
def test_worker_0_begins_with_the_replicas_model_and_says_what_is_lost(
    environ: dict[str, str], address: str, of: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = address if of == "replica" else str(tmp_path / "model.npz")
    environ["PROPHET_RESUME"] = source
    optimizer = sgd()
    (parameter,) = optimizer.param_groups[0]["params"]
    assert Replica.from_environ(environ).begin(optimizer, [("weight", parameter)]) == 14
    assert parameter.tolist() == [3.0, 3.0]
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        f"Prophet: this job begins with the 14 updates that {'replica ' * (of == 'replica')}{source} has; "
        "later updates of its server, with a total norm of at most 2.5, are lost"
    )
    other = Replica.from_environ({**environ, "DMLC_WORKER_ID": "1"})
    assert (other.model, other.resumes) == (None, True)


def test_another_models_replica_ends_the_process(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    agent = AsynchronousAgent(from_environ(environ), None, None)
    agent.replica = Replica(model=MODEL, where="model.npz", resumes=True)
    monkeypatch.setattr(agent_module, "end_process", end_process)
    with pytest.raises(ProcessEnded, match=r"model\.npz: it is of another model: weight \[2\] where") as ended:
        agent.begin(sgd(3), None)
    assert ended.value.status == 2


def test_a_replica_is_asked_before_byteps_starts_and_what_is_wrong_ends_the_process(
    environ: dict[str, str], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bps: Any = SimpleNamespace(init=lambda: pytest.fail("BytePS has started"), shutdown=lambda: None, size=lambda: 2)
    agent = AsynchronousAgent(from_environ(environ), None, None)
    agent._wrap_init(bps)
    for name, text in {**environ, "PROPHET_REPLICA": address}.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr(agent_module, "end_process", end_process)
    with pytest.raises(ProcessEnded, match=f"PROPHET_RESUME={address}") as ended:
        bps.init()
    assert ended.value.status == 2


def test_another_optimizers_model_is_not_copied() -> None:
    agent = AsynchronousAgent(from_environ({"BYTEPS_SCHEDULER": "mlfabric"}), None, None)
    agent.replica = Replica(resumes=True)
    agent.take_coordinator()
    with pytest.raises(ValueError, match="PROPHET_REPLICA and PROPHET_RESUME are of one optimizer's model"):
        agent.take_coordinator()


def test_a_job_in_step_does_not_begin_without_what_it_was_to_begin_with(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="PROPHET_RESUME is for asynchronous jobs"):
        from_environ({"BYTEPS_SCHEDULER": "prophet", "PROPHET_RESUME": str(tmp_path)})
