"""Commands and environments of a job's processes.

Rule of this file: pure functions, no process and no file. Every engine is started as its own documentation says, but
without its launcher, since every role runs on its own machine.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from prophet_scheduler.core import settings
from prophet_scheduler.engines.registry import engines
from prophet_scheduler.engines.spec import EngineSpec, RunNetwork, is_worker, role_of
from prophet_scheduler.lab.cluster_config import ClusterConfig
from prophet_scheduler.lab.contenders import Contender

JOB_SCRIPTS = {"torch": "prophet_scheduler.lab.jobs.pytorch", "mxnet": "prophet_mxnet.jobs"}
"""Package of each framework's job scripts, with a module for each kind of job."""


def nodes_of(engine: EngineSpec, cluster: ClusterConfig) -> list[str]:
    """Return the nodes of `cluster` that have a role under `engine`, in start order."""
    return [node for node in cluster.nodes if engine.has_role(node)]


def server_command(engine: EngineSpec, node: str) -> list[str]:
    """Return the command of a `node` other than a worker under `engine`."""
    return [sys.executable, "-c", engine.programs[role_of(node)]]


def command(contender: Contender, node: str, kind: str, options: Sequence[str]) -> list[str]:
    """Return the command of `node`: for a worker the job script of this `kind` with `options`, else a server's."""
    engine, framework, variant = contender.engine, contender.framework, contender.variant
    if not is_worker(node):
        return server_command(engine, node)
    own = {} if variant is None else variant.exchanges
    exchange = own.get(framework, engine.exchanges[framework])
    return [sys.executable, "-m", f"{JOB_SCRIPTS[framework]}.{kind}", "--exchange", exchange, *options]


def environment(contender: Contender, node: str, network: RunNetwork, shell: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of `node`: the shell's, without settings of other jobs, plus the job's.

    A job starts cold, without what an earlier job learned, unless the contender's settings say otherwise.
    """
    env = without_jobs(shell)
    env |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    env |= contender.engine.environment(node, network)
    if contender.variant is not None:
        env |= contender.variant.env
    if contender.recorded:
        env[settings.CACHE] = settings.OFF
        env[settings.QUIET] = "1"
    return env | dict(contender.env)


def without_jobs(shell: Mapping[str, str]) -> dict[str, str]:
    """Return the shell's environment without settings of Prophet or any engine."""
    known = engines().values()
    foreign = (settings.PREFIX, *(prefix for engine in known for prefix in engine.prefixes))
    names = {name for engine in known for name in engine.names}
    return {key: value for key, value in shell.items() if not key.startswith(foreign) and key not in names}


def without_effect(shell: Mapping[str, str], config: Path) -> str:
    """Return a line that names Prophet's variables in the shell, which experiments ignore; empty without any."""
    if settings.USER_NAMESPACE in shell:
        return ""  # the process printed the line before it re-executed itself
    names = sorted(name for name in shell if name.startswith(settings.PREFIX) and name not in settings.HANDED_ON)
    instead = f"put settings into `env` of a policy in {config}"
    return f"an experiment ignores the shell's {', '.join(names)}; {instead}" if names else ""
