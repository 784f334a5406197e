"""Choices of a job: from predictions and iterations to plans, also with an engine that refuses some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from prophet_scheduler.core.arena import at_pace
from prophet_scheduler.core.choice import Choice, IterationEnd, Question, Shape
from prophet_scheduler.core.cut import Cut, Refusal
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Plan, QueuePlan
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.session.choosing import WAIT, Choosing
from prophet_scheduler.session.messages import Basis, SessionTerms

KIB = 1024
PROFILE = Profile("job", tuple(GradientProfile(f"g{n}", 1 << 20, 0.1 * (10 - n), 0.01) for n in range(10)))
NETWORK = Network(30e6, 0.0005, 0.001)
TERMS = SessionTerms(5.0, shape=Shape(2, 1), adapts=True)


def uniform(size_kib: int) -> Cut:
    return Cut.uniform(size_kib * KIB)


@dataclass
class Search:
    """Search that has come to an end."""

    choices: Sequence[Choice]
    message_s: float | None = None

    def work(self, events: int) -> bool:
        return True


class Policy:
    """Policy that rates the smallest blocks best, each size a tenth better than the next larger one.

    It wants 1 MiB in flight, and as much again for each millisecond of delay after the first.
    """

    name = "smallest"

    def __init__(self) -> None:
        self.questions = 0

    def plan(self, profile: Profile | None, network: Network | None, jitter_s: float = 0.0) -> Plan:
        return Plan()

    def search(self, question: Question) -> Search:
        self.questions += 1
        sizes, credit = (128, 256, 512, 1024), round(question.network.ack_delay_s / 1e-3) << 20
        return Search([Choice(uniform(size), credit, 1.1**place) for place, size in enumerate(sizes)])

    def chosen_plan(self, choice: Choice, question: Question) -> Plan:
        return Plan(push=QueuePlan(credit=choice.credit), cut=choice.cut)


class Job:
    """Job whose engine refuses some cuts and takes up any other a turn later; an iteration takes the predicted time, or
    what `takes_s` says of its cut."""

    def __init__(self, begins_with: Cut) -> None:
        self.policy = Policy()
        self.choosing = Choosing(self.policy, TERMS, 1 << 20)
        self.cut = self.wanted = begins_with
        self.refusals: tuple[Refusal, ...] = ()
        self.takes_s: dict[Cut, float] = {}
        self.network, self.profile, self.barrier = NETWORK, PROFILE, False
        self.takes_up = True
        self.plans: list[Plan] = []

    def turns(self, count: int) -> list[Cut]:
        """Return the choice at the end of each turn, in each of which an iteration ends."""
        wanted = []
        for _ in range(count):
            if self.takes_up and not any(refusal.cut == self.wanted for refusal in self.refusals):
                self.cut = self.wanted
            self.choosing.refused(self.refusals)
            predicted_s = 1.1 ** (self.cut.block_bytes_at(0) // (128 * KIB)).bit_length()
            took = IterationEnd(self.cut, "", self.takes_s.get(self.cut, predicted_s))
            self.choosing.in_force(self.cut, "", [took])
            if self.choosing.may_ask():
                self.choosing.ask(Basis(self.profile, self.network, barrier=self.barrier))
            plan = self.choosing.turn()
            if plan is not None:
                self.plans.append(plan)
                self.wanted = plan.cut if plan.cut is not None else self.wanted
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
    job.wanted = uniform(1024)  # as if another worker decided for a while
    job.takes_s = {uniform(1024): 3.0}
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
    assert not job.choosing.may_ask()
    job.turns(1)
    assert job.cut == uniform(128)
    assert job.choosing.may_ask()


def test_another_delay_is_asked_about_and_changes_the_credit_alone() -> None:
    """A block of 128 KiB takes 5 ms on this wire: a shorter delay makes no difference to how many are in flight."""
    job = Job(uniform(1024))
    job.turns(8)
    assert (job.cut, job.choosing.at_rest) == (uniform(128), True)
    for delay_s, credit in ((0.004, 1 << 20), (0.009, 9 << 20)):
        job.network = Network(NETWORK.bandwidth, NETWORK.overhead_s, delay_s)
        job.turns(2)
        wanted = job.choosing.wanted
        assert wanted is not None and (wanted.cut, wanted.credit) == (uniform(128), credit)
    assert job.plans[-1].cut is None
    assert job.plans[-1].push.credit == 9 << 20


@pytest.mark.parametrize(
    ("network", "profile", "asked"),
    [
        (Network(28e6, 0.0005, 0.001), PROFILE, False),
        (Network(20e6, 0.0005, 0.001), PROFILE, True),
        (NETWORK, at_pace(PROFILE, 1.05), False),
        (NETWORK, at_pace(PROFILE, 1.3), True),
    ],
)
def test_predictions_are_made_anew_where_they_would_be_others(network: Network, profile: Profile, asked: bool) -> None:
    job = Job(uniform(128))
    job.turns(3)
    before = job.policy.questions
    job.network, job.profile = network, profile
    job.turns(3)
    assert job.policy.questions == before + asked


def test_a_cut_that_takes_longer_than_predicted_is_left_for_the_former_one() -> None:
    job = Job(uniform(1024))
    job.takes_s = {uniform(128): 3.0, uniform(256): 3.0, uniform(512): 3.0}
    job.turns(30)
    assert job.cut == uniform(1024)
    assert job.choosing.at_rest


def test_what_never_comes_in_force_is_given_up() -> None:
    job = Job(uniform(1024))
    job.takes_up = False
    assert job.turns(3)[-1] == uniform(128)
    assert job.turns(WAIT)[-1] != uniform(128)


def test_with_a_barrier_it_is_another_question_and_what_was_seen_without_says_nothing() -> None:
    job = Job(uniform(1024))
    job.takes_s = {uniform(128): 3.0}
    job.turns(20)
    assert job.cut != uniform(128)
    job.barrier, job.takes_s = True, {}
    assert uniform(128) in job.turns(20)


def test_one_that_may_not_cut_anew_chooses_the_rest() -> None:
    choosing = Choosing(Policy(), replace(TERMS, adapts=False), 1 << 20)
    choosing.in_force(uniform(512), "", [IterationEnd(uniform(512), "", 1.2)] * 3)
    choosing.ask(Basis(PROFILE, NETWORK))
    plan = choosing.turn()
    assert plan is not None and plan.cut is None
    assert choosing.wanted is not None and choosing.wanted.cut == uniform(512)
    assert choosing.at_rest


def choices_of(question: Question, ways: Sequence[str]) -> list[Choice]:
    return [Choice(uniform(2048), 1 << 20, 0.8, way) for way in ways]


def test_what_an_engine_can_do_besides_is_an_arm_like_any_other() -> None:
    choosing = Choosing(Policy(), TERMS, 1 << 20, choices_of)
    choosing.in_force(uniform(128), "", [IterationEnd(uniform(128), "", 1.0)] * 5, ("another way",))
    choosing.ask(Basis(PROFILE, NETWORK))
    choosing.turn()
    assert choosing.wanted is not None and choosing.wanted.way == "another way"
    assert choosing.look is not None and not choosing.proved
    way = IterationEnd(uniform(2048), "another way", 0.8)
    choosing.in_force(uniform(128), "", [way] * 10, ("another way",))
    choosing.turn()
    assert choosing.proved, "it was seen, though it is not what holds now"
    assert choosing.believed()["another way"].iteration_s == pytest.approx(0.8, rel=0.02)


def test_iterations_before_anything_is_predicted_are_told_when_it_is() -> None:
    choosing = Choosing(Policy(), TERMS, 1 << 20)
    for _ in range(4):
        choosing.in_force(uniform(1024), "", [IterationEnd(uniform(1024), "", 2.0)])
        assert choosing.turn() is None
    choosing.ask(Basis(PROFILE, NETWORK))
    choosing.turn()
    assert choosing.believed()[""].iteration_s == pytest.approx(2.0 / 1.1**3, rel=0.1)


def test_what_is_known_of_the_arms_that_a_job_has_had_is_there_for_its_next_start() -> None:
    job = Job(uniform(1024))
    job.takes_s = {uniform(128): 3.0}
    job.turns(20)
    known = job.choosing.known
    assert {one.cut for one in known} >= {uniform(1024), uniform(128)}
    again = Job(uniform(256))
    again.choosing.recall(known)
    again.takes_s = job.takes_s
    assert uniform(128) not in again.turns(20)


def test_a_job_that_ends_in_the_midst_of_another_question_keeps_what_it_knew() -> None:
    job = Job(uniform(1024))
    job.turns(5)
    known = job.choosing.known
    job.choosing.ask(Basis(PROFILE, NETWORK, barrier=True))
    assert {one.name for one in job.choosing.known} == {one.name for one in known} != set()


def test_what_is_believed_of_each_arm_is_there_to_be_shown_the_fastest_first() -> None:
    job = Job(uniform(1024))
    job.takes_s = {uniform(128): 3.0}
    job.turns(20)
    arms = job.choosing.arms
    assert [arm.believed_s for arm in arms] == sorted(arm.believed_s for arm in arms)
    believed = {arm.cut[0].block_bytes // KIB: arm for arm in arms}
    assert believed[128].believed_s > 1.5 and believed[128].predicted_s == 1.0
    assert believed[128].seen > 0 and sum(arm.seen for arm in arms) == 20


def test_it_stays_with_its_cut_while_it_may_not_move_and_leaves_it_then() -> None:
    job = Job(uniform(1024))
    job.choosing.in_force(uniform(1024))
    job.choosing.ask(Basis(PROFILE, NETWORK))
    plan = job.choosing.turn(may_move=False)
    assert plan is None or plan.cut in (None, uniform(1024))
    assert job.choosing.look is None
    assert job.turns(3)[-1] == uniform(128)


def test_the_last_iteration_that_opened_keys_tells_the_cost_of_others_and_nothing_else() -> None:
    gains = []
    for took_s in (2.0, 8.0):
        choosing = Choosing(Policy(), TERMS, 1 << 20)
        first = IterationEnd(uniform(512), "", took_s, opens=True)
        choosing.in_force(uniform(512), "", [first, *[IterationEnd(uniform(512), "", 1.21)] * 3])
        choosing.ask(Basis(PROFILE, Network(PROFILE.total_bytes)))
        choosing.turn()
        assert choosing.known[0].iteration_s == pytest.approx(1.21, rel=0.03)
        gains.append(choosing.look.gain if choosing.look else 0.0)
    assert gains[0] > gains[1]
