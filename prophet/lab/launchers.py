"""How the processes of a job are started: which roles an engine has, what each runs, and what its environment says.

Rule of this file: tables and pure functions, no process and no file. Every engine is started as its own documentation
says, by hand instead of by its launcher, since every role runs on a machine of its own:

- BytePS (its docs/step-by-step-tutorial.md and docs/env.md): `DMLC_*` name the roles; scheduler and servers run
  `import byteps.server`, workers the training script.
- MXNet's KVStore ("Distributed Training in MXNet", on launching by hand): the same variables; every role runs
  `import mxnet`, which in a scheduler or a server does not return before the job has ended.
- P3 in MXNet (docs/env.md of ps-lite, and `--p3` of MXNet's tools/launch.py): its store and the van of ps-lite that
  keeps a queue by priority, `DMLC_PS_VAN_TYPE=p3`, in every role; the watermark is the one that launch.py sets. The
  store alone would send in the order of arrival (tests/net/test_peers.py).
- DistributedDataParallel (torch.distributed's page, environment variable initialization): no servers, a rank for each
  worker, `GLOO_SOCKET_IFNAME` for the network that is to be used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from prophet.lab.cluster_config import ClusterConfig
from prophet.lab.contenders import MXNET_P3, EngineName, Policy

FOREIGN = ("BYTEPS_", "DMLC_", "PROPHET_", "PS_", "MXNET_", "GLOO_", "TORCH_DISTRIBUTED_", "TORCHELASTIC_")
"""How the variables begin that tune an engine: those of this shell are another job's."""
FOREIGN_NAMES = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")

P3_VAN = "p3"
P3_WATERMARK = "10"
"""Messages that the P3 van hands to ZeroMQ before they leave: what MXNet's tools/launch.py sets for P3."""

JOB_SCRIPTS = {"torch": "prophet.lab.jobs.pytorch", "mxnet": "prophet.lab.jobs.gluon"}
"""The package of each framework's job scripts, a module for each kind of job."""


@dataclass(frozen=True)
class Place:
    """Where one process of a run is: addresses by node, its interface, the port of the run, a folder for sockets."""

    addresses: Mapping[str, str]
    interface: str
    port: int
    sockets: str


Environment = Callable[[str, ClusterConfig, Place], dict[str, str]]


@dataclass(frozen=True)
class Launcher:
    """One engine. `server` is the program of the roles that do not train; None where there are none."""

    server: str | None
    environment: Environment

    def nodes(self, cluster: ClusterConfig) -> list[str]:
        """The nodes of `cluster` that have a role, in the order in which they are started."""
        return [node for node in cluster.nodes if self.server is not None or is_worker(node)]


def is_worker(node: str) -> bool:
    return node.startswith("worker")


def _ps_lite(node: str, cluster: ClusterConfig, place: Place) -> dict[str, str]:
    env = {
        "DMLC_ROLE": node.rstrip("0123456789"),
        "DMLC_NUM_WORKER": str(cluster.workers),
        "DMLC_NUM_SERVER": str(cluster.servers),
        "DMLC_PS_ROOT_URI": place.addresses["scheduler"],
        "DMLC_PS_ROOT_PORT": str(place.port),
        "DMLC_NODE_HOST": place.addresses[node],
    }
    if is_worker(node):
        env["DMLC_WORKER_ID"] = node.removeprefix("worker")
    return env


def _byteps(node: str, cluster: ClusterConfig, place: Place) -> dict[str, str]:
    return {
        **_ps_lite(node, cluster, place),
        "BYTEPS_LOCAL_RANK": "0",
        "BYTEPS_LOCAL_SIZE": "1",
        "BYTEPS_FORCE_DISTRIBUTED": "1",
        "BYTEPS_SOCKET_PATH": place.sockets,
        "NVIDIA_VISIBLE_DEVICES": "0",
    }


def _ddp(node: str, cluster: ClusterConfig, place: Place) -> dict[str, str]:
    return {
        "MASTER_ADDR": place.addresses["worker0"],
        "MASTER_PORT": str(place.port),
        "RANK": node.removeprefix("worker"),
        "WORLD_SIZE": str(cluster.workers),
        "LOCAL_RANK": "0",
        "GLOO_SOCKET_IFNAME": place.interface,
    }


LAUNCHERS: Mapping[EngineName, Launcher] = MappingProxyType(
    {
        "byteps": Launcher("import byteps.server", _byteps),
        "kvstore": Launcher("import mxnet", _ps_lite),
        "ddp": Launcher(None, _ddp),
    }
)


def command(policy: Policy, node: str, kind: str, options: Sequence[str]) -> list[str]:
    """What `node` runs under `policy`: a job script of this kind with `options`, or the engine's server."""
    if not is_worker(node):
        server = LAUNCHERS[policy.engine].server
        assert server is not None
        return [sys.executable, "-c", server]
    # P3 is another store of the same engine, and the only choice that a script makes by name.
    exchange = "p3store" if policy.base == MXNET_P3 else policy.engine
    return [sys.executable, "-m", f"{JOB_SCRIPTS[policy.framework]}.{kind}", "--exchange", exchange, *options]


def environment(
    policy: Policy, node: str, cluster: ClusterConfig, place: Place, shell: Mapping[str, str]
) -> dict[str, str]:
    """The whole environment of `node` under `policy`: the shell's without the settings of other jobs, and the job's."""
    env = {k: v for k, v in shell.items() if not k.startswith(FOREIGN) and k not in FOREIGN_NAMES}
    env |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    env |= LAUNCHERS[policy.engine].environment(node, cluster, place)
    if policy.base == MXNET_P3:
        env |= {"DMLC_PS_VAN_TYPE": P3_VAN, "DMLC_PS_WATER_MARK": P3_WATERMARK}
    return env | dict(policy.env)
