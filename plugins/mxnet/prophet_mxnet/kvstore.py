"""MXNet's KVStore: parameter servers on ps-lite, which run the optimizer, in order of arrival or as P3.

It is started by hand, as in "Distributed Training in MXNet": with ps-lite's variables, every role runs `import mxnet`.
In a scheduler or a server, this import returns only when the job has ended.

P3 (docs/env.md of ps-lite, and `--p3` of MXNet's tools/launch.py) is another store of the same engine, with ps-lite's
van that keeps a priority queue, in every role. The watermark is the one that launch.py sets. The store alone would send
in order of arrival (tests/net/test_peers.py).
"""

from __future__ import annotations

from prophet_scheduler.engines import ps_lite
from prophet_scheduler.engines.spec import EngineSpec, Variant
from prophet_scheduler.engines.topology import PARAMETER_SERVER

_SERVER = "import mxnet"
_EXCHANGES = "prophet_mxnet.exchanges"

ENGINE = EngineSpec(
    name="kvstore",
    words="MXNet's KVStore",
    exchanges={"mxnet": f"{_EXCHANGES}:KVStoreInGluon"},
    programs={"scheduler": _SERVER, "server": _SERVER},
    environment=ps_lite.environment,
    prefixes=("MXNET_", "DMLC_", "PS_"),
    settings=("MXNET_", "DMLC_PS_", "PS_"),
    variants=(
        Variant("mxnet-kvstore"),
        Variant(
            "mxnet-p3",
            # The watermark: number of messages that the van hands to ZeroMQ before they leave.
            {"DMLC_PS_VAN_TYPE": "p3", "DMLC_PS_WATER_MARK": "10"},
            exchanges={"mxnet": f"{_EXCHANGES}:P3InGluon"},
        ),
    ),
    topology=PARAMETER_SERVER,
    message_loss=ps_lite.message_loss,
    unsimulated="since it runs for real only; choose others with --policy",
)
