"""ps-lite, which BytePS and MXNet's KVStore are built on: its environment of a node (docs/env.md of ps-lite)."""

from __future__ import annotations

from prophet_scheduler.engines.spec import RunNetwork, is_worker, role_of


def environment(node: str, network: RunNetwork) -> dict[str, str]:
    """Role and addresses of `node`; `DMLC_NODE_HOST` keeps nodes of one machine apart."""
    env = {
        "DMLC_ROLE": role_of(node),
        "DMLC_NUM_WORKER": str(network.workers),
        "DMLC_NUM_SERVER": str(network.servers),
        "DMLC_PS_ROOT_URI": network.addresses["scheduler"],
        "DMLC_PS_ROOT_PORT": str(network.port),
        "DMLC_NODE_HOST": network.addresses[node],
    }
    if is_worker(node):
        env["DMLC_WORKER_ID"] = node.removeprefix("worker")
    return env


def message_loss(percent: int) -> dict[str, str]:
    """Return the variables that lose received messages at random, and send unacknowledged ones again after a second:
    ps-lite's switches for debugging (src/van.cc, src/resender.h). After ten times in vain the process ends.
    """
    return {"PS_DROP_MSG": str(percent), "PS_RESEND": "1"}
