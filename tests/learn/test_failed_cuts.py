"""A cut that takes far longer than was predicted: given up soon, though times scatter, and learned from."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from prophet.core.choice import Choice, Measured, Question, Shape
from prophet.core.cut import Cut
from prophet.core.network import Network
from prophet.core.plan import Plan, QueuePlan
from prophet.core.profile import GradientProfile, Profile
from prophet.learn.choosing import Choosing
from prophet.learn.judge import LEAST_PERIODS, Judge
from prophet.policies.algorithms.chooser import ChoiceSearch

LEARNING, SMALL, LARGE = Cut.uniform(1 << 18), Cut.uniform(1 << 16), Cut.uniform(1 << 20)
PROFILE = Profile("job", tuple(GradientProfile(f"g{n}", 1 << 20, 0.01 * (100 - n), 0.001) for n in range(100)))
NETWORK = Network(300e6, 1e-6)
TAKES_S = {LEARNING: 0.48, SMALL: 0.8, LARGE: 0.42}


def scattered(median_s: float, count: int) -> NDArray[np.float64]:
    """Times that scatter by a fifth, as where processors are short."""
    return median_s * (1 + 0.2 * np.random.default_rng(3).uniform(-1, 1, count))


class Search:
    """Takes the smallest blocks for the best until it is told what they took."""

    def __init__(self, failed: Measured | None) -> None:
        order = (SMALL, LEARNING, LARGE) if failed is None else (LARGE, LEARNING, SMALL)
        self.choices = [Choice(cut, 1 << 20, 0.4 + 0.1 * place) for place, cut in enumerate(order)]

    def work(self, events: int) -> bool:
        return True


class Policy:
    name = "predicts"

    def __init__(self) -> None:
        self.asked: list[Question] = []

    def plan(self, profile: Profile | None, network: Network | None, jitter_s: float = 0.0) -> Plan:
        return Plan()

    def search(self, question: Question) -> Search:
        self.asked.append(question)
        return Search(question.failed)

    def chosen_plan(self, choice: Choice, question: Question) -> Plan:
        return Plan(push=QueuePlan(credit=choice.credit), cut=choice.cut)


def test_a_job_is_back_within_a_few_iterations_and_then_finds_the_better_cut() -> None:
    policy = Policy()
    choosing = Choosing(policy, Shape(2, 1), adapts=True, arena=True, credit=1 << 20)
    cut, since, had = LEARNING, 0, dict.fromkeys(TAKES_S, 0)
    for _ in range(60):
        since += 1
        had[cut] += 1
        choosing.in_force(cut, scattered(TAKES_S[cut], since), since)
        if choosing.may_ask(warm=False):
            choosing.ask(PROFILE, NETWORK, 0.0)
        plan = choosing.turn()
        if plan is not None and plan.cut is not None and plan.cut != cut:
            cut, since = plan.cut, 0
    assert cut == LARGE
    assert had[SMALL] <= LEAST_PERIODS + 2
    failed = policy.asked[-1].failed
    assert failed is not None and failed.cut == SMALL and failed.iteration_s == pytest.approx(0.8, rel=0.2)


class Misled(Policy):
    """Promises much of small blocks, the smaller the more, until it is asked with the delay that there is."""

    def search(self, question: Question) -> Search:
        search = super().search(question)
        if question.network.ack_delay_s == 0:
            sizes = [1 << 15, 1 << 16, 1 << 17, 1 << 18, 1 << 20]
            search.choices = [Choice(Cut.uniform(size), 1 << 18, 0.2 + 0.02 * n) for n, size in enumerate(sizes)]
        else:
            search.choices = [Choice(cut, 1 << 20, 0.4 + 0.1 * place) for place, cut in enumerate((LARGE, LEARNING))]
        return search


def test_after_one_that_is_far_worse_than_promised_no_other_is_tried_on_the_same_promises() -> None:
    """They were made from what did not hold; and what is known now is looked at only now and then."""
    policy = Misled()
    choosing = Choosing(policy, Shape(2, 1), adapts=True, arena=True, credit=1 << 20)
    cut, since, had = LEARNING, 0, [LEARNING]
    for number in range(120):
        since += 1
        choosing.in_force(cut, scattered(TAKES_S.get(cut, 2.0), since), since)
        if choosing.may_ask(warm=False) and number % 30 == 10:
            choosing.ask(PROFILE, NETWORK if number < 30 else Network(300e6, 1e-6, 0.02), 0.0)
        plan = choosing.turn()
        if plan is not None and plan.cut is not None and plan.cut != cut:
            cut, since = plan.cut, 0
            had.append(cut)
    assert had == [LEARNING, Cut.uniform(1 << 15), LEARNING, LARGE]


def test_a_cut_that_was_left_before_it_was_known_well_is_still_gone_back_to() -> None:
    judge = Judge()
    judge.in_force(LEARNING)
    judge.measured(LEARNING, scattered(0.48, 8))
    assert judge.iteration_s(LEARNING) is None
    judge.in_force(SMALL)
    assert judge.iteration_s(LEARNING) == pytest.approx(0.48, rel=0.1)
    judge.measured(SMALL, scattered(0.8, LEAST_PERIODS))
    assert judge.better_former(SMALL) == LEARNING


def test_one_that_is_as_good_as_the_former_seemed_is_kept() -> None:
    judge = Judge()
    judge.in_force(LEARNING)
    judge.measured(LEARNING, scattered(0.48, 12))
    judge.in_force(LARGE)
    judge.measured(LARGE, scattered(0.48, 40))
    assert judge.better_former(LARGE) is None


def test_what_messages_cost_under_the_failed_cut_counts_in_the_next_prediction() -> None:
    profile = Profile("bound by its network", tuple(GradientProfile(f"g{n}", 1 << 20, 0.1, 0.001) for n in range(100)))

    def predicted_s(failed: Measured | None) -> dict[Cut, float]:
        question = Question(profile, NETWORK, Shape(2, 1), (SMALL, LARGE), anew=False, failed=failed)
        search = ChoiceSearch(question)
        while not search.work(1 << 20):
            pass
        return {choice.cut: choice.iteration_s for choice in search.choices}

    free = predicted_s(None)
    costly = predicted_s(Measured(SMALL, 1 << 20, free[SMALL] * 1.5))
    assert costly[SMALL] > 1.2 * free[SMALL]
    assert costly[LARGE] < 1.1 * free[LARGE], "it has a sixteenth of the messages"
