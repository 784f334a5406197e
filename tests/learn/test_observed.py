"""Times of a job that is only watched, from looks whose medians can be computed by hand."""

from __future__ import annotations

import pytest

from prophet_scheduler.learn.observed import (
    FIRST,
    LEAST,
    BackwardPass,
    Collective,
    ShardedIterations,
    TimedIteration,
    in_forward_order,
    message_s,
    times_of,
)


def looks(*waited_s: float, every: int = 1) -> list[TimedIteration]:
    """Return a look for each `every` iterations of 0.5 s, 0.125 s of it in backward, from the first that counts."""
    numbers = [FIRST + place * every for place in range(len(waited_s))]
    return [
        TimedIteration(number, 100 + 0.5 * number, 0.125, wait) for number, wait in zip(numbers, waited_s, strict=True)
    ]


def test_one_rank_alone_takes_all_waits_for_the_networks() -> None:
    times = times_of(looks(0.2, 0.1, 0.3, 0.2, 0.2, every=10))
    assert times is not None and times.looks == 5
    assert times.iteration_s == pytest.approx(0.5) and times.backward_s == 0.125
    assert times.network_s == 0.2 and times.others_s == 0
    assert times.share == pytest.approx(0.4)
    assert times.error_s == pytest.approx((0.02 / 4 / 5) ** 0.5), "two are off by 0.1 s"


def test_what_the_slowest_rank_waits_is_the_networks_and_the_rest_is_for_the_slowest() -> None:
    mine = looks(0.3, 0.3, 0.3, 0.3, 0.3)
    others = [{FIRST + place: wait for place in range(5)} for wait in (0.25, 0.05)]
    times = times_of(mine, others)
    assert times is not None
    assert times.network_s == pytest.approx(0.05) and times.others_s == pytest.approx(0.25)
    assert times_of(mine, [dict.fromkeys(range(20), 0.9)]) == times_of(mine), "this rank may be the slowest"


def test_iterations_that_a_rank_did_not_see_do_not_count() -> None:
    mine = looks(*[0.1] * (LEAST + 1))
    seen = {look.iteration: 0.1 for look in mine}
    seen.pop(FIRST + 1)
    times = times_of(mine, [seen])
    assert times is not None and times.looks == LEAST
    assert times.iteration_s == pytest.approx(0.5), "also over the gap"
    seen.pop(FIRST)
    assert times_of(mine, [seen]) is None


def test_first_iterations_do_not_count() -> None:
    cold = [TimedIteration(number, 10.0 * number, 5.0, 5.0) for number in range(1, FIRST)]
    warm = looks(*[0.1] * LEAST)
    assert times_of(cold + warm) == times_of(warm)
    assert times_of(cold * 3) is None


def test_gradients_in_forward_order_end_with_backward() -> None:
    assert in_forward_order([(1, 4, 2), (3, 4, 2), (2, 4, 2)], 0.5) == ([1, 0, 2], (0.5, 0.25, 0.25))
    assert in_forward_order([(0, 0)], 0.5) == ([0, 1], (0.0, 0.0)), "no pass took any time"


def sharded(
    iterations: ShardedIterations, began_s: float, *, keeps: bool = False
) -> tuple[TimedIteration, BackwardPass] | None:
    """Run an iteration of two modules on a clock of our own: 0.1 s for each collective, 0.2 s forward and 0.4 s
    backward for each module. Returns what the next forward pass ends.
    """
    now = began_s

    def collective(what: Collective, size_bytes: int, backward: bool) -> None:
        nonlocal now
        iterations.waited(what, size_bytes, now, now + 0.1, backward)
        now += 0.1

    iterations.forward_begins(now)
    for size in (40, 60):
        collective(Collective.GATHER, size, False)
        now += 0.2
        iterations.forward_ends(now)
    for size in (60, 40):
        if not keeps:
            collective(Collective.GATHER, size, True)
        now += 0.4
        collective(Collective.REDUCE, size, True)
    return iterations.forward_begins(now + 0.05)


def test_an_iteration_of_sharded_modules_is_what_lies_between_two_forward_passes() -> None:
    iterations = ShardedIterations()
    found = sharded(iterations, 10.0)
    assert found is not None
    timed, passed = found
    assert timed.iteration == 0 and timed.begun_s == 10.0
    assert timed.waited_s == pytest.approx(0.6), "six collectives"
    assert timed.backward_s == pytest.approx(0.8)
    assert passed.sizes == (60, 40) and passed.made_s == pytest.approx((0.4, 0.8)), "without the waits"
    assert passed.again == 2
    after = sharded(iterations, 20.0, keeps=True)
    assert after is not None
    assert after[0].iteration == 1 and after[0].begun_s == pytest.approx(11.85) and after[1].again == 0


def test_a_sum_of_replicas_that_follows_a_reduction_is_of_the_same_module() -> None:
    iterations = ShardedIterations()
    iterations.forward_begins(0.0)
    iterations.forward_ends(1.0)
    for begun_s, what, size in (
        (2.0, Collective.REDUCE, 8),
        (2.5, Collective.ALL_REDUCE, 4),
        (4.0, Collective.REDUCE, 6),
        (4.5, Collective.ALL_REDUCE, 3),
    ):
        iterations.waited(what, size, begun_s, begun_s + 0.5, True)
    found = iterations.forward_begins(6.0)
    assert found is not None and found[1] == BackwardPass((8, 6), (1.0, 2.0), 0, ((4, 0.5), (3, 0.5)))


def test_replicas_alone_have_the_sums_sizes() -> None:
    iterations = ShardedIterations()
    iterations.forward_begins(0.0)
    iterations.forward_ends(1.0)
    for begun_s, size in ((2.0, 8), (4.0, 6)):
        iterations.waited(Collective.ALL_REDUCE, size, begun_s, begun_s + 0.5, True)
    found = iterations.forward_begins(6.0)
    assert found is not None and found[1] == BackwardPass((8, 6), (1.0, 2.5), 0, ((8, 0.5), (6, 0.5)))


def passes_of(*times_s: tuple[float, ...], sizes: tuple[int, ...] = (100, 300, 1000)) -> list[BackwardPass]:
    return [BackwardPass(sizes, sizes, 0, tuple(zip(sizes, each, strict=True))) for each in times_s]


def test_a_message_takes_what_a_sum_without_bytes_would() -> None:
    """Three ranks: four messages a sum, 0.02 s each, and 0.001 s a byte. One pass of three is slow."""
    assert message_s(passes_of((0.18, 0.38, 1.08)), 3) == pytest.approx(0.02)
    assert message_s(passes_of((0.18, 0.38, 1.08), (0.9, 0.9, 2.0), (0.18, 0.38, 1.08)), 3) == pytest.approx(0.02)
    assert message_s(passes_of((0.1, 0.3, 1.0)), 3) == pytest.approx(0.0)
    assert message_s(passes_of((0.1, 0.35, 1.5)), 2) == 0.0, "a line that begins below zero"
    assert message_s(passes_of((0.7, 0.35, 0.6)), 2) == 0.175, "no more than the shortest takes"


def test_sums_of_like_sizes_do_not_tell_what_a_message_takes() -> None:
    assert message_s(passes_of((0.1, 0.2, 0.3), sizes=(100, 150, 199)), 2) is None
    assert message_s(passes_of((0.1,), sizes=(100,)), 2) is None


def test_passes_that_reduce_nothing_are_of_the_same_iteration() -> None:
    iterations = ShardedIterations()
    assert iterations.forward_begins(0.0) is None
    iterations.waited(Collective.GATHER, 4, 0.0, 0.1, False)
    assert iterations.forward_begins(1.0) is None, "an accumulation"
    found = sharded(iterations, 2.0)
    assert found is not None and found[0].begun_s == 0.0 and found[0].waited_s == pytest.approx(0.7)


def test_a_collective_before_any_forward_pass_does_not_count() -> None:
    iterations = ShardedIterations()
    iterations.waited(Collective.REDUCE, 4, 0.0, 0.1, True)
    assert iterations.forward_begins(1.0) is None
