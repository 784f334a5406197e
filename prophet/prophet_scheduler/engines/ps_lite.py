"""Environment of nodes in ps-lite, on which BytePS and MXNet's KVStore are built (docs/env.md of ps-lite)."""

from __future__ import annotations

from prophet_scheduler.engines.spec import RunNetwork, is_worker, role_of


def environment(node: str, network: RunNetwork) -> dict[str, str]:
    """Return the variables with role and addresses of `node`. `DMLC_NODE_HOST` distinguishes nodes of one machine."""
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
    """Return the variables that drop received messages at random, and resend unacknowledged ones after a second:
    ps-lite's debugging switches (src/van.cc, src/resender.h). After ten retries the process exits.
    """
    return {"PS_DROP_MSG": str(percent), "PS_RESEND": "1"}
