"""BytePS: parameter servers on ps-lite, and the engine whose scheduling Prophet's hook takes over.

Started by hand as in BytePS's docs/step-by-step-tutorial.md and docs/env.md: `DMLC_*` variables give the roles; the
scheduler and servers run `import byteps.server`, and workers run the training script.
"""

from __future__ import annotations

from prophet_scheduler.core.settings import PREFIX, SCHEDULER
from prophet_scheduler.engines import ps_lite
from prophet_scheduler.engines.spec import (
    STOCK,
    EngineSpec,
    Package,
    PartitionSetting,
    RunNetwork,
    Variant,
)
from prophet_scheduler.engines.topology import PARAMETER_SERVER

SERVER = "import byteps.server"
"""Program of the scheduler and of servers."""
PACKAGE = Package(
    "byteps",
    "not installed; `python -m prophet_byteps.build install` builds it for this machine's processors",
)


def environment(node: str, network: RunNetwork) -> dict[str, str]:
    """Return the variables of `node`: those of ps-lite, and those of BytePS for one process per node."""
    return {
        **ps_lite.environment(node, network),
        "BYTEPS_LOCAL_RANK": "0",
        "BYTEPS_LOCAL_SIZE": "1",
        "BYTEPS_FORCE_DISTRIBUTED": "1",
        "BYTEPS_SOCKET_PATH": network.sockets,
        "NVIDIA_VISIBLE_DEVICES": "0",
    }


ENGINE = EngineSpec(
    name="byteps",
    words="BytePS",
    exchanges={
        "torch": "prophet_scheduler.engines.byteps.torch_exchange:BytePSInTorch",
        "mxnet": "prophet_mxnet.exchanges:BytePSInGluon",
    },
    programs={"scheduler": SERVER, "server": SERVER},
    environment=environment,
    prefixes=("BYTEPS_", "DMLC_", "PS_"),
    settings=("BYTEPS_", PREFIX),
    variants=(
        Variant(STOCK),
        Variant("stock-credit", {"BYTEPS_SCHEDULING_CREDIT": "4"}),  # BytePS's own credit, in partitions
    ),
    topology=PARAMETER_SERVER,
    message_loss=ps_lite.message_loss,
    package=PACKAGE,
    hook="prophet_byteps.hook:check_compatibility",
    enable=f"{SCHEDULER}=prophet bpslaunch python train.py",
    faults="prophet_byteps.faults:check_faults",
    partition=PartitionSetting("BYTEPS_PARTITION_BYTES", default_bytes=4_096_000),
    simulated=("torch",),
    unsimulated="since the simulator knows BytePS's front end in PyTorch; leave out framework: mxnet",
)
