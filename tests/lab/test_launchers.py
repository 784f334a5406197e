"""Command and environment of each role of a job, by engine, without a process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from prophet_scheduler.engines.spec import RunNetwork
from prophet_scheduler.lab.cluster_config import Bandwidth, ClusterConfig
from prophet_scheduler.lab.contenders import Contender
from prophet_scheduler.lab.launchers import command, environment, nodes_of, without_effect

CLUSTER = ClusterConfig.model_construct(workers=2, servers=2, bandwidth=Bandwidth(1e9))
ADDRESSES = {node: f"10.0.0.{place}" for place, node in enumerate(CLUSTER.nodes)}
NETWORK = RunNetwork(2, 2, ADDRESSES, "veth0", 23007, "/sockets/here")
ENGINES = "prophet_scheduler.engines"
SHELL = {"PATH": "/bin", "BYTEPS_LOG_LEVEL": "TRACE", "MASTER_PORT": "1", "MXNET_CPU_WORKER_NTHREADS": "9", "RANK": "5"}

STOCK = Contender("stock", "stock")
STOCK_MXNET = Contender("mxnet-stock", "stock", framework="mxnet")
KVSTORE = Contender("mxnet-kvstore", "mxnet-kvstore", framework="mxnet")
P3 = Contender("mxnet-p3", "mxnet-p3", {"MXNET_KVSTORE_SLICE_THRESHOLD": "40000"}, "mxnet")
DDP = Contender("ddp-gloo", "ddp-gloo")


def told(policy: Contender, node: str) -> dict[str, str]:
    return environment(policy, node, NETWORK, SHELL)


@pytest.mark.parametrize(
    ("policy", "server", "worker"),
    [
        (STOCK, "byteps.server", f"prophet_scheduler.lab.jobs.pytorch {ENGINES}.byteps.torch_exchange:BytePSInTorch"),
        (STOCK_MXNET, "byteps.server", "prophet_mxnet.jobs prophet_mxnet.exchanges:BytePSInGluon"),
        (KVSTORE, "mxnet", "prophet_mxnet.jobs prophet_mxnet.exchanges:KVStoreInGluon"),
        (P3, "mxnet", "prophet_mxnet.jobs prophet_mxnet.exchanges:P3InGluon"),
    ],
)
def test_commands_of_servers_and_workers(policy: Contender, server: str, worker: str) -> None:
    nodes = nodes_of(policy.engine, CLUSTER)
    assert nodes == ["scheduler", "server0", "server1", "worker0", "worker1"]
    for node in nodes[:3]:
        assert command(policy, node, "replay", ["--out", "x"]) == [sys.executable, "-c", f"import {server}"]
    package, exchange = worker.split()
    expected = [sys.executable, "-m", f"{package}.replay", "--exchange", exchange, "--out", "x"]
    assert command(policy, "worker1", "replay", ["--out", "x"]) == expected


def test_environment_of_ps_lite() -> None:
    for policy in (STOCK, KVSTORE, P3):
        scheduler, server, worker = (told(policy, node) for node in ("scheduler", "server1", "worker1"))
        assert [env["DMLC_ROLE"] for env in (scheduler, server, worker)] == ["scheduler", "server", "worker"]
        assert "DMLC_WORKER_ID" not in server and worker["DMLC_WORKER_ID"] == "1"
        assert (worker["DMLC_NUM_WORKER"], worker["DMLC_NUM_SERVER"]) == ("2", "2")
        assert (worker["DMLC_PS_ROOT_URI"], worker["DMLC_PS_ROOT_PORT"]) == (ADDRESSES["scheduler"], "23007")
        assert worker["DMLC_NODE_HOST"] == ADDRESSES["worker1"]


def test_environment_of_p3() -> None:
    for node in CLUSTER.nodes:
        env = told(P3, node)
        assert (env["DMLC_PS_VAN_TYPE"], env["DMLC_PS_WATER_MARK"]) == ("p3", "10")
        assert env["MXNET_KVSTORE_SLICE_THRESHOLD"] == "40000"
        for other in (STOCK, KVSTORE):
            assert not {"DMLC_PS_VAN_TYPE", "DMLC_PS_WATER_MARK"} & told(other, node).keys()


def test_environment_of_ddp() -> None:
    assert nodes_of(DDP.engine, CLUSTER) == ["worker0", "worker1"]
    env = told(DDP, "worker1")
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == (ADDRESSES["worker0"], "23007")
    assert (env["RANK"], env["WORLD_SIZE"], env["GLOO_SOCKET_IFNAME"]) == ("1", "2", "veth0")
    assert not any(key.startswith(("DMLC_", "BYTEPS_")) for key in env)
    script, exchange = "prophet_scheduler.lab.jobs.pytorch.digits", f"{ENGINES}.ddp.torch_exchange:DdpInTorch"
    assert command(DDP, "worker0", "digits", [])[2:] == [script, "--exchange", exchange]


def test_job_starts_cold_by_default() -> None:
    assert told(Contender("prophet", "prophet"), "worker0")["PROPHET_CACHE"] == "off"
    warm = Contender("warm", "prophet", {"PROPHET_CACHE": "/here"})
    assert told(warm, "worker0")["PROPHET_CACHE"] == "/here"
    assert "PROPHET_CACHE" not in told(STOCK, "worker0")


def test_ignored_variables_of_the_shell() -> None:
    config = Path("mine.yaml")
    assert without_effect(SHELL, config) == ""
    line = without_effect({**SHELL, "PROPHET_MONITOR_S": "1", "PROPHET_FUSION": "0"}, config)
    assert line.startswith("an experiment ignores the shell's PROPHET_FUSION, PROPHET_MONITOR_S; ")
    assert line.endswith("`env` of a policy in mine.yaml")
    assert without_effect({"PROPHET_LAB_RATES": "{}"}, config) == "", "Prophet's processes tell each other that"
    assert without_effect({"PROPHET_USER_NAMESPACE": "1", "PROPHET_FUSION": "0"}, config) == "", "started anew"
