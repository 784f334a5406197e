"""Jobs whose tensors are the blocks of a cut, and that are cut anew while they run."""

from __future__ import annotations

import numpy as np
import pytest

from prophet_scheduler.core._native import ClusterSpec, Exchange, OperationSpec, Simulation, TensorSpec
from prophet_scheduler.core.cut import MOST_BLOCK_BYTES, Cut, Segment, learning_cut
from prophet_scheduler.core.event_record import EventRecord
from prophet_scheduler.core.events import EventKind, QueueKind
from prophet_scheduler.core.plan import Plan, QueuePlan
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.policies import get_policy
from prophet_scheduler.simulate import Cluster, Costs, Job, Options, SimulatedRun, simulate
from prophet_scheduler.simulate.job import alone, job_of_cut, job_of_profile
from prophet_scheduler.simulate.replay import replay
from support.profiles import resnet50

KIB = 1024
FORWARD = Plan(push=QueuePlan(order={}, credit=1 << 20), pull=QueuePlan(order={}))
RATE = 31.25e6
CLUSTER = Cluster(2, 1, {"worker0": ((0.0, RATE),), "worker1": ((0.0, RATE),)}, Costs(1e-4, 1.4e-4))


def layers(*sizes: int) -> Profile:
    """Backward of 0.1 s a layer, and forward of 0.05 s."""
    count = len(sizes)
    return Profile(
        "layers", tuple(GradientProfile(f"g{i}", size, 0.1 * (count - i), 0.05) for i, size in enumerate(sizes))
    )


def pushed(run: SimulatedRun, since_s: float, until_s: float) -> list[tuple[int, int]]:
    """(id, bytes) of what was handed over between these times."""
    events = run.events[(run.events["kind"] == EventKind.ADD) & (run.events["queue"] == QueueKind.PUSH)]
    events = events[(events["time_s"] > since_s) & (events["time_s"] <= until_s)]
    return [(int(event["gradient"]), int(event["bytes"])) for event in events]


def test_a_block_is_there_with_its_most_urgent_gradient() -> None:
    job = job_of_cut(layers(40 * KIB, 40 * KIB, 40 * KIB), Cut.uniform(64 * KIB))
    assert job.members == ((0, 1), (1, 2))
    assert job.ids == (0, 16)
    run = simulate(job, CLUSTER, None, Options(iterations=2, partition_bytes=MOST_BLOCK_BYTES, plan=FORWARD))
    adds = run.events[(run.events["kind"] == EventKind.ADD) & (run.events["queue"] == QueueKind.PUSH)]
    # Forward takes 0.15 s. The second block has a part of gradient 1, which comes 0.2 s after backward began.
    assert [(int(e["gradient"]), round(float(e["time_s"]), 6)) for e in adds[:2]] == [(16, 0.35), (0, 0.45)]


def test_without_fusion_no_block_has_two_gradients() -> None:
    job = job_of_cut(layers(4 * KIB, 4 * KIB, 100 * KIB), Cut.uniform(64 * KIB), fusion=False)
    assert job.members == ((0,), (1,), (2,), (2,))


def test_blocks_that_are_the_gradients_take_as_long_as_the_gradients() -> None:
    profile = layers(64 * KIB, 64 * KIB, 64 * KIB)
    options = Options(iterations=4, partition_bytes=MOST_BLOCK_BYTES, plan=FORWARD)
    blocks = simulate(job_of_cut(profile, Cut.uniform(64 * KIB)), CLUSTER, None, options)
    gradients = simulate(job_of_profile(profile, alone(profile)), CLUSTER, None, options)
    assert blocks.marks.tobytes() == gradients.marks.tobytes()


def simulation(job: Job, iterations: int) -> Simulation:
    spec = ClusterSpec()
    spec.operations, spec.tensors = list(job.operations), list(job.tensors)
    spec.partition_bytes = MOST_BLOCK_BYTES
    spec.workers, spec.servers, spec.exchange = 2, 1, Exchange.SYNCHRONOUS
    spec.iterations = iterations
    assert job.backward is not None
    spec.backward = job.backward
    made = Simulation(spec)
    for worker in range(2):
        made.set_link(worker, [(0.0, RATE)], [(0.0, RATE)], 1e-4, 0.0)
    made.record(0)
    return made


def test_another_cut_holds_from_a_round_on_for_all_workers() -> None:
    first = job_of_cut(layers(200 * KIB, 200 * KIB), Cut.uniform(128 * KIB))
    assert first.recut is not None
    second = first.recut(Cut.uniform(256 * KIB))
    made = simulation(first, 12)
    number = made.add_layout(list(second.tensors), [list(places) for places in second.generates])
    assert not made.run(0.5, 1 << 30)
    assert made.iterations_done == 1
    assert made.use_layout(number, 4) == 4
    assert made.run(float("inf"), 1 << 30)
    begins = made.marks["start_s"][0]
    events = made.take_events(0)
    adds = events[(events["kind"] == EventKind.ADD) & (events["queue"] == QueueKind.PUSH)]
    rounds = np.searchsorted(begins, adds["time_s"], side="left") - 1
    sizes = [sorted(adds["bytes"][rounds == n].tolist()) for n in range(12)]
    old, new = sorted(first.sizes), sorted(second.sizes)
    assert sizes == [old] * 4 + [new] * 8
    # Every push of every round was answered.
    pulls = events[(events["kind"] == EventKind.FINISH) & (events["queue"] == QueueKind.PULL)]
    assert len(pulls) >= 4 * len(old) + 7 * len(new)


@pytest.mark.parametrize("exchange", [Exchange.SYNCHRONOUS, Exchange.ASYNCHRONOUS, Exchange.COLLECTIVE])
def test_tensors_without_bytes_travel_and_are_recorded(exchange: Exchange) -> None:
    for sizes in ((0, 0, 0), (0, 1000, 0), (5_000_000, 0, 0)):
        spec = ClusterSpec()
        forward = [OperationSpec(0.01, int(n > 0), [n + 1], []) for n in range(3)]
        backward = [OperationSpec(0.01, 1, [n + 1] if n < 5 else [], [5 - n]) for n in range(3, 6)]
        spec.operations = [*forward, *backward]
        spec.tensors = [TensorSpec(size, [n]) for n, size in enumerate(sizes)]
        spec.partition_bytes, spec.iterations, spec.workers, spec.exchange = MOST_BLOCK_BYTES, 3, 2, exchange
        made = Simulation(spec)
        for node in range(3):
            made.set_link(node, [(0.0, RATE)], [(0.0, RATE)], 1e-4, 0.0)
        made.record(0)
        assert made.run(float("inf"), 1 << 20) and made.iterations_done == 3
        events = made.take_events(0)
        assert replay(EventRecord(events)).differences == ()
        assert int((events["bytes"] == 0).sum()) >= 2 * 3 * 2


def test_a_cluster_that_cannot_be_is_refused() -> None:
    job = job_of_cut(layers(200 * KIB), Cut.uniform(128 * KIB))
    for wrong in ({"partition_bytes": 0}, {"servers": 0}, {"operations": [OperationSpec(0.1, 0, [7], [])]}):
        spec = ClusterSpec()
        spec.operations, spec.tensors, spec.partition_bytes = list(job.operations), list(job.tensors), 1 << 20
        for name, value in wrong.items():
            setattr(spec, name, value)
        with pytest.raises((ValueError, IndexError)):
            Simulation(spec)
    made = simulation(job, 3)
    with pytest.raises(ValueError, match="every 0th round"):
        made.use_layout(0, 0)


def test_cuts_may_come_back() -> None:
    first = job_of_cut(layers(200 * KIB, 200 * KIB), Cut.uniform(128 * KIB))
    assert first.recut is not None
    second = first.recut(Cut.uniform(64 * KIB))
    made = simulation(first, 60)
    number = made.add_layout(list(second.tensors), [list(places) for places in second.generates])
    wanted = 0
    rounds = set()
    for turn in range(1, 200):
        if made.run(turn * 0.4, 1 << 30):
            break
        wanted = number - wanted
        rounds.add(made.use_layout(wanted, 2))
    assert made.iterations_done == 60
    assert len(rounds) > 10


def adaptive(profile: Profile, rate: float, iterations: int = 40) -> SimulatedRun:
    links = {f"worker{number}": ((0.0, rate),) for number in range(4)}
    cluster = Cluster(4, 4, links, Costs(1e-4, 1.4e-4))
    job = job_of_cut(profile, learning_cut(profile.total_bytes))
    options = Options(iterations=iterations, partition_bytes=MOST_BLOCK_BYTES, adapts=True)
    return simulate(job, cluster, get_policy("prophet"), options)


@pytest.mark.parametrize("rate", [62.5e6, 312.5e6])
def test_prophet_finds_blocks_that_are_near_the_best_of_one_size(rate: float) -> None:
    profile = resnet50(25_600_000, backward_s=0.1, forward_s=0.05)
    run = adaptive(profile, rate, 80)
    assert len(run.jobs) >= 2, "it was cut anew"
    last_s = float(np.median(run.iteration_s(70)))
    fixed = []
    for size in (64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB, 1024 * KIB):
        links = {f"worker{number}": ((0.0, rate),) for number in range(4)}
        cluster = Cluster(4, 4, links, Costs(1e-4, 1.4e-4))
        options = Options(iterations=30, partition_bytes=MOST_BLOCK_BYTES)
        one_size = simulate(job_of_cut(profile, Cut.uniform(size)), cluster, get_policy("prophet", size), options)
        fixed.append(float(np.median(one_size.iteration_s(20))))
    assert last_s <= min(fixed) * 1.02


def test_a_network_that_changes_is_followed() -> None:
    profile = resnet50(25_600_000, backward_s=0.1, forward_s=0.05)
    links = {f"worker{number}": ((0.0, 312.5e6), (15.0, 31.25e6), (60.0, 312.5e6)) for number in range(2)}
    cluster = Cluster(2, 1, links, Costs(1e-4, 1.4e-4))
    job = job_of_cut(profile, learning_cut(profile.total_bytes))
    options = Options(iterations=340, partition_bytes=MOST_BLOCK_BYTES, adapts=True)
    run = simulate(job, cluster, get_policy("prophet"), options)
    start_s = run.marks[0]["start_s"]
    periods = np.diff(start_s)

    def steady(since_s: float, until_s: float) -> float:
        return float(np.median(periods[(start_s[:-1] > since_s) & (start_s[1:] < until_s)]))

    assert steady(45.0, 60.0) <= 1.05 * 25.6e6 / 31.25e6, "it follows the slow network"
    assert steady(70.0, 80.0) == pytest.approx(steady(10.0, 15.0), rel=0.05), "and the fast one again"
    assert len({job.cut for _, job in run.jobs}) <= 8


def test_a_model_that_registers_its_last_layers_first_is_sent_in_forward_order() -> None:
    profile = resnet50(25_600_000, backward_s=0.6, forward_s=0.3)
    options = Options(iterations=80, partition_bytes=MOST_BLOCK_BYTES, adapts=True)
    learning = learning_cut(profile.total_bytes)
    reverse = range(len(profile.gradients) - 1, -1, -1)
    took_s = []
    for registered in (None, reverse):
        job = job_of_cut(profile, learning, registered=registered)
        run = simulate(job, CLUSTER, get_policy("prophet"), options)
        assert len(run.jobs) >= 2, "it was cut anew, and the order learned again"
        assert run.plan is not None and (run.plan.push.order == {}) == (registered is None)
        took_s.append(float(np.median(run.iteration_s(60))))
        cut = run.jobs[-1][1].cut
    assert took_s[1] <= 1.05 * took_s[0]
    assert cut is not None
    by_place = Options(iterations=10, partition_bytes=MOST_BLOCK_BYTES, plan=FORWARD)
    run = simulate(job_of_cut(profile, cut, registered=reverse), CLUSTER, None, by_place)
    assert float(np.median(run.iteration_s(5))) > 1.15 * took_s[1]


def test_a_given_size_stays() -> None:
    profile = resnet50(5_000_000)
    options = Options(iterations=14, partition_bytes=MOST_BLOCK_BYTES)
    run = simulate(job_of_cut(profile, Cut.uniform(65536)), CLUSTER, get_policy("prophet", 65536), options)
    assert len(run.jobs) == 1
    assert run.plan is not None and run.plan.cut is None


def test_a_run_that_adapts_is_the_same_each_time() -> None:
    profile = resnet50(5_000_000)
    assert adaptive(profile, 31.25e6).marks.tobytes() == adaptive(profile, 31.25e6).marks.tobytes()


def test_a_cut_with_segments_is_simulated_too() -> None:
    cut = Cut((Segment(0, 64 * KIB), Segment(1 << 20, 512 * KIB)))
    job = job_of_cut(resnet50(5_000_000), cut)
    assert max(job.sizes) == 512 * KIB and sum(job.sizes) == sum(g.size_bytes for g in resnet50(5_000_000).gradients)
