"""Simulated jobs of every method to the last digit, held by golden files: when which updates are applied."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prophet_mlfabric.studies.cluster import ASYNC, MLFABRIC_S, RR_SYNC, TR_SYNC, Record, mlfabric_a, run
from prophet_mlfabric.studies.settings import COMPUTE, NETWORK, Setting
from support.golden import Golden, Json

SETTING = Setting(COMPUTE["C2"], NETWORK["N2"], workers=10, machines=5, seed=3)
HORIZON_S = 20.0
JOBS = {
    "mlfabric-a": mlfabric_a(None),
    "mlfabric-s": MLFABRIC_S,
    "async": ASYNC,
    "rr-sync": RR_SYNC,
    "tr-sync": TR_SYNC,
    "mlfabric-a-replica": replace(mlfabric_a(8), divergence_bound=6.0, momentum=0.5),
}


def held(record: Record) -> Json:
    return {
        "updates": len(record.applied_s),
        "first_applied_s": record.applied_s[:5],
        "last_applied_s": record.applied_s[-5:],
        "sum_of_delays": sum(record.delays),
        "by_worker": [record.by_worker.count(worker) for worker in range(SETTING.workers)],
        "dropped_s": record.dropped_s,
        "sent_to_server": record.sent_to_server,
        "sent_to_replica": record.sent_to_replica,
        "replicated": record.replicated,
        "end_s": record.end_s,
    }


@pytest.mark.parametrize("name", JOBS)
def test_no_digit_has_moved(name: str, golden: Golden) -> None:
    golden.check(f"mlfabric/{name}", held(run(SETTING, JOBS[name], horizon_s=HORIZON_S)))
