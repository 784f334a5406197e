"""What a job wants next where its engine cannot give it what was chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from prophet.core.arena import at_pace
from prophet.core.choice import Choice, Question, Shape
from prophet.core.cut import Cut, Refusal
from prophet.core.network import Network
from prophet.core.plan import Plan, QueuePlan
from prophet.core.profile import GradientProfile, Profile
from prophet.learn.choosing import LEAST_RECENT, Choosing
from prophet.learn.judge import Judge

KIB = 1024
PROFILE = Profile("job", tuple(GradientProfile(f"g{n}", 1 << 20, 0.1 * (10 - n), 0.01) for n in range(10)))
NETWORK = Network(30e6, 0.0005, 0.001)


def uniform(size_kib: int) -> Cut:
    return Cut.uniform(size_kib * KIB)


@dataclass
class Search:
    """One that has come to an end."""

    choices: Sequence[Choice]

    def work(self, events: int) -> bool:
        return True


class Policy:
    """Finds the smallest blocks the best, each size by a tenth better than the next larger one.

    What it wants in flight is 1 MiB, and as much again for each millisecond of delay after the first.
    """

    name = "smallest"

    def plan(self, profile: Profile | None, network: Network | None, jitter_s: float = 0.0) -> Plan:
        return Plan()

    def search(self, question: Question) -> Search:
        sizes, credit = (128, 256, 512, 1024), round(question.network.ack_delay_s / 1e-3) << 20
        return Search([Choice(uniform(size), credit, 1.1**place) for place, size in enumerate(sizes)])

    def chosen_plan(self, choice: Choice, question: Question) -> Plan:
        return Plan(push=QueuePlan(credit=choice.credit), cut=choice.cut)


class Job:
    """One whose engine refuses some cuts and takes up any other a turn later."""

    def __init__(self, begins_with: Cut) -> None:
        self.choosing = Choosing(Policy(), Shape(2, 1), True, True, 1 << 20)
        self.cut = self.wanted = begins_with
        self.refusals: tuple[Refusal, ...] = ()
        self.takes_s: dict[Cut, float] = {}
        self.network, self.profile = NETWORK, PROFILE
        self.profiles: dict[Cut, Profile] = {}
        self.ended = 0

    def turns(self, count: int) -> list[Cut]:
        """What was wanted at the end of each, in each of which an iteration ends."""
        wanted = []
        for _ in range(count):
            if not any(refusal.cut == self.wanted for refusal in self.refusals):
                self.cut = self.wanted
            self.choosing.refused(self.refusals)
            self.ended += 1
            self.choosing.in_force(self.cut, np.full(20, self.takes_s.get(self.cut, 1.0)), self.ended)
            if self.choosing.may_ask(warm=False):
                self.choosing.ask(self.profiles.get(self.cut, self.profile), self.network, 0.0)
            plan = self.choosing.turn()
            if plan is not None and plan.cut is not None:
                self.wanted = plan.cut
            wanted.append(self.wanted)
        return wanted


def refusal(cut: Cut, any_new: bool = False) -> Refusal:
    return Refusal(cut, "names run out", any_new)


def test_what_is_refused_is_given_up_for_the_best_that_can_be_had() -> None:
    job = Job(uniform(1024))
    assert job.turns(1) == [uniform(128)]
    job.refusals = (refusal(uniform(128)),)
    assert job.turns(2) == [uniform(256)] * 2
    assert job.cut == uniform(256)


def test_smaller_blocks_that_the_job_never_had_are_not_asked_for_either() -> None:
    job = Job(uniform(1024))
    job.turns(1)
    job.refusals = (refusal(uniform(128)), refusal(uniform(256)))
    assert job.turns(1) == [uniform(512)]
    job = Job(uniform(1024))
    job.refusals = (refusal(uniform(512)),)
    assert job.turns(4) == [uniform(1024)] * 4


def test_sizes_that_the_job_has_had_can_be_had_again() -> None:
    job = Job(uniform(128))
    job.turns(1)
    job.wanted = uniform(1024)  # as where another worker decides for a while
    job.takes_s = {uniform(1024): 2.0}
    job.refusals = (refusal(uniform(512)),)
    assert job.turns(3)[-1] == uniform(128), "512 KiB are refused, and what is smaller and was never had"
    assert job.cut == uniform(128)


def test_where_no_new_cut_can_be_had_what_holds_is_wanted_so_that_nothing_else_comes_later() -> None:
    job = Job(uniform(1024))
    assert job.turns(1) == [uniform(128)]
    job.refusals = (refusal(uniform(128), any_new=True),)
    assert job.turns(5) == [uniform(1024)] * 5, "and not the refused one for ever"


@pytest.mark.parametrize("turns", [1, 4])
def test_where_there_is_room_again_it_chooses_anew(turns: int) -> None:
    job = Job(uniform(1024))
    job.turns(1)
    job.refusals = (refusal(uniform(128), any_new=True),)
    job.turns(turns)
    job.refusals = ()
    assert job.turns(2)[-1] == uniform(128)
    assert job.cut == uniform(128)


def test_nothing_is_asked_while_a_cut_is_awaited_whose_blocks_need_another_credit() -> None:
    job = Job(uniform(1024))
    job.turns(1)
    assert not job.choosing.may_ask(warm=False)
    job.turns(1)
    assert job.cut == uniform(128)
    assert job.choosing.may_ask(warm=False)


@pytest.mark.parametrize(("delay_s", "credit"), [(0.004, 1 << 20), (0.009, 9 << 20)])
def test_another_delay_asks_for_another_credit_and_forgets_nothing(delay_s: float, credit: int) -> None:
    """A block of 128 KiB takes 5 ms on this wire: less than that makes no difference to how many are in flight."""
    job = Job(uniform(1024))
    job.turns(8)
    assert (job.cut, job.choosing.at_rest) == (uniform(128), True)
    taken = job.choosing._judge.iteration_s(job.cut)
    job.network = Network(NETWORK.bandwidth, NETWORK.overhead_s, delay_s)
    job.turns(2)
    assert job.choosing._wanted is not None
    assert (job.choosing._wanted.cut, job.choosing._wanted.credit) == (uniform(128), credit)
    assert job.choosing._judge.iteration_s(job.cut) == taken is not None


@pytest.mark.parametrize(("longer", "takes_s", "another"), [(1.3, 1.0, False), (1.3, 1.2, True), (2.5, 1.0, True)])
def test_backward_is_another_where_iterations_take_another_time_as_well(
    longer: float, takes_s: float, another: bool
) -> None:
    """On busy cores gradients come later the more messages there are, and what was learned is worth more than that."""
    job = Job(uniform(1024))
    job.turns(8)
    assert job.cut == uniform(128)
    job.profile = at_pace(PROFILE, longer)
    job.takes_s[job.cut] = takes_s
    job.turns(1)
    assert (job.choosing._judge.iteration_s(uniform(1024)) is None) == another


def test_backward_that_is_far_longer_under_many_messages_begins_no_other_regime() -> None:
    """ResNet-50's gradients at 2.5 Gbit/s on two cores: 0.43 s under the blocks that a job begins with, and 0.21 s
    under 2 MiB, which were given up for that. What is predicted next is predicted from the newest."""
    job = Job(uniform(1024))
    job.profiles[uniform(1024)] = at_pace(PROFILE, 2.1)
    job.turns(8)
    assert job.cut == uniform(128)
    assert job.choosing._judge.iteration_s(uniform(1024)) == 1.0
    question = job.choosing._question
    assert question is not None
    assert question.profile.backward_s == pytest.approx(PROFILE.backward_s)
    job.profile = at_pace(PROFILE, 2.5)
    job.turns(1)
    assert job.choosing._judge.iteration_s(uniform(1024)) is None, "this is another under the same blocks"


@pytest.mark.parametrize(("longer", "another"), [(1.0, False), (1.4, True)])
def test_how_much_iterations_scatter_is_told_from_more_than_the_newest(longer: float, another: bool) -> None:
    """On busy cores they scatter by a tenth, so the newest four differ as much, and the four may seem to be alike."""
    noticed = []
    for seed in range(20):
        job = Job(uniform(1024))
        job.turns(8)
        periods_s = np.random.default_rng(seed).normal(1.0, 0.1, 120)
        periods_s[100:] *= longer
        for count in range(1, len(periods_s) + 1):
            job.choosing.in_force(job.cut, periods_s[:count], count)
            if not job.choosing._steady:
                break
        noticed.append(count)
    if another:
        assert all(100 < count <= 110 for count in noticed), noticed
    else:
        assert noticed == [120] * 20, "none was, to the end"


@pytest.mark.parametrize(
    ("rate", "asked", "forgotten"), [(28e6, False, False), (25e6, True, False), (12e6, True, True)]
)
def test_a_rate_that_iterations_do_not_show_begins_no_other_regime(rate: float, asked: bool, forgotten: bool) -> None:
    """On busy cores the rate is taken for 10 to 25% more or less after each recut. Where it is far from what it was,
    iterations are not waited for."""
    job = Job(uniform(1024))
    job.turns(8)
    job.network = Network(rate, NETWORK.overhead_s, NETWORK.ack_delay_s)
    job.turns(1 + LEAST_RECENT)
    question = job.choosing._question
    assert question is not None
    assert (question.network.bandwidth == rate) == asked
    assert (job.choosing._judge.iteration_s(uniform(1024)) is None) == forgotten


def test_iterations_are_waited_for_that_show_whether_the_rate_is_another() -> None:
    """What they took before would be put down to the blocks that are chosen for it."""
    job = Job(uniform(1024))
    job.turns(8)
    job.network = Network(25e6, NETWORK.overhead_s, NETWORK.ack_delay_s)
    job.turns(LEAST_RECENT)
    question = job.choosing._question
    assert question is not None and question.network == NETWORK
    job.takes_s[job.cut] = 1.2
    job.turns(1)
    question = job.choosing._question
    assert question is not None and question.network == job.network
    assert question.measured is not None and question.measured.iteration_s == 1.2
    assert job.choosing._judge.iteration_s(uniform(1024)) is None, "it is another regime"


def test_a_rate_that_seems_to_be_another_for_a_moment_begins_nothing() -> None:
    job = Job(uniform(1024))
    job.turns(8)
    for network in (Network(25e6, NETWORK.overhead_s, NETWORK.ack_delay_s), NETWORK) * 10:
        job.network = network
        job.turns(LEAST_RECENT)
    question = job.choosing._question
    assert question is not None and question.network == NETWORK


def test_another_barrier_begins_one_regime_though_a_former_cut_is_better(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which one is better is to be found out anew, so there is nothing to go back to first."""
    job = Job(uniform(1024))
    job.turns(1)
    job.choosing.in_force(uniform(128), np.full(20, 2.0), 2)
    assert job.choosing._judge.better_former(uniform(128)) == uniform(1024)
    begun, begin = [], Judge.new_regime

    def new_regime(judge: Judge) -> None:
        begun.append(judge)
        begin(judge)

    monkeypatch.setattr(Judge, "new_regime", new_regime)
    assert job.choosing.ask(PROFILE, NETWORK, 0.0, barrier=True)
    assert len(begun) == 1
    assert not job.choosing.ask(PROFILE, NETWORK, 0.0, barrier=True), "nothing has changed since"
    assert len(begun) == 1
