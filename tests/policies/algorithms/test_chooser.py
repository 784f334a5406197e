"""Predictions, compared with the simulator, and the search for the best blocks."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from prophet_scheduler.core.arena import profile_under
from prophet_scheduler.core.choice import Measured, Question, Shape
from prophet_scheduler.core.cut import MOST_BLOCK_BYTES, Cut, learning_cut
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Plan, QueuePlan
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.policies import get_policy
from prophet_scheduler.policies.algorithms.chooser import AS_GOOD, LIKELY_MESSAGE_S, ChoiceSearch
from prophet_scheduler.policies.algorithms.predictor import Prediction, Predictor
from prophet_scheduler.policies.prophet import Prophet
from prophet_scheduler.simulate import Cluster, Costs, Options, simulate
from prophet_scheduler.simulate.job import job_of_cut
from support.profiles import resnet50

KIB = 1024
SIZES = [64 * KIB << place for place in range(7)]
RATE = 312.5e6
NETWORK = Network(RATE, 1e-4, 2.8e-4)
SHAPE = Shape(4, 4)
PROFILE = resnet50(25_600_000, backward_s=0.1, forward_s=0.05)


def question(network: Network = NETWORK, measured: Measured | None = None, **changes: object) -> Question:
    cuts = (learning_cut(PROFILE.total_bytes),)
    return Question(PROFILE, network, SHAPE, cuts, anew=True, measured=measured, **changes)  # type: ignore[arg-type]


def run(prediction: Prediction) -> float:
    assert prediction.run(1 << 40)
    return prediction.iteration_s


def predicted_s(shape: Shape, size: int, credit: int) -> float:
    return run(Predictor(PROFILE, NETWORK, shape).begin(Cut.uniform(size), credit))


def searched(asked: Question, events: int = 1 << 40) -> ChoiceSearch:
    search = get_policy("prophet").search(asked)  # type: ignore[attr-defined]
    assert isinstance(search, ChoiceSearch)
    while not search.work(events):
        pass
    return search


@pytest.mark.parametrize("size", [64 * KIB, 256 * KIB, 1024 * KIB])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("barrier", [False, True])
def test_predictions_equal_the_simulator(size: int, wide: bool, barrier: bool) -> None:
    credit = 8 * size
    predictor = Predictor(PROFILE, NETWORK, SHAPE, wide_servers=wide, barrier=barrier)
    prediction = predictor.begin(Cut.uniform(size), credit)
    assert prediction.run(1 << 40)
    nodes = 4 if wide else 8
    names = [f"worker{n}" for n in range(4)] + [f"server{n}" for n in range(4)]
    cluster = Cluster(4, 4, dict.fromkeys(names[:nodes], ((0.0, RATE),)), Costs(1e-4, 1.4e-4))
    plan = Plan(push=QueuePlan(order={}, credit=credit), pull=QueuePlan(order={}))
    options = Options(iterations=12, partition_bytes=MOST_BLOCK_BYTES, plan=plan)
    run = simulate(job_of_cut(PROFILE, Cut.uniform(size), barrier=barrier), cluster, None, options)
    # The first period is exactly as predicted; later ones differ as the workers drift apart.
    first_s = run.marks["backward_s"][:, 1] - run.marks["backward_s"][:, 0]
    assert prediction.iteration_s == pytest.approx(float(first_s.max()), rel=1e-9)
    assert prediction.iteration_s == pytest.approx(float(np.median(run.iteration_s(4))), rel=0.05)


def test_predictions_include_the_watchdog() -> None:
    """The watchdog releases blocks while a large one is in flight, so more than the credit is in flight."""
    slow, size = Network(125e3, 1e-4, 2.8e-4), 512 * KIB
    prediction = Predictor(PROFILE, slow, Shape(2, 1), wide_servers=True).begin(Cut.uniform(size), 2 * size)
    assert prediction.run(1 << 40)
    links = dict.fromkeys(("worker0", "worker1"), ((0.0, 125e3),))
    plan = Plan(push=QueuePlan(order={}, credit=2 * size), pull=QueuePlan(order={}))
    options = Options(iterations=4, partition_bytes=MOST_BLOCK_BYTES, plan=plan)
    job = job_of_cut(PROFILE, Cut.uniform(size))
    run = simulate(job, Cluster(2, 1, links, Costs(1e-4, 1.4e-4)), None, options)
    assert run.watchdog_releases > 0
    first_s = run.marks["backward_s"][:, 1] - run.marks["backward_s"][:, 0]
    assert prediction.iteration_s == pytest.approx(float(first_s.max()), rel=1e-9)


def test_a_prediction_can_run_in_pieces_and_be_given_up() -> None:
    predictor = Predictor(PROFILE, NETWORK, SHAPE)
    whole = predictor.begin(Cut.uniform(128 * KIB), 1 << 20)
    assert whole.run(1 << 40)
    pieces = predictor.begin(Cut.uniform(128 * KIB), 1 << 20)
    turns = 1
    while not pieces.run(1000):
        turns += 1
    assert turns > 5
    assert pieces.iteration_s == whole.iteration_s
    given_up = predictor.begin(Cut.uniform(128 * KIB), 1 << 20)
    assert given_up.run(1 << 40, whole.iteration_s / 2)
    assert math.isinf(given_up.iteration_s)
    assert given_up.cost < whole.cost


def test_a_few_machines_stand_for_many() -> None:
    few = predicted_s(Shape(8, 8), 256 * KIB, 1 << 21)
    many = predicted_s(Shape(512, 512), 256 * KIB, 64 << 21)
    assert many == pytest.approx(few, rel=1e-9)


@pytest.mark.parametrize(("rate", "delay_s"), [(RATE, 2.8e-4), (RATE, 5e-3), (1e8, 2e-2), (3.1e7, 4e-2), (3.1e7, 1e-4)])
def test_the_search_is_no_worse_than_any_uniform_cut_with_any_credit(rate: float, delay_s: float) -> None:
    """With a long delay, a few small blocks in flight are so bad that a few more seem no better."""
    network = Network(rate, 1e-4, delay_s)
    search = searched(question(network))
    predictor = Predictor(PROFILE, network, SHAPE)
    predictor.message_s = LIKELY_MESSAGE_S
    counts = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
    best = min(run(predictor.begin(Cut.uniform(size), n * size)) for size in SIZES for n in counts)
    assert search.choices[0].iteration_s <= best * (1 + AS_GOOD)


def test_the_search_has_the_same_result_in_turns_of_about_the_allowed_length() -> None:
    search = get_policy("prophet").search(question())  # type: ignore[attr-defined]
    turns = 1
    while not search.work(100_000):
        turns += 1
    assert 2 <= turns <= 40
    assert search.choices == searched(question()).choices == searched(question(), 5_000).choices
    assert question().cuts[0] in [choice.cut for choice in search.choices], "the cut in force is always judged"


def test_with_a_given_cut_only_the_credit_is_chosen_and_a_longer_delay_makes_it_larger() -> None:
    cut = Cut.uniform(128 * KIB)
    networks = (Network(31.25e6, 1e-4, 2e-4), Network(31.25e6, 1e-4, 2e-2))
    ((near,), (far,)) = (
        searched(Question(PROFILE, network, Shape(2, 1), (cut,), anew=False)).choices for network in networks
    )
    assert near.cut == far.cut == cut
    assert 2 * 128 * KIB <= near.credit < far.credit


def test_a_barrier_explains_a_longer_iteration() -> None:
    """The longer iteration must be explained by the barrier, and not by a higher cost of messages."""
    profile = resnet50(25_600_000, backward_s=0.1, forward_s=0.4)
    asked = replace(question(Network(31.25e6, 1e-4, 2.8e-4)), profile=profile)
    behind, without = (searched(replace(asked, barrier=barrier)).choices[0] for barrier in (True, False))
    least_s = profile.total_bytes / asked.network.bandwidth + profile.forward_s
    assert without.iteration_s < least_s < behind.iteration_s < 1.15 * least_s
    measured = Measured(behind.cut, behind.credit, behind.iteration_s)
    explained = {
        barrier: searched(replace(asked, measured=measured, barrier=barrier))._predictor.message_s
        for barrier in (True, False)
    }
    assert explained[True] <= LIKELY_MESSAGE_S < explained[False]


def test_expensive_messages_make_blocks_larger() -> None:
    cheap = searched(question(Network(RATE, 2e-5, 2.8e-4))).choices[0]
    dear = searched(question(Network(RATE, 1e-3, 2.8e-4))).choices[0]
    assert dear.cut.typical_bytes(PROFILE.total_bytes) > cheap.cut.typical_bytes(PROFILE.total_bytes)


def test_larger_blocks_are_predicted_up_to_the_jobs_present_time() -> None:
    """Blocks without a prediction could not be tried."""
    middle = Cut.uniform(512 * KIB)
    usual = {choice.cut: choice.iteration_s for choice in searched(question()).choices}
    credit = 3 * middle.block_bytes_at(0)
    longer = Measured(middle, credit, 3 * usual[middle])
    slow = {choice.cut: choice.iteration_s for choice in searched(question(measured=longer)).choices}
    assert {Cut.uniform(1 << 20), Cut.uniform(2 << 20)} <= slow.keys()
    assert max(slow.values()) > max(usual.values()) * 1.1


def test_larger_blocks_are_predicted_beyond_cuts_already_used() -> None:
    """Cuts that the job has had are predicted first, and perhaps none of the others is better."""
    had = [Cut.uniform(size) for size in (1 << 20, 2 << 20)]
    usual = {choice.cut: choice.iteration_s for choice in searched(question()).choices}
    measured = Measured(had[-1], 4 << 20, 3 * min(usual.values()))
    asked = question(measured=measured)
    choices = searched(replace(asked, cuts=(*asked.cuts, *had))).choices
    assert Cut.uniform(MOST_BLOCK_BYTES) in [choice.cut for choice in choices]


@pytest.mark.parametrize("wide", [False, True])
def test_the_measured_iteration_shows_the_width_of_servers_links(wide: bool) -> None:
    cut, credit = learning_cut(PROFILE.total_bytes), 4 << 20
    truth_s = run(Predictor(PROFILE, NETWORK, SHAPE, wide_servers=wide).begin(cut, credit))
    search = searched(question(measured=Measured(cut, credit, truth_s * 1.01)))
    assert search._predictor.wide_servers is wide


def test_gradients_outside_an_arena_have_partitions_of_one_size() -> None:
    asked = Question(PROFILE, NETWORK, SHAPE, (Cut.uniform(512 * KIB),), anew=True, arena=False)
    choices = searched(asked).choices
    assert all(len(choice.cut.segments) == 1 for choice in choices)
    assert len(choices) > 1


def test_a_profile_under_another_cut() -> None:
    rows = (GradientProfile("a", 64 * KIB, 0.3, 0.2), GradientProfile("b", 192 * KIB, 0.1, 0.3))
    under = profile_under(Profile("two", rows), Cut.uniform(128 * KIB))
    assert under.ids == (0, 32)
    assert [g.size_bytes for g in under.gradients] == [128 * KIB, 128 * KIB]
    assert [g.generation_s for g in under.gradients] == [0.3, 0.1]
    assert [g.forward_s for g in under.gradients] == pytest.approx([0.3, 0.2])


def test_a_choices_plan_has_its_cut_and_credit() -> None:
    asked = question()
    policy = Prophet(128 * KIB)
    choice = searched(asked).choices[0]
    plan = policy.chosen_plan(choice, asked)
    assert (plan.cut, plan.push.credit, plan.push.order) == (choice.cut, choice.credit, {})
    assert not plan.push.deadlines


@pytest.mark.parametrize(("message_s", "before_s"), [(0.4e-3, None), (0.3e-3, 0.5e-3)])
def test_the_measured_iteration_shows_the_cost_of_a_message(message_s: float, before_s: float | None) -> None:
    cut, credit = Cut.uniform(64 * KIB), 1 << 20
    truth = Predictor(PROFILE, NETWORK, SHAPE)
    truth.message_s = message_s
    measured = Measured(cut, credit, run(truth.begin(cut, credit)))
    search = searched(question(measured=measured, message_s=before_s))
    assert search.message_s == pytest.approx(message_s, abs=0.03e-3)
    again = searched(question(message_s=search.message_s))
    assert again.message_s == search.message_s, "until an iteration says otherwise"
