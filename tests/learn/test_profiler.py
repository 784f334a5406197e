"""The profiler on synthetic jobs: the pattern, and everything that must not mislead it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from prophet_scheduler.core.events import EVENT_DTYPE, UNPROFILED_GRADIENT, EventKind, QueueKind
from prophet_scheduler.core.profile import Profile, find_steps
from prophet_scheduler.learn.profiler import JobProfiler
from support.profiles import resnet50
from support.virtual import events, iteration

STEPS = {5: 0.1, 4: 0.1, 3: 0.2, 2: 0.2, 1: 0.3, 0: 0.3}
PERIOD = 0.5


def run(profiler: JobProfiler, rows: list[dict[int, float]], began: float = 0.0, period: float = PERIOD) -> float:
    for generation in rows:
        profiler.observe(events(iteration(began, generation, partitions=2)))
        began += period
    return began


def known(profiler: JobProfiler) -> Profile:
    profile = profiler.profile
    assert profile is not None
    return profile


def relative(profiler: JobProfiler) -> list[float]:
    profile = known(profiler)
    first = profile.gradients[-1].generation_s
    return [round(g.generation_s - first, 6) for g in profile.gradients]


def test_it_learns_sizes_times_and_order_within_ten_iterations() -> None:
    profiler = JobProfiler()
    run(profiler, [STEPS] * 3)
    assert not profiler.ready
    run(profiler, [STEPS] * 7, began=3 * PERIOD)
    profile = known(profiler)
    assert profile.gradient_ids == (0, 1, 2, 3, 4, 5)
    assert [g.size_bytes for g in profile.gradients] == [2000] * 6
    assert relative(profiler) == [0.2, 0.2, 0.1, 0.1, 0.0, 0.0]
    assert profiler.jitter_s == pytest.approx(0.0, abs=1e-9)


def test_the_stepwise_pattern() -> None:
    profiler = JobProfiler()
    run(profiler, [STEPS] * 8)
    steps = find_steps(known(profiler))
    assert [(step.first, step.last) for step in steps] == [(0, 1), (2, 3), (4, 5)]
    assert [step.gap_s for step in steps] == pytest.approx([0.1] * 3)


def pulls(began: float, ends: dict[int, float]) -> NDArray[Any]:
    return np.array(
        [
            (began + t, g, 1000, 0, QueueKind.PULL, EventKind.FINISH, 0)
            for g, t in sorted(ends.items(), key=lambda e: e[1])
        ],
        EVENT_DTYPE,
    )


@pytest.mark.parametrize(
    ("ends", "forward_s"),
    [
        # Backward ends at 0.3, and the next one begins at 1.0. All was back at 0.31: what comes after that is forward.
        ({5: 0.2, 4: 0.2, 3: 0.31, 2: 0.31, 1: 0.31, 0: 0.31}, 0.69),
        # All was back long before: then forward computes.
        ({5: 0.5, 4: 0.5, 3: 0.4, 2: 0.4, 1: 0.31, 0: 0.31}, 0.5),
        # The job waits for its last gradient: of forward little is known, and it is taken for half of backward.
        ({5: 0.9, 4: 0.8, 3: 0.7, 2: 0.6, 1: 0.5, 0: 0.4}, 0.15),
        # The first ones are so late that less than that is left.
        ({5: 0.99, 4: 0.98, 3: 0.97, 2: 0.97, 1: 0.96, 0: 0.95}, 0.045),
    ],
)
def test_forward_lies_between_what_comes_after_each_gradient_was_back(ends: dict[int, float], forward_s: float) -> None:
    profiler = JobProfiler()
    for n in range(9):
        rows = np.concatenate([events(iteration(float(n), STEPS)), pulls(float(n), ends)])
        profiler.observe(np.sort(rows, order="time_s"))
    assert known(profiler).forward_s == pytest.approx(forward_s, rel=0.01)


def test_forward_is_the_gap_to_the_next_iteration_less_one_step() -> None:
    profiler = JobProfiler()
    run(profiler, [STEPS] * 8)
    # From 0.3 to 0.1 of the next iteration, which began at 0.5: 0.3 s, of which a step of 0.1 s is backward's.
    assert known(profiler).forward_s == pytest.approx(0.2)
    assert known(profiler).backward_s == pytest.approx(0.3)


def test_gradients_of_a_step_keep_forward_order_when_they_scatter() -> None:
    rng = np.random.default_rng(1)
    rows = [{g: t + rng.uniform(0, 0.002) for g, t in STEPS.items()} for _ in range(20)]
    profiler = JobProfiler()
    run(profiler, rows)
    assert known(profiler).gradient_ids == (0, 1, 2, 3, 4, 5)
    assert 0 < profiler.jitter_s < 0.002


def test_ids_in_another_order_are_ordered_by_generation() -> None:
    profiler = JobProfiler()
    run(profiler, [{10: 0.1, 30: 0.2, 20: 0.3}] * 8)
    assert known(profiler).gradient_ids == (20, 30, 10)


def test_ids_that_are_in_forward_order_stay_so_however_gradients_come() -> None:
    scrambled = {0: 0.01, 1: 0.12, 2: 0.05, 3: 0.11, 4: 0.02, 5: 0.08}
    profilers = [JobProfiler(), JobProfiler(forward_ids=True)]
    for profiler in profilers:
        run(profiler, [scrambled] * 8)
    by_time, by_id = (profiler.profile for profiler in profilers)
    assert by_time is not None and by_id is not None
    assert by_time.gradient_ids != (0, 1, 2, 3, 4, 5)
    assert by_id.gradient_ids == (0, 1, 2, 3, 4, 5)
    assert relative(profilers[1]) == [0.04, 0.04, 0.03, 0.03, 0.0, 0.0], "no later than what is more urgent"


SLOW = {g: 2 * t for g, t in STEPS.items()}
LATE = {g: 4 * t for g, t in STEPS.items()}
WITHOUT = {g: t for g, t in STEPS.items() if g != 5}


@pytest.mark.parametrize(
    ("rows", "period"),
    [
        ([STEPS] * 6 + [LATE] + [STEPS] * 3 + [LATE] + [STEPS] * 3, 2.0),
        ([STEPS, STEPS, STEPS, WITHOUT] * 4, PERIOD),
        ([STEPS] * 10 + [SLOW, SLOW, STEPS] * 3, 1.0),
        ([STEPS] * 8, 5.0),
    ],
    ids=["stragglers", "a gradient skipped now and then", "a few slow iterations apart", "gradient accumulation"],
)
def test_the_pattern_stays_as_it_is(rows: list[dict[int, float]], period: float) -> None:
    profiler = JobProfiler()
    run(profiler, rows, period=period)
    assert relative(profiler) == [0.2, 0.2, 0.1, 0.1, 0.0, 0.0]
    assert profiler.jitter_s < 0.001


def test_a_skipped_gradient_that_opens_the_iteration_does_not_move_the_others() -> None:
    alone_first = {3: 0.1, 2: 0.2, 1: 0.3, 0: 0.4}
    without = {2: 0.2, 1: 0.3, 0: 0.4}
    profiler = JobProfiler()
    run(profiler, [alone_first, alone_first, without, alone_first] * 4, period=0.6)
    assert known(profiler).gradient_ids == (0, 1, 2, 3)
    assert relative(profiler) == [0.3, 0.2, 0.1, 0.0]


def test_an_unused_gradient_that_is_handed_over_at_the_end_does_not_split_the_iteration() -> None:
    late = {**STEPS, 5: 0.301}
    profiler = JobProfiler()
    run(profiler, [STEPS, STEPS, STEPS, late] * 4)
    assert profiler.iterations == 15
    assert relative(profiler) == [0.2, 0.2, 0.1, 0.1, 0.0, 0.0]


def test_a_gradient_that_came_once_is_no_part_of_the_pattern() -> None:
    profiler = JobProfiler()
    run(profiler, [STEPS] * 5 + [{**STEPS, 9: 0.25}] + [STEPS] * 5)
    assert 9 not in known(profiler).gradient_ids


def test_a_changed_batch_size_is_followed_within_a_few_iterations() -> None:
    profiler = JobProfiler()
    began = run(profiler, [STEPS] * 40, period=1.0)
    run(profiler, [SLOW] * 4, began=began, period=1.0)
    assert relative(profiler) == [0.4, 0.4, 0.2, 0.2, 0.0, 0.0]


def test_a_job_of_one_step_shares_forward_equally() -> None:
    profiler = JobProfiler()
    run(profiler, [{2: 0.1, 1: 0.1, 0: 0.1}] * 8)
    assert [g.forward_s for g in known(profiler).gradients] == pytest.approx([0.5 / 3] * 3)
    assert len(find_steps(known(profiler))) == 1


def test_tensors_that_never_come_again_are_no_iterations() -> None:
    profiler = JobProfiler()
    for number in range(10):
        profiler.observe(events([(float(number), number, 0, 10, EventKind.ADD)]))
    assert profiler.iterations == 0
    assert profiler.profile is None


def test_iterations_without_a_common_gradient_have_no_pattern() -> None:
    profiler = JobProfiler()
    for number in range(10):
        once = [(number + 0.1 * part, number, part % 1, 10, EventKind.ADD) for part in range(2)]
        profiler.observe(events(once))
    assert profiler.profile is None
    assert profiler.jitter_s == 0.0


def test_broadcasts_and_transfers_are_passed_over() -> None:
    profiler = JobProfiler()
    run(profiler, [STEPS] * 6)
    noise = [(90.0, 3 | UNPROFILED_GRADIENT, 0, 10, EventKind.ADD), (90.0, 0, 0, 10, EventKind.FINISH)]
    profiler.observe(events(noise))
    assert profiler.iterations == 5


def test_events_may_be_cut_anywhere() -> None:
    whole, pieces = JobProfiler(), JobProfiler()
    stream = events([row for n in range(10) for row in iteration(n * PERIOD, STEPS, partitions=3)])
    whole.observe(stream)
    for start in range(0, len(stream), 7):
        pieces.observe(stream[start : start + 7])
    assert whole.profile == pieces.profile


def test_resnet50_in_thirteen_steps_is_found_again() -> None:
    profile = resnet50(25_600_000)
    generation = {i: g.generation_s for i, g in enumerate(profile.gradients)}
    profiler = JobProfiler()
    run(profiler, [generation] * 8, period=1.0)
    assert known(profiler).gradient_ids == tuple(range(161))
    steps = [(step.first, step.last) for step in find_steps(known(profiler))]
    assert steps == [(step.first, step.last) for step in find_steps(profile)]


def test_setting_up_in_another_order_does_not_shift_the_iterations() -> None:
    """Parameters are broadcast in forward order, and the first pushes wait for connections in an order of their own."""
    broadcast = {gradient: 0.1 * gradient for gradient in range(8)}
    setting_up = {7: 0.0, 5: 0.01, 1: 0.02, 0: 0.02, 3: 0.3, 4: 0.6, 2: 0.9, 6: 1.2}
    # The pause before the last step is the longest of backward.
    usual = {7: 0.1, 6: 0.1, 5: 0.2, 4: 0.2, 3: 0.3, 2: 0.3, 1: 0.45, 0: 0.45}
    profiler = JobProfiler()
    rows, began = [], 0.0
    for row in [broadcast, setting_up, setting_up, *[usual] * 10]:
        rows += iteration(began, row)
        began += max(row.values()) + 0.4
    profiler.observe(events(rows))
    assert known(profiler).gradient_ids == tuple(range(8))
    assert profiler.iterations == 12


def with_gaps(every: int, place: int, count: int) -> NDArray[Any]:
    """40 iterations of 12 events, which lose `count` from `place` on in every `every`th."""
    stream = events([row for n in range(40) for row in iteration(n * PERIOD, STEPS, partitions=2)])
    lost = np.zeros(len(stream), bool)
    for began in range(6 * 12, len(stream), every * 12):
        lost[began + place : began + place + count] = True
    after = np.flatnonzero(lost[:-1] & ~lost[1:]) + 1
    stream["gap"][after] = count
    kept: NDArray[Any] = stream[~lost]
    return kept


@pytest.mark.parametrize("place", range(12))
@pytest.mark.parametrize("count", [1, 6, 11, 12, 13, 30])
def test_iterations_that_lack_events_are_passed_over(place: int, count: int) -> None:
    profiler = JobProfiler()
    stream = with_gaps(5, place, count)
    for start in range(0, len(stream), 17):
        profiler.observe(stream[start : start + 17])
    assert known(profiler).gradient_ids == (0, 1, 2, 3, 4, 5)
    assert [g.size_bytes for g in known(profiler).gradients] == [2000] * 6
    assert relative(profiler) == [0.2, 0.2, 0.1, 0.1, 0.0, 0.0]
    assert profiler.jitter_s == pytest.approx(0.0, abs=1e-9), "not one of them is off"
    assert profiler.iterations > 6, "and those in between are learned from"


def test_a_beginning_and_the_end_of_another_are_not_taken_for_an_iteration() -> None:
    profiler = JobProfiler()
    profiler.observe(with_gaps(2, 6, 12))
    assert profiler.iterations == 6, "the ones before the first gap"
    assert relative(profiler) == [0.2, 0.2, 0.1, 0.1, 0.0, 0.0]
    profiler = JobProfiler()
    for n in range(20):
        stream = events(iteration(n * PERIOD, STEPS))
        stream["gap"][0] = 100
        profiler.observe(stream)
    assert profiler.profile is None, "nothing is known of a job whose events are always lost"


def test_the_latest_profile_outlasts_a_restart_until_there_is_a_new_one() -> None:
    profiler = JobProfiler()
    assert profiler.latest is None
    run(profiler, [STEPS] * 8)
    before = profiler.profile
    profiler.restart()
    profiler.restart()
    assert profiler.profile is None
    assert profiler.latest is before is not None
    run(profiler, [{gradient + 10: time_s for gradient, time_s in STEPS.items()}] * 8, began=100.0)
    assert profiler.latest is profiler.profile is not None


def test_backward_does_not_begin_before_the_last_average_is_back() -> None:
    """In VGG-19 steps are few and far apart: a typical one is longer than the time before the first."""
    few = {5: 0.02, 4: 0.02, 3: 0.12, 2: 0.12, 1: 0.3, 0: 0.3}
    profiler = JobProfiler()
    for n in range(9):
        back = pulls(float(n), {0: 0.4, 1: 0.5, 2: 0.6, 3: 0.7, 4: 0.8, 5: 0.99})
        profiler.observe(np.sort(np.concatenate([events(iteration(float(n), few)), back]), order="time_s"))
    assert known(profiler).backward_s == pytest.approx(0.3, abs=0.0101), "and not 0.42"
    assert known(profiler).forward_s == pytest.approx(0.15, rel=0.1), "half of backward, as where nothing says more"


def test_iterations_are_found_again_after_the_slow_rounds_of_a_new_cut() -> None:
    """The first round is seen in part, and the second has its longest pause inside. Blocks of a large gradient come in
    rising order, so ids do not fall in backward.
    """

    def usual(copied_s: float) -> dict[int, float]:
        large = {number: copied_s + number / 1000 for number in range(3, 11)}
        return {11: 0.0, **large, 2: copied_s + 0.04, 1: copied_s + 0.07, 0: copied_s + 0.11}

    profiler = JobProfiler()
    run(profiler, [STEPS] * 6)
    profiler.restart()
    rows, began = [], 100.0
    for row in [{2: 0.0, 1: 0.03, 0: 0.07}, usual(0.5), *[usual(0.09)] * 12]:
        rows += iteration(began, row)
        began += max(row.values()) + 0.3
    profiler.observe(events(rows))
    assert relative(profiler)[0] == pytest.approx(0.2)
    assert profiler.periods_s == pytest.approx(0.5)


def test_backward_begins_where_forward_was_seen_to_end() -> None:
    """VGG-19 has few steps: the first gradients come soon, and the next long after."""
    generation = {3: 0.03, 2: 0.04, 1: 0.3, 0: 0.6}
    guessed, seen = JobProfiler(), JobProfiler()
    for began in np.arange(8) * 1.2:
        # Another forward pass came before it, to look at the model: the last one counts.
        seen.forward_ended([began - 0.1, began])
        for profiler in (guessed, seen):
            profiler.observe(events(iteration(float(began), generation, partitions=1)))
    assert guessed.profile is not None and seen.profile is not None
    assert guessed.profile.backward_s > 0.8
    assert [gradient.generation_s for gradient in seen.profile.gradients] == pytest.approx([0.6, 0.3, 0.04, 0.03])
    assert seen.profile.forward_s == pytest.approx(0.6, abs=0.02)


def test_forward_times_that_were_traced_stay_while_the_rest_is_learned() -> None:
    profiler = JobProfiler()
    began = run(profiler, [STEPS] * 6)
    profiler.traced({0: 0.5, 3: 0.25})
    run(profiler, [STEPS] * 4, began)
    profile = profiler.profile
    assert profile is not None and [g.forward_s for g in profile.gradients][::3] == [0.5, 0.25]
    profiler.traced({})
    assert known(profiler).gradients[0].forward_s < 0.5


def test_of_other_ids_nothing_was_traced() -> None:
    profiler = JobProfiler()
    began = run(profiler, [STEPS] * 6)
    profiler.traced({0: 0.5})
    profiler.restart()
    run(profiler, [STEPS] * 8, began)
    assert known(profiler).gradients[0].forward_s < 0.5


def told(rounds: int, generation: dict[int, float] = STEPS, began: float = 0.0) -> tuple[NDArray[Any], list[float]]:
    """Return events and ends of rounds, all of whose gradients come twice: each of two backward passes makes half."""
    passes = [{g: t for g, t in generation.items() if g % 2 == odd} for odd in (1, 0)]
    starts = [began + number * PERIOD for number in range(rounds)]
    rows = [
        row for start in starts for place, half in enumerate(passes) for row in iteration(start + 0.1 * place, half)
    ]
    return events(rows), [start + 0.41 for start in starts]


def test_an_engine_that_tells_where_rounds_end_has_a_profile_after_its_second_round() -> None:
    profiler = JobProfiler(warm_up=1, sees_rounds=True)
    stream, ends = told(2)
    profiler.forward_ended([-0.05, PERIOD - 0.05])
    for start in range(0, len(stream), 5):
        piece = stream[start : start + 5]
        last = piece["time_s"][-1] if start + 5 < len(stream) else np.inf
        due = [end for end in ends if end <= last]
        ends = ends[len(due) :]
        assert not profiler.ready
        profiler.observe(piece, due)
    assert profiler.ready and profiler.iterations == 2, "without an event of the third round"
    assert [g.generation_s for g in known(profiler).gradients] == pytest.approx([0.45, 0.35, 0.35, 0.25, 0.25, 0.15])
    assert 0.03 <= known(profiler).forward_s <= PERIOD - 0.45, "between the ends of one backward pass and a forward"


@pytest.mark.parametrize("lost", [range(3, 9), range(8, 14), range(20, 23)])
def test_rounds_that_lack_events_are_passed_over_where_their_ends_are_told(lost: range) -> None:
    profiler = JobProfiler(warm_up=1, sees_rounds=True)
    stream, ends = told(8)
    stream["gap"][lost.stop] = len(lost)
    kept = np.delete(stream, lost)
    for first, end in ((0, 4), (4, 8)):
        since_s, until_s = first * PERIOD, end * PERIOD
        within = (since_s <= kept["time_s"]) & (kept["time_s"] < until_s)
        profiler.observe(kept[within], ends[first:end])
    assert [g.size_bytes for g in known(profiler).gradients] == [1000] * 6
    assert relative(profiler) == pytest.approx([0.3, 0.2, 0.2, 0.1, 0.1, 0.0])
    assert profiler.jitter_s == pytest.approx(0.0, abs=1e-9)
    assert profiler.iterations == 4


def test_of_a_round_that_began_before_a_restart_nothing_counts() -> None:
    profiler = JobProfiler(warm_up=1, sees_rounds=True)
    profiler.observe(*told(3))
    other = {gradient + 10: time_s for gradient, time_s in STEPS.items()}
    stream, ends = told(3, other, began=10.0)
    profiler.restart(stream[:4])  # Nobody tells if these are the round's first ones.
    profiler.observe(stream[4:], ends)
    assert profiler.iterations == 2
    former, former_ends = told(1, began=20.0)
    stream, ends = told(2, began=21.0)
    profiler.restart(np.concatenate([former, stream[:4]]), former_ends)
    profiler.observe(stream[4:], ends)
    assert profiler.iterations == 2, "the new round was seen from its beginning"
    assert set(known(profiler).gradient_ids) == set(STEPS)
