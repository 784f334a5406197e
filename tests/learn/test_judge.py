"""Which cut is wanted, from what was predicted and what was measured."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from prophet.core.choice import Choice
from prophet.core.cut import Cut, Segment
from prophet.learn.judge import FEW_RECUTS, LEAST_PERIODS, MANY_RECUTS, Judge, Recuts

KIB = 1024
LEARNING = Cut((Segment(0, 128 * KIB), Segment(1 << 20, 512 * KIB)))


def uniform(size_kib: int) -> Cut:
    return Cut.uniform(size_kib * KIB)


def choice(cut: Cut, iteration_s: float) -> Choice:
    return Choice(cut, 1 << 20, iteration_s)


def periods(seconds: float, count: int = LEAST_PERIODS) -> NDArray[np.float64]:
    return np.full(count, seconds)


def judge(*measured: tuple[Cut, float]) -> Judge:
    """Of a job that began with the first of these cuts, and had all."""
    subject = Judge()
    for cut, seconds in measured:
        subject.in_force(cut)
        subject.measured(cut, periods(seconds))
    return subject


def test_what_a_job_begins_with_is_left_for_the_best() -> None:
    choices = [choice(uniform(512), 1.0), choice(LEARNING, 1.01)]
    assert judge((LEARNING, 1.0)).wanted(choices, LEARNING) == choices[0]


def test_later_a_recut_must_promise_what_it_costs() -> None:
    subject = judge((LEARNING, 2.0), (uniform(512), 1.0))
    segmented = Cut((Segment(0, 64 * KIB), Segment(1 << 20, 1024 * KIB)))
    choices = [choice(segmented, 0.98), choice(uniform(512), 1.0), choice(LEARNING, 2.0)]
    assert subject.wanted(choices, uniform(512)) == choices[1]
    choices[0] = choice(segmented, 0.96)
    assert subject.wanted(choices, uniform(512)) == choices[0]


@pytest.mark.parametrize(("larger_s", "tried"), [(1.06, False), (0.99, True)])
def test_a_promise_counts_as_far_as_blocks_of_about_that_size_have_kept_theirs(larger_s: float, tried: bool) -> None:
    """VGG-19's gradients at 250 Mbit/s and 5 ms, where predictions leave out more of large blocks."""
    subject = Judge(MANY_RECUTS)
    for cut, seconds in ((uniform(512), 0.998), (uniform(1024), larger_s), (uniform(256), 0.976)):
        subject.in_force(cut)
        subject.measured(cut, periods(seconds))
    predicted = ((1024, 0.988), (512, 0.998), (2048, 0.955), (256, 1.026), (128, 1.141))
    choices = [choice(uniform(size_kib), seconds) for size_kib, seconds in predicted]
    assert (subject.wanted(choices, uniform(256)).cut == uniform(2048)) == tried


def test_a_cut_that_is_measured_to_be_worse_is_given_up() -> None:
    subject = judge((LEARNING, 1.0), (uniform(512), 1.02))
    choices = [choice(uniform(512), 0.8), choice(LEARNING, 1.0)]
    assert subject.wanted(choices, uniform(512)).cut == LEARNING


def test_too_few_iterations_say_nothing() -> None:
    subject = judge((LEARNING, 1.0))
    subject.in_force(uniform(512))
    subject.measured(uniform(512), periods(5.0, LEAST_PERIODS - 1))
    assert subject.iteration_s(uniform(512)) is None
    assert subject.better_former(uniform(512)) is None


def test_one_straggling_iteration_changes_nothing() -> None:
    subject = judge((LEARNING, 1.0))
    subject.measured(LEARNING, np.array([1.0, 1.0, 9.0, 1.0, 1.0, 1.0]))
    assert subject.iteration_s(LEARNING) == 1.0


def test_neighbours_of_the_best_are_tried_larger_ones_first_and_not_for_ever() -> None:
    subject = judge((LEARNING, 2.0), (uniform(512), 1.1))
    choices = [choice(uniform(512), 1.0), choice(uniform(1024), 1.02), choice(uniform(256), 1.03), choice(LEARNING, 2)]
    assert subject.wanted(choices, uniform(512)).cut == uniform(1024)
    subject.in_force(uniform(1024))
    subject.measured(uniform(1024), periods(1.2))
    assert subject.wanted(choices, uniform(1024)).cut == uniform(512), "it was worse"
    assert subject.wanted(choices, uniform(512)).cut == uniform(256)
    subject.in_force(uniform(256))
    subject.measured(uniform(256), periods(1.0))
    assert subject.wanted(choices, uniform(256)).cut == uniform(256), f"after {FEW_RECUTS.most_tries} tries it stays"


@pytest.mark.parametrize(
    ("times_s", "tried"),
    [(periods(1.0), False), (periods(1.01), False), (periods(1.03), True), (np.tile([0.9, 1.0, 1.1], 4), True)],
    ids=["as predicted", "not much longer", "longer", "not exactly known"],
)
def test_a_neighbour_is_tried_that_may_be_better_than_what_was_measured(
    times_s: NDArray[np.float64], tried: bool
) -> None:
    subject = judge((LEARNING, 2.0))
    subject.in_force(uniform(512))
    subject.measured(uniform(512), times_s)
    choices = [choice(uniform(512), 1.0), choice(uniform(1024), 1.02), choice(LEARNING, 2.0)]
    assert (subject.wanted(choices, uniform(512)).cut == uniform(1024)) == tried
    subject.recuts = MANY_RECUTS
    assert subject.wanted(choices, uniform(512)).cut == uniform(1024), "where a recut is cheap"


@pytest.mark.parametrize(("larger_s", "next_tried"), [(1.0, True), (1.4, False)], ids=["as good", "worse"])
def test_next_to_sizes_that_are_measured_to_be_as_good_is_a_neighbour(larger_s: float, next_tried: bool) -> None:
    """VGG-19's gradients at 2.5 Gbit/s: 512 KiB and 1 MiB took the same, and 2 MiB, the best, were not tried."""
    scatter = np.tile([0.9, 1.0, 1.1], 6)
    subject = judge((LEARNING, 2.0))
    for size_kib, factor in ((512, 1.0), (1024, larger_s), (512, 1.0)):
        subject.in_force(uniform(size_kib))
        subject.measured(uniform(size_kib), scatter * factor)
    sizes = [choice(uniform(512), 0.97), choice(uniform(1024), 0.98), choice(uniform(2048), 0.99)]
    wanted = subject.wanted([*sizes, choice(LEARNING, 2.0)], uniform(512))
    assert (wanted.cut == uniform(2048)) == next_tried


@pytest.mark.parametrize(("larger_s", "tried"), [(0.97, False), (1.0, True)])
def test_what_is_smaller_is_not_tried_beside_a_size_of_which_a_larger_seems_better(
    larger_s: float, tried: bool
) -> None:
    """BERT's gradients at 2.5 Gbit/s: 512 KiB, back for another look beside 1 MiB, led on to 256 KiB."""
    scatter = np.tile([0.9, 1.0, 1.1], 6)
    subject = judge((LEARNING, 2.0))
    for size_kib, factor in ((512, 1.0), (1024, larger_s), (512, 1.0)):
        subject.in_force(uniform(size_kib))
        subject.measured(uniform(size_kib), scatter * factor)
    assert subject.better_former(uniform(512)) is None, "which is too near to tell"
    sizes = [choice(uniform(256), 0.97), choice(uniform(512), 0.98), choice(uniform(1024), 0.99)]
    wanted = subject.wanted([*sizes, choice(LEARNING, 2.0)], uniform(512))
    assert (wanted.cut == uniform(256)) == tried


def test_a_neighbour_that_is_predicted_clearly_worse_is_not_tried() -> None:
    subject = judge((LEARNING, 2.0), (uniform(512), 1.1))
    choices = [choice(uniform(512), 1.0), choice(uniform(1024), 1.2), choice(LEARNING, 2.0)]
    assert subject.wanted(choices, uniform(512)).cut == uniform(512)


@pytest.mark.parametrize(
    ("takes_s", "wanted_kib"), [(1.02, 512), (1.15, 1024)], ids=["as predicted", "longer than predicted"]
)
def test_larger_blocks_are_tried_where_iterations_take_longer_than_predicted(takes_s: float, wanted_kib: int) -> None:
    """ResNet-50's gradients at 2.5 Gbit/s on two cores: 1 MiB was predicted to take 0.41 s and took 0.48, and 2 MiB,
    the best, were predicted to take a twentieth more and were not tried."""
    subject = judge((LEARNING, 2.0), (uniform(512), takes_s))
    choices = [
        choice(uniform(512), 1.0),
        choice(uniform(1024), 1.08),
        choice(uniform(256), 1.08),
        choice(LEARNING, 2.0),
    ]
    assert subject.wanted(choices, uniform(512)).cut == uniform(wanted_kib)
    subject.in_force(uniform(1024))
    subject.measured(uniform(1024), periods(2 * takes_s))
    subject.in_force(uniform(512))
    subject.measured(uniform(512), periods(takes_s))
    assert subject.wanted(choices, uniform(512)).cut == uniform(512), "smaller ones have more messages"


def test_where_all_take_less_than_predicted_neighbours_are_as_near_as_predicted() -> None:
    subject = judge((LEARNING, 2.0))
    subject.in_force(uniform(512))
    subject.measured(uniform(512), np.tile([0.8, 0.9, 1.0], 4))
    choices = [choice(uniform(512), 1.0), choice(uniform(1024), 1.02), choice(LEARNING, 2.0)]
    assert subject.wanted(choices, uniform(512)).cut == uniform(1024)


def test_a_cut_that_was_made_for_the_pattern_is_none_of_a_row_of_sizes() -> None:
    made = Cut((Segment(0, 512 * KIB), Segment(1 << 20, 64 * KIB)))
    subject = judge((LEARNING, 2.0), (made, 1.0))
    choices = [choice(made, 1.0), choice(uniform(1024), 1.02), choice(LEARNING, 2.0)]
    assert subject.wanted(choices, made).cut == made


@pytest.mark.parametrize(
    ("recuts", "size", "tried"),
    [(MANY_RECUTS, 2 << 20, True), (FEW_RECUTS, 2 << 20, False), (MANY_RECUTS, 128 << 10, False)],
    ids=["cheap", "dear", "it has smaller blocks"],
)
def test_what_was_made_for_the_pattern_is_tried_where_messages_may_cost_more_than_known(
    recuts: Recuts, size: int, tried: bool
) -> None:
    """A transformer at 1 Gbit/s that had left two phases for all-reduces: its 57 blocks were predicted to take as long
    as 7 that were made for the pattern, which were not tried, and took 0.267 s where those took 0.251."""
    made = Cut((Segment(0, size), Segment(size, size)))
    subject = judge((LEARNING, 2.0), (uniform(256), 1.0))
    subject.recuts = recuts
    choices = [choice(uniform(256), 1.0), choice(made, 1.004), choice(LEARNING, 2.0)]
    assert (subject.wanted(choices, uniform(256)).cut == made) == tried
    subject.in_force(made)
    subject.measured(made, periods(0.95))
    assert subject.wanted(choices, made).cut == made
    subject.measured(made, periods(1.05))
    assert subject.wanted(choices, made).cut == uniform(256)


def test_a_job_has_a_bounded_number_of_cuts() -> None:
    sizes = [4 << step for step in range(FEW_RECUTS.most_cuts)]
    subject = judge(*((uniform(size), 1.0) for size in sizes))
    assert not subject.may_cut_anew
    last = uniform(sizes[-1])
    choices = [choice(LEARNING, 0.1), choice(last, 1.0)]
    assert subject.wanted(choices, last).cut == last, "another one would be one too many"
    subject.new_regime()
    choices = [choice(LEARNING, 0.1), choice(uniform(sizes[1]), 0.5), choice(last, 1.0)]
    assert subject.wanted(choices, last).cut == uniform(sizes[1]), "a former one is no new one"


def test_where_times_scatter_it_does_not_change_for_ever() -> None:
    subject = judge((LEARNING, 1.0), (uniform(512), 1.0))
    choices = [choice(uniform(512), 1.0), choice(LEARNING, 1.0)]
    chance = np.random.default_rng(1)
    now, changes = uniform(512), 0
    for _ in range(100):
        subject.in_force(now)
        subject.measured(now, chance.normal(1.0, 0.5, 20).clip(0.2))
        wanted = subject.wanted(choices, now).cut
        changes += wanted != now
        now = wanted
    assert FEW_RECUTS.most_looks <= changes <= FEW_RECUTS.most_looks + FEW_RECUTS.most_returns


def alternated(takes_s: dict[Cut, float], scatter: float, seed: int) -> tuple[Cut, int]:
    """The cut that a job ends with that has had all, and how often it was cut anew; each holds for 12 iterations."""
    chance = np.random.default_rng(seed)
    subject = Judge()
    choices = [choice(cut, 1.0) for cut in takes_s]

    def had(cut: Cut) -> None:
        subject.in_force(cut)
        subject.measured(cut, takes_s[cut] * (1 + scatter * chance.normal(size=12)))

    for cut in takes_s:
        now = cut
        had(cut)
    for changes in range(50):
        wanted = subject.wanted(choices, now).cut
        if wanted == now:
            return now, changes
        now = wanted
        had(now)
    raise AssertionError("it changes for ever")


def test_two_that_are_too_near_to_tell_take_turns_until_the_better_one_is_known() -> None:
    """Times scatter by 6%, so twelve iterations of each tell 5% apart in seven jobs of ten."""
    takes_s = {uniform(512): 0.42, uniform(1024): 0.40}
    ends = [alternated(takes_s, 0.06, seed) for seed in range(60)]
    right = sum(cut == uniform(1024) for cut, _ in ends)
    assert right >= 56
    assert max(changes for _, changes in ends) <= FEW_RECUTS.most_looks + FEW_RECUTS.most_returns


def test_where_times_do_not_scatter_nothing_is_repeated() -> None:
    assert alternated({uniform(512): 0.42, uniform(1024): 0.40}, 0.0, 1) == (uniform(1024), 0)
    assert alternated({uniform(1024): 0.40, uniform(512): 0.42}, 0.0, 1) == (uniform(1024), 1)
    assert alternated({uniform(1024): 0.40, uniform(512): 0.401}, 0.0, 1) == (uniform(512), 0), "which does not matter"


def test_what_was_measured_of_a_cut_is_not_lost_when_it_comes_back() -> None:
    """Five bad iterations after it came back were all that was known of it then."""
    subject = judge((LEARNING, 0.6))
    for cut, times_s in (
        (uniform(512), periods(0.43, 30)),
        (uniform(1024), periods(0.45, 20)),
        (uniform(512), np.array([0.50, 0.48, 0.47, 0.43, 0.47])),
    ):
        subject.in_force(cut)
        subject.measured(cut, times_s)
    assert subject.iteration_s(uniform(512)) == pytest.approx(0.43)
    assert subject.better_former(uniform(512)) is None


def test_a_cut_is_not_left_because_the_machine_has_become_slower_since() -> None:
    subject = judge((LEARNING, 0.6), (uniform(1024), 0.45))
    subject.in_force(uniform(2048))
    slower = 0.43 * np.append(np.ones(20), np.linspace(1.0, 1.1, 80))
    for seen in range(5, 100):
        subject.measured(uniform(2048), slower[max(0, seen - 49) : seen])
        assert subject.better_former(uniform(2048)) is None


def test_a_trial_is_over_after_a_few_iterations_where_times_scatter() -> None:
    subject = judge((LEARNING, 0.6))
    subject.in_force(uniform(512))
    scattered = 0.4 * (1 + 0.1 * np.random.default_rng(1).normal(size=40))
    needed = next(seen for seen in range(5, 41) if _measured(subject, scattered[:seen]))
    assert needed <= 10
    choices = [choice(uniform(512), 0.35), choice(uniform(1024), 0.36), choice(LEARNING, 0.6)]
    assert subject.wanted(choices, uniform(512)).cut == uniform(1024)


def _measured(subject: Judge, periods_s: NDArray[np.float64]) -> bool:
    subject.measured(uniform(512), periods_s)
    return subject.iteration_s(uniform(512)) is not None


def test_another_network_makes_what_was_measured_worthless() -> None:
    subject = judge((LEARNING, 1.0), (uniform(512), 1.2))
    subject.new_regime()
    assert subject.better_former(uniform(512)) is None
    assert subject.used == (LEARNING, uniform(512))


@pytest.mark.parametrize(("recuts", "tried"), [(FEW_RECUTS, False), (MANY_RECUTS, True)])
def test_where_a_recut_costs_little_a_small_gain_is_worth_it(recuts: Recuts, tried: bool) -> None:
    subject = Judge(recuts)
    for cut in (LEARNING, uniform(512)):
        subject.in_force(cut)
        subject.measured(cut, periods(1.0))
    segmented = Cut((Segment(0, 64 * KIB), Segment(1 << 20, 1024 * KIB)))
    choices = [choice(segmented, 0.985), choice(uniform(512), 1.0), choice(LEARNING, 2.0)]
    assert (subject.wanted(choices, uniform(512)).cut == segmented) == tried


def test_what_is_clearly_worse_is_given_up_before_it_is_known_exactly() -> None:
    judge = Judge()
    first, second = uniform(512), uniform(256)
    judge.in_force(first)
    judge.measured(first, periods(0.43, 20))
    judge.in_force(second)
    scattered = np.tile([0.66, 0.42, 0.42, 0.66], 5)
    judge.measured(second, scattered[:6])
    assert judge.iteration_s(second) is None, "six that scatter so say nothing"
    judge.measured(second, scattered)
    assert judge.better_former(second) == first


def test_a_new_cut_must_promise_more_than_a_former_one_that_was_as_good() -> None:
    subject = judge((LEARNING, 2.0), (uniform(1024), 0.42), (uniform(2048), 0.42))
    choices = [choice(uniform(1024), 0.36), choice(uniform(512), 0.38), choice(uniform(2048), 0.4)]
    assert subject.wanted(choices, uniform(2048)).cut == uniform(2048)
    choices[1] = choice(uniform(512), 0.34)
    assert subject.wanted(sorted(choices, key=lambda each: each.iteration_s), uniform(2048)).cut == uniform(512)
