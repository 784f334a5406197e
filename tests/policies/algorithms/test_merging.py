"""The cut of a job whose iterations wait for all averages."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from prophet_papers.mg_wfbp import best_merge
from prophet_scheduler.core.arena import profile_under
from prophet_scheduler.core.choice import Question, Shape
from prophet_scheduler.core.cut import (
    MOST_SEGMENT_BYTES,
    MOST_SEGMENTS,
    UNIT_BYTES,
    Cut,
    arena_places,
    blocks_of,
    learning_cut,
)
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.policies.algorithms.chooser import SIZES
from prophet_scheduler.policies.algorithms.collective import ArrivalOrder, CollectivePolicy, ForwardOrder
from prophet_scheduler.policies.algorithms.merging import EXACT, LATE, fewest_groups, merged_cut
from prophet_scheduler.policies.algorithms.sequence import iteration_s, learning_sizes, make_sequence
from support.merges import end_s
from support.profiles import resnet50

UNIT = Network(1.0, 1.0)
"""A second a byte, and a second a message."""


def groups_of(firsts: Sequence[int], count: int) -> list[list[int]]:
    """Return groups as in mg_wfbp.py: in sending order, each as positions in order of generation."""
    pairs = list(itertools.pairwise([*firsts, count]))
    return [list(reversed(range(start, stop))) for start, stop in reversed(pairs)]


def all_firsts(count: int) -> list[list[int]]:
    inner = range(1, count)
    return [[0, *some] for number in range(count) for some in itertools.combinations(inner, number)]


@pytest.mark.parametrize("seed", range(40))
def test_no_merging_ends_earlier_or_as_early_with_fewer_messages(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.randint(1, 7)
    ready_s = sorted((chance.uniform(0.0, 20.0) for _ in range(count)), reverse=True)
    sizes = [chance.randint(1, 8) for _ in range(count)]
    firsts = fewest_groups(ready_s, sizes, UNIT)
    ends = {tuple(each): end_s(groups_of(each, count), ready_s, sizes, UNIT) for each in all_firsts(count)}
    least_s = end_s(best_merge(ready_s, sizes, UNIT), ready_s, sizes, UNIT)
    assert least_s == pytest.approx(min(ends.values()))
    assert ends[tuple(firsts)] <= least_s / (1 - 2 * EXACT)
    assert len(firsts) == min(len(each) for each, took_s in ends.items() if took_s <= ends[tuple(firsts)])


def test_an_extra_cost_of_messages_makes_them_fewer() -> None:
    ready_s, sizes = [9.0, 6.0, 3.0, 0.0], [1, 1, 1, 1]
    assert fewest_groups(ready_s, sizes, Network(1.0, 0.1)) == [0, 1, 3], "the second and the third are back in time"
    slow = Network(0.1, 0.1)
    assert len(fewest_groups(ready_s, sizes, slow)) > 1
    assert fewest_groups(ready_s, sizes, slow, 40.0) == [0]


PROFILE = resnet50(25_600_000, backward_s=0.3, forward_s=0.3)


def predicted_s(cut: Cut, profile: Profile, network: Network) -> float:
    blocks = profile_under(profile, cut)
    return iteration_s(blocks, make_sequence(blocks, network, ArrivalOrder().plan(blocks, network)), barrier=True)


@pytest.mark.parametrize("rate", [15e6, 31.25e6, 125e6, 312.5e6])
@pytest.mark.parametrize("overhead_s", [0.2e-3, 2e-3])
def test_the_cut_is_as_good_as_the_best_uniform_one_with_few_blocks(rate: float, overhead_s: float) -> None:
    network = Network(rate, overhead_s)
    cut = merged_cut(PROFILE, network)
    by_size = {Cut.uniform(size): predicted_s(Cut.uniform(size), PROFILE, network) for size in SIZES}
    best = min(by_size, key=by_size.__getitem__)
    assert predicted_s(cut, PROFILE, network) <= by_size[best] * 1.01
    assert len(profile_under(PROFILE, cut).gradients) <= 16


def test_the_wire_is_busy_from_the_first_gradient_on() -> None:
    """This holds even if backward is late by the expected share."""
    network = Network(31.25e6, 0.2e-3)
    cut = merged_cut(PROFILE, network)
    slower = replace(
        PROFILE,
        gradients=tuple(replace(g, generation_s=g.generation_s * (1 + LATE)) for g in PROFILE.gradients),
    )
    for profile in (PROFILE, slower):
        blocks = profile_under(profile, cut)
        first_s = min(gradient.generation_s for gradient in profile.gradients)
        carried_s = sum(network.transfer_s(gradient.size_bytes) for gradient in blocks.gradients)
        assert predicted_s(cut, profile, network) <= (first_s + carried_s + profile.forward_s) * 1.005


def test_the_cut_follows_from_a_profile_of_other_blocks_in_any_order() -> None:
    """Two blocks generated at nearly the same time may be learned in the wrong order."""
    network = Network(31.25e6, 0.2e-3)
    total = PROFILE.total_bytes
    blocks = profile_under(PROFILE, learning_cut(total, learning_sizes(total)))
    cut = merged_cut(blocks, network)
    rows = list(zip(blocks.gradients, blocks.gradient_ids, strict=True))
    rows[2], rows[3] = rows[3], rows[2]
    swapped = Profile("learned", tuple(row for row, _ in rows), tuple(id_ for _, id_ in rows))
    assert merged_cut(swapped, network) == cut
    assert all(segment.block_bytes <= MOST_SEGMENT_BYTES for segment in cut.segments)
    places = arena_places(gradient.size_bytes for gradient in blocks.gradients)
    for segment in cut.segments:
        assert min(abs(segment.start - UNIT_BYTES / 2 - place) for place in places) <= UNIT_BYTES / 2
    assert sum(block.size_bytes for block in blocks_of([total], [0], cut)) == total


def test_no_second_message_without_a_gain() -> None:
    small = resnet50(2_000_000, backward_s=0.3, forward_s=0.3)
    assert len(profile_under(small, merged_cut(small, Network(1e12, 1.0))).gradients) == 1
    tiny = Profile("learned", (GradientProfile("a", 8200, 0.2), GradientProfile("b", 100, 0.1)), (0, 3))
    assert len(merged_cut(tiny, Network(1e4, 1e-4)).segments) == 1, "nothing can begin within the last bytes"


def test_no_block_is_tiny() -> None:
    network = Network(31.25e6, 0.2e-3)
    sizes = [gradient.size_bytes for gradient in PROFILE.gradients]
    cut = merged_cut(PROFILE, network)
    blocks = blocks_of(sizes, [0] * len(sizes), cut)
    assert min(block.size_bytes for block in blocks) > 0.01 * sum(sizes)


def test_the_number_of_segments_is_limited() -> None:
    rows = [GradientProfile(str(place), 4096, 1000.0 - place) for place in range(900)]
    cut = merged_cut(Profile("learned", tuple(rows), tuple(range(900))), Network(4096.0 / (1 + LATE), 1e-9))
    assert 100 < len(cut.segments) <= MOST_SEGMENTS


def test_the_merged_cut_is_tried_behind_a_barrier() -> None:
    network = Network(31.25e6, 0.2e-3)
    cuts = {}
    for barrier in (False, True):
        question = Question(PROFILE, network, Shape(2, 1), (Cut.uniform(1 << 20),), anew=True, barrier=barrier)
        search = CollectivePolicy(ForwardOrder(), ArrivalOrder()).search(question)
        while not search.work(1 << 40):
            pass
        cuts[barrier] = {choice.cut for choice in search.choices}
    merged = merged_cut(PROFILE, network)
    assert cuts[True] == {merged, Cut.uniform(1 << 20)}
    assert merged not in cuts[False]
