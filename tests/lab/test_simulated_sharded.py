"""FSDP2 in advice and in a config: measured jobs are predicted, and mistakes are one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.lab.advice import Situation, advise
from prophet_scheduler.lab.advice_sources import LinkOptions, of_profile
from prophet_scheduler.lab.simulated import (
    SHARD_BLOCK_BYTES,
    SHARD_BLOCKS_AT_ONCE,
    prepare_experiment,
    prepared,
    run_planned,
)
from support.configs import REPLAY, loaded

TOTAL_BYTES, EMBEDDING, LAYERS = 25_600_000, 0.22, 12
"""The model of tools/slept_job.py."""
ROWS = [
    GradientProfile(f"layer{n}", int(TOTAL_BYTES * (1 - EMBEDDING) / LAYERS), 0.6 - 0.05 * n, 0.3 / LAYERS)
    for n in range(LAYERS)
]
BERT = Profile("bert", (GradientProfile("embedding", int(TOTAL_BYTES * EMBEDDING), 0.6, 0.0), *ROWS))


def situation(policy: str | None = "fsdp2", bandwidth: float = 250e6, **options: Any) -> Situation:
    return of_profile(BERT, policy, LinkOptions(bandwidth, **options))


@pytest.mark.parametrize(
    ("options", "alone_s", "scheduled_s", "error"),
    [
        ({}, 2.776, 1.303, 0.04),
        ({"keep": True}, 2.300, 1.199, 0.04),
        ({"shards": 1}, 1.762, 1.193, 0.04),
        ({"bandwidth": 1e9, "delay_s": 0.005}, 2.426, 1.146, 0.09),
        ({"bandwidth": 2.5e9}, 1.166, 1.012, 0.09),
        ({"workers": 4, "shards": 2}, 3.304, 1.776, 0.06),
    ],
)
def test_measured_jobs_are_predicted(options: dict[str, Any], alone_s: float, scheduled_s: float, error: float) -> None:
    """docs/fsdp.md has the measured means, of ranks on one machine."""
    for policy, measured_s in (("fsdp2", alone_s), ("fsdp2-prophet", scheduled_s)):
        job = situation(policy, **options)
        planned = prepared(job.cell, job.contender, replayed=True)
        assert planned is not None
        assert np.median(run_planned(planned).iteration_s(28)) == pytest.approx(measured_s, rel=error)


def test_advice_compares_ways_to_shard() -> None:
    advice = advise(situation(workers=8, workers_per_host=4, bandwidth=1e9))
    gain = {each.change: each.gain for each in advice.suggestions}
    assert {"prophet", "kept", "shards-on-hosts", "replicas", "twice-the-rate", "half-precision"} <= set(gain)
    assert not {"ddp", "parameter-servers", "low-rank", "local-sgd"} & set(gain)
    assert gain["shards-on-hosts"] > gain["kept"] > 1 and gain["replicas"] > 1
    assert (advice.policy, advice.bound_s) == ("fsdp2", None)
    within = advise(situation("fsdp2", 1e9, workers=8, workers_per_host=4, shards=4, keep=True))
    assert within.policy == "fsdp2 --shards 4 --keep"
    assert not {"kept", "shards-on-hosts"} & {each.change for each in within.suggestions}
    (prophet,) = (each for each in within.suggestions if each.change == "prophet")
    assert prophet.helps and within.iteration_s < advice.iteration_s


@pytest.mark.parametrize(
    ("policy", "options", "line"),
    [
        ("fsdp2", {"workers": 8, "shards": 3}, "shards is 3; it must divide the 8 workers"),
        (
            "fsdp2",
            {"workers": 8, "workers_per_host": 4, "shards": 16},
            "shards is 16; it must divide the 8 workers, and divide or be a multiple of the 4 on",
        ),
        ("fsdp2", {"workers": 1}, "cluster.workers: ring needs 2 or more"),
        (None, {"shards": 2}, "--shards and --keep need --policy fsdp2; leave them out, or give it"),
        ("prophet", {"keep": True}, "--shards and --keep need --policy fsdp2"),
    ],
)
def test_impossible_sharding_is_one_line(policy: str | None, options: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=line):
        advise(situation(policy, **options))


def simulated_s(tmp_path: Path, **simulator: object) -> dict[str, float]:
    raw = {**REPLAY, "engine": "simulator", "simulator": {"exchange": "fsdp2", **simulator}}
    experiment = loaded(raw, tmp_path)
    (cell,) = experiment.cells
    ((planned, _),) = prepare_experiment(experiment)
    times = (np.median(run_planned(each).iteration_s(2)) for each in planned)
    return {policy.name: float(time_s) for policy, time_s in zip(cell.policies, times, strict=True)}


def test_config_for_simulator(tmp_path: Path) -> None:
    whole, kept, alone = (simulated_s(tmp_path, **keys) for keys in ({}, {"keep": True}, {"shards": 1}))
    for times in (whole, kept, alone):
        assert times["prophet"] < times["stock"]
    assert whole["stock"] > kept["stock"] > alone["stock"]


@pytest.mark.parametrize(
    ("raw", "line"),
    [
        (
            {"engine": "ddp", "simulator": {"exchange": "fsdp2"}},
            "engine must be simulator with simulator.exchange: fsdp2",
        ),
        ({"engine": "simulator", "simulator": {"shards": 2}}, "simulator: shards and keep need exchange: fsdp2"),
    ],
)
def test_config_with_wrong_engine_is_one_line(raw: dict[str, object], line: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=line):
        loaded({**REPLAY, **raw}, tmp_path)


def test_blocks_match_fsdp_plugin() -> None:
    takeover, wire = (pytest.importorskip(f"prophet_fsdp.{module}") for module in ("takeover", "wire"))
    assert (SHARD_BLOCK_BYTES, SHARD_BLOCKS_AT_ONCE) == (takeover.BLOCK_BYTES, wire.AT_ONCE)
