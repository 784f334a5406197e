"""Advice on a job that Prophet only watches (PROPHET_SCHEDULER=observe), and the lines that print it.

Rule of this file: turn observations into the rate of a link, and that into the same advice as for any job. Run as a
program, it reads an Observed as JSON from standard input and prints the lines, to keep this work out of the job.

The rate is the one at which the simulator waits as long as the job did, with DistributedDataParallel's own buckets.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise
from math import hypot, sqrt

from pydantic import TypeAdapter

from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.core.status import Observed, ObservedTimes
from prophet_scheduler.engines.ddp import BUCKET_CAP_MB
from prophet_scheduler.engines.registry import engines
from prophet_scheduler.lab.advice import CHANGES, HELD_BACK, Situation, advise, cell_of, contender_of, predicted_s
from prophet_scheduler.lab.cluster_config import FSDP2, Bandwidth, ClusterConfig, SimulatorConfig
from prophet_scheduler.lab.records import Advice
from prophet_scheduler.lab.simulated import WAYS_A_MESSAGE
from prophet_scheduler.policies.ddp import MEBIBYTE

ASKED = ("prophet", "twice-the-rate", "half-precision", "larger-batch", "low-rank", "local-sgd", "kept", "replicas")
"""Names of the changes that a job can make without leaving torch's own collectives."""
RATES_APART = 1000.0
"""Factor by which the search goes above and below the rate that sends all bytes in the measured wait."""
LEAST_SHOWN = 0.005
"""Minimum share of waiting for slower ranks that is shown; less would round to 0%."""
ALL_HERE = "all ranks are on one machine, so they wait for its processors and not for a link"
HALVINGS = 16
"""Number of search steps; they leave an interval of 0.02%."""


def situation_of(seen: Observed, times: ObservedTimes, rate: float) -> Situation:
    """Return the job on links of `rate` bits per second. Compute outside backward counts as forward."""
    made_s = [*seen.generation_s, 0.0]
    part_s = [later - earlier for later, earlier in pairwise(made_s)]
    forward_s = max(0.0, times.iteration_s - times.network_s - times.backward_s)
    each_s = [forward_s * part / made_s[0] if made_s[0] else forward_s / len(part_s) for part in part_s]
    rows = zip(seen.gradient_bytes, seen.generation_s, each_s, strict=True)
    profile = Profile("this job", tuple(GradientProfile(f"gradient{i}", *row) for i, row in enumerate(rows)))
    contender = contender_of(engines()["ddp"].stock)
    if seen.bucket_bytes is not None:
        contender = replace(contender, env={BUCKET_CAP_MB: str(seen.bucket_bytes / MEBIBYTE)})
    cluster = ClusterConfig.model_construct(workers=seen.ranks, bandwidth=Bandwidth(rate))
    simulator = SimulatorConfig(burst=0)
    if seen.shards:
        simulator = SimulatorConfig(burst=0, exchange=FSDP2, shards=seen.shards, keep=seen.keep)
    if seen.message_s is not None:
        simulator = simulator.model_copy(update={"latency_s": seen.message_s / WAYS_A_MESSAGE})
    cell = cell_of(profile, contender, cluster, simulator, half=seen.half)
    return Situation(cell, contender, workers_per_host=seen.on_host, low_rank_bytes=seen.low_rank_bytes)


def fitted(seen: Observed, times: ObservedTimes) -> Situation:
    """Return the job on links at whose rate the simulated iteration time matches the measured one as well as it can."""
    sent_bytes = sum(seen.gradient_bytes) / (2 if seen.half else 1)
    low, high = (8 * sent_bytes / times.network_s * by for by in (1 / RATES_APART, RATES_APART))
    for _ in range(HALVINGS):
        rate = sqrt(low * high)
        if predicted_s(situation_of(seen, times, rate)) > times.iteration_s:
            low = rate
        else:
            high = rate
    return situation_of(seen, times, high)


def advice_of(seen: Observed, times: ObservedTimes) -> Advice:
    """Predict the gain of each change that the job could make."""
    asked = set(ASKED) - ({"prophet"} if seen.no_prophet else set())
    changes = [change for change in CHANGES if change.name in asked]
    return advise(fitted(seen, times), times.iteration_s, changes=changes)


def lines(seen: Observed) -> list[str]:
    """Return lines on the share of an iteration spent waiting for the network, and on what would help."""
    times = seen.times
    if times is None:
        of_first = f" of the first of {seen.modules} modules" if seen.modules > 1 else ""
        return [f"{seen.iterations} iterations{of_first}, too few of them timed to say what the network costs"]
    others = times.others_s / times.iteration_s
    slower = f" and {others:.0%} for slower ranks" if others >= LEAST_SHOWN else ""
    only = f"; only the first of {seen.modules} modules was watched" if seen.modules > 1 else ""
    said = [
        f"an iteration takes {times.iteration_s:.3f} s, of which {times.share:.0%} ± {times.share_error:.0%} waits for "
        f"the network{slower} ({times.looks} of {seen.iterations} iterations were timed{only})"
    ]
    if times.share <= HELD_BACK:
        most = 1 / (1 - times.share) - 1
        return [*said, f"nothing would help: no network could make this job more than {most:.0%} faster"]
    unknown = f"{seen.own_hook} changes what is sent" if seen.own_hook else ALL_HERE if seen.one_host else ""
    if unknown:
        return [*said, f"not known what would help: {unknown}"]
    hardly = []
    for each in sorted(advice_of(seen, times).suggestions, key=lambda suggestion: -suggestion.gain):
        # The error of a gain combines the simulator's usual error and that of the measured wait.
        off = each.gain * hypot(each.error or 0.0, times.share_error)
        gain = f"{each.gain:.2f} ± {off:.2f}"
        if each.helps and each.gain - 1 > off:
            said.append(f"would help: {each.words}, {gain} times as many samples a second")
        else:
            hardly.append(f"{each.words} ({gain})")
    if hardly:
        said.append(f"{'would hardly help' if len(said) > 1 else 'nothing would help'}: {', '.join(hardly)}")
    if seen.no_prophet:
        said.append(f"Prophet would leave this job as it is: {seen.no_prophet}")
    return said


if __name__ == "__main__":
    print("\n".join(lines(TypeAdapter(Observed).validate_json(sys.stdin.read()))))
