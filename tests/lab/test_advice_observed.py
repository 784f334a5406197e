"""Advice on a job that is only watched: what can be expected from its measured times, computed by hand."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from prophet_scheduler.core.status import Observed, ObservedTimes
from prophet_scheduler.lab.advice import COMPRESSED_RATE
from prophet_scheduler.lab.advice_observed import advice_of, fitted, lines

TIMES = ObservedTimes(iteration_s=1.5, backward_s=0.4, network_s=1.0, others_s=0.0, error_s=0.01, looks=20)
ONE = Observed(2, 200, TIMES, (30_000_000,), (0.4,), low_rank_bytes=(44_000,))
"""Job of one gradient, there when backward ends: 1.0 s for its bytes besides 0.5 s of computing, and nothing else."""
EVEN = replace(
    ONE,
    gradient_bytes=(3_000_000,) * 10,
    generation_s=tuple(0.04 * place for place in range(10, 0, -1)),
    low_rank_bytes=(),
)
NEARLY = 0.02
"""Tolerance, since the simulator has costs of each message, and all its operations take some milliseconds."""


def gains(seen: Observed) -> dict[str, float]:
    assert seen.times is not None
    return {each.change: each.gain for each in advice_of(seen, seen.times).suggestions}


def test_rate_follows_from_measured_wait() -> None:
    rate = fitted(ONE, TIMES).cell.cluster.bandwidth.rate("worker0")
    assert rate == pytest.approx(8 * 30e6 / 1.0, rel=NEARLY)
    on_four = fitted(replace(ONE, ranks=4), TIMES).cell.cluster.bandwidth.rate("worker0")
    assert on_four == pytest.approx(8 * 30e6 * 1.5 / 1.0, rel=NEARLY), "a ring sends each byte 2 (p - 1) / p times"


def test_gains_match_hand_computed_times() -> None:
    found = gains(ONE)
    for change in ("twice-the-rate", "half-precision"):
        assert found[change] == pytest.approx(1.5 / 1.0, rel=NEARLY)
    assert found["larger-batch"] == pytest.approx(2 * 1.5 / 2.0, rel=NEARLY)
    assert found["local-sgd"] == pytest.approx(1.5 / 0.75, rel=NEARLY)
    assert found["low-rank"] == pytest.approx(1.5 / (0.5 + 30e6 / COMPRESSED_RATE), rel=NEARLY)
    assert set(found) == {"prophet", "twice-the-rate", "half-precision", "larger-batch", "local-sgd", "low-rank"}


def test_prophet_gain_is_limited_by_wire() -> None:
    """The first gradient fills DDP's first bucket and leaves during backward; 27 MB follow in the second 1.0 s."""
    assert 1.05 < gains(EVEN)["prophet"] <= 1.5 / (30 / 27 * 1.0)


def test_half_precision_keeps_buckets() -> None:
    """The first gradient fills DDP's first bucket alone, also where half of it travels."""
    sizes, generation_s = (9_000_000, 9_000_000, 1_200_000), (0.4, 0.2, 0.1)
    found = gains(replace(ONE, gradient_bytes=sizes, generation_s=generation_s, low_rank_bytes=()))
    assert found["half-precision"] == pytest.approx(found["twice-the-rate"], rel=NEARLY)


def test_half_precision_job_sends_half_the_bytes() -> None:
    half = replace(ONE, half=True)
    assert fitted(half, TIMES).cell.cluster.bandwidth.rate("worker0") == pytest.approx(8 * 15e6, rel=NEARLY)
    assert set(gains(half)) == {"prophet", "twice-the-rate", "larger-batch"}


def test_faster_link_does_not_shorten_message_costs() -> None:
    """Three ranks gather in two messages, of 0.1 s each, and reduce in four: 0.6 s of 1.0 s."""
    found = gains(replace(ONE, ranks=3, low_rank_bytes=(), shards=3, keep=True, message_s=0.1))
    assert found["twice-the-rate"] == pytest.approx(1.5 / (0.5 + 0.6 + 0.2), rel=NEARLY)


def test_sharded_job_that_keeps_parameters() -> None:
    """Of two ranks each sends half of 30 MB to gather, and twice that for gloo's reduction."""
    kept = replace(ONE, low_rank_bytes=(), shards=2, keep=True)
    assert fitted(kept, TIMES).cell.cluster.bandwidth.rate("worker0") == pytest.approx(8 * 45e6, rel=NEARLY)
    found = gains(kept)
    assert set(found) == {"prophet", "twice-the-rate", "half-precision", "larger-batch", "replicas"}
    assert found["twice-the-rate"] == pytest.approx(1.5, rel=NEARLY)
    assert found["replicas"] == pytest.approx(1.5 / (0.5 + 30 / 45), rel=NEARLY)


def test_sharded_job_gathers_again_in_backward() -> None:
    """The second gathering follows at once, where gloo takes half as long again (simulate/sharded.py)."""
    sharded = replace(ONE, low_rank_bytes=(), shards=2)
    assert fitted(sharded, TIMES).cell.cluster.bandwidth.rate("worker0") == pytest.approx(8 * 67.5e6, rel=NEARLY)
    assert gains(sharded)["kept"] == pytest.approx(1.5 / (0.5 + 45 / 67.5), rel=NEARLY)


def test_ranks_on_a_host_share_its_link() -> None:
    """Gloo's ring crosses a host's link once, Prophet's parts come to each host once: half of 30 MB for each half."""
    shared = replace(ONE, low_rank_bytes=(), ranks=4, shards=4, keep=True, on_host=2)
    assert fitted(shared, TIMES).cell.cluster.bandwidth.rate("worker0") == pytest.approx(8 * 67.5e6, rel=NEARLY)
    alone = replace(shared, on_host=1)
    assert gains(shared)["prophet"] > gains(alone)["prophet"] + 0.1


def test_lines_have_share_and_gains_with_errors() -> None:
    first, *rest = lines(ONE)
    assert first.startswith("an iteration takes 1.500 s, of which 67% ± 1% waits for the network (20 of 200 ")
    assert re.match(r"would help: PowerSGD of rank 1, 2\.\d\d ± 0\.0\d times as many samples a second", rest[0])
    assert sum("would help: twice the rate" in line for line in rest) == 1


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"times": None, "iterations": 7}, "7 iterations, too few of them timed to say"),
        ({"times": None, "iterations": 0, "modules": 4}, "0 iterations of the first of 4 modules, too few"),
        ({"times": replace(TIMES, network_s=0.06)}, "nothing would help: no network could make this job more than 4%"),
        ({"own_hook": "mine"}, "not known what would help: mine changes what is sent"),
        ({"one_host": True}, "not known what would help: all ranks are on one machine"),
        ({"no_prophet": "it has a device mesh"}, "Prophet would leave this job as it is: it has a device mesh"),
        ({"modules": 3}, "only the first of 3 modules was watched"),
        ({"times": replace(TIMES, others_s=0.3)}, "and 20% for slower ranks ("),
    ],
)
def test_lines_say_what_limits_the_advice(changed: dict[str, Any], said: str) -> None:
    assert said in "\n".join(lines(replace(ONE, **changed)))


def test_gain_within_error_is_not_promised() -> None:
    unsure = replace(TIMES, network_s=0.15, error_s=0.6)
    text = "\n".join(lines(replace(ONE, times=unsure)))
    assert "would help: " not in text.replace("nothing would help: ", "")
    assert re.search(r"nothing would help: .*PowerSGD of rank 1 \(1\.0\d ± 0\.4\d\)", text)


def test_wait_shorter_than_message_costs() -> None:
    """Ten small operations take longer than the wait that was measured, so a faster link would not help."""
    times = replace(TIMES, network_s=1e-4, iteration_s=0.5)
    assert gains(replace(EVEN, gradient_bytes=(4,) * 10, bucket_bytes=1, times=times))["twice-the-rate"] < 1.01


def test_module_prints_same_lines() -> None:
    asked = subprocess.run(
        [sys.executable, "-m", "prophet_scheduler.lab.advice_observed"],
        input=json.dumps(dataclasses.asdict(ONE)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert asked.stdout.splitlines() == lines(ONE)
