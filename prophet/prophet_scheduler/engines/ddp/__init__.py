"""PyTorch's DistributedDataParallel over gloo: all-reduces between the workers, without servers.

Variants with Prophet (prophet_ddp) are named `ddp-` and the policy. Each policy declares whether it supports this.

Started as in torch.distributed's documentation (environment variable initialization), with one rank per worker.
`GLOO_SOCKET_IFNAME` selects the network.
"""

from __future__ import annotations

from prophet_scheduler.core.settings import DDP_SCHEDULER, LAB_BUCKET_CAP_MB, PREFIX
from prophet_scheduler.engines.spec import EngineSpec, RunNetwork, Variant
from prophet_scheduler.engines.topology import ALL_REDUCE
from prophet_scheduler.policies import collective_policies

BUCKET_CAP_MB = LAB_BUCKET_CAP_MB
"""Variable with DistributedDataParallel's bucket_cap_mb."""
BUCKET_CAPS_MB = (1, 2, 5, 10, 25, 50)


def _environment(node: str, network: RunNetwork) -> dict[str, str]:
    return {
        "MASTER_ADDR": network.addresses["worker0"],
        "MASTER_PORT": str(network.port),
        "RANK": node.removeprefix("worker"),
        "WORLD_SIZE": str(network.workers),
        "LOCAL_RANK": "0",
        "GLOO_SOCKET_IFNAME": network.interface,
    }


ENGINE = EngineSpec(
    name="ddp",
    words="DistributedDataParallel",
    exchanges={"torch": "prophet_scheduler.engines.ddp.torch_exchange:DdpInTorch"},
    environment=_environment,
    prefixes=("GLOO_", "TORCH_DISTRIBUTED_", "TORCHELASTIC_"),
    names=(DDP_SCHEDULER, "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    settings=("GLOO_", "TORCH_", PREFIX),
    variants=(
        Variant("ddp-gloo"),
        *(Variant(f"ddp-gloo-{cap}", {BUCKET_CAP_MB: str(cap)}) for cap in BUCKET_CAPS_MB),
        *(Variant(f"ddp-{policy}", {DDP_SCHEDULER: policy}, policy=policy) for policy in collective_policies()),
    ),
    topology=ALL_REDUCE,
    enable=f"{DDP_SCHEDULER}=prophet torchrun --nproc-per-node 2 train.py",
    check="prophet_ddp.compatibility:check_torch",
    unsimulated="since this job is no replay of a profile",
)
