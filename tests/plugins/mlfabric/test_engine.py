"""BytePS's asynchronous servers in an experiment, and the coordinator beside BytePS's scheduler."""

from __future__ import annotations

from pathlib import Path

from prophet_mlfabric.engine import ENGINE, TENANT, command, make_token
from prophet_mlfabric.settings import coordinator_from_environ, token_of
from prophet_scheduler.core import settings
from prophet_scheduler.engines.spec import RunNetwork

ADDRESSES = {"scheduler": "10.0.0.1", "server0": "10.0.0.2", "worker0": "10.0.0.3", "worker1": "10.0.0.4"}


def environment(node: str, folder: Path) -> dict[str, str]:
    rates = {"scheduler": None, "server0": 25e6, "worker0": 25e6, "worker1": 12.5e6}
    return ENGINE.environment(node, RunNetwork(2, 1, ADDRESSES, "veth0", 23007, str(folder / node), rates))


def test_a_runs_processes_share_a_coordinator_and_name_their_nics(tmp_path: Path) -> None:
    make_token(tmp_path / "coordinator.token")
    of_worker = coordinator_from_environ(environment("worker1", tmp_path))
    assert of_worker is not None
    assert (of_worker.address, of_worker.node, of_worker.tenant) == ("10.0.0.1:33007", "worker1", TENANT)
    assert environment("server0", tmp_path)["DMLC_ROLE"] == "server"


def test_the_coordinators_command_has_rates_and_bound(tmp_path: Path) -> None:
    env = {**environment("scheduler", tmp_path), settings.LAB_DELAY_BOUND: "10", settings.LAB_BATCH: "50ms"}
    argv = command(env)
    options = dict(zip(argv[4::2], argv[5::2], strict=True))
    assert options == {
        "--listen": "10.0.0.1:33007",
        "--token-file": str(tmp_path / "coordinator.token"),
        "--server-rate": "25mbit",
        "--rate": "25mbit",
        "--delay-bound": "10",
        "--batch": "50ms",
        "--status": "coordinator.json",
    }


def test_every_process_of_a_run_makes_the_same_token(tmp_path: Path) -> None:
    file = tmp_path / "coordinator.token"
    make_token(file)
    first = file.read_text()
    file.unlink()
    make_token(file)
    make_token(file)
    assert file.read_text() == first
    tenant, token = token_of(file, None)
    assert tenant == TENANT and len(token) == 64
    make_token(tmp_path / "other")
    assert token_of(tmp_path / "other", None)[1] != token
