"""Caramel's parts by hand, against their text, and against every order on small cases; and the policy."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from prophet.core.errors import UserError
from prophet.core.events import QueueKind
from prophet.core.graph import Graph, Operation, OperationKind, training_graph
from prophet.core.network import Network
from prophet.core.plan import Deadline, Plan
from prophet.core.profile import GradientProfile, Profile
from prophet.models.profiles import resnet50
from prophet.policies.algorithms.caramel import (
    Batch,
    PackedSlot,
    Place,
    Window,
    Windows,
    activations,
    adaptive_depth,
    batch,
    best_depth,
    best_order,
    chunks,
    communication_ratio,
    control_dependencies,
    enforce,
    fit_network,
    iteration_s,
    overlap_coefficient,
    pack,
    pipelined_s,
    threshold_bytes,
    utilisation,
    windows_of_graph,
    windows_of_profile,
)
from prophet.policies.caramel import Caramel
from support.lanes import ScheduledQueue

UNIT = Network(1.0)
"""One byte a second without overhead: bytes are seconds."""


def graph(computing: Mapping[str, tuple[float, str]], transfers: Mapping[str, str]) -> Graph:
    """`computing`: seconds, and the inputs as one text. `transfers`: the inputs."""
    return Graph(
        "test",
        (
            *(Operation(n, OperationKind.COMPUTE, tuple(i.split()), t) for n, (t, i) in computing.items()),
            *(Operation(n, OperationKind.TRANSFER, tuple(i.split()), size_bytes=1) for n, i in transfers.items()),
        ),
    )


@st.composite
def graphs(draw: st.DrawFn, most: int = 7) -> Graph:
    """Computing that waits for some of what came before it, and transfers that wait for some of that."""
    count = draw(st.integers(2, most))
    names = [f"c{i}" for i in range(count)]
    computing = {
        name: (float(draw(st.integers(1, 4))), " ".join(draw(st.sets(st.sampled_from(names[:i] or [""]), max_size=2))))
        for i, name in enumerate(names)
    }
    transfers = {
        f"t{i}": " ".join(draw(st.sets(st.sampled_from(names), min_size=1, max_size=3)))
        for i in range(draw(st.integers(1, 4)))
    }
    return graph(computing, transfers)


def executions(given_graph: Graph) -> Iterator[tuple[str, ...]]:
    """Every order in which one processor could do the computing."""
    computing = given_graph.computing

    def extend(done: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if len(done) == len(computing):
            yield done
        for operation in computing:
            if operation.name not in done and set(operation.inputs) <= set(done):
                yield from extend((*done, operation.name))

    yield from extend(())


def ready_times(given_graph: Graph, execution: Sequence[str]) -> dict[str, float]:
    """When each transfer becomes ready; transfers of these graphs wait for computing only."""
    now, ends = 0.0, {}
    for name in execution:
        now += given_graph[name].time_s
        ends[name] = now
    return {transfer.name: max(ends[name] for name in transfer.inputs) for transfer in given_graph.transfers}


# ---- the best order


# Two branches after a: b (2 s) gives t1; c (1 s), then d (3 s) give t2 and, with e (1 s), t3.
BRANCHES = graph(
    {"a": (1.0, ""), "b": (2.0, "a"), "c": (1.0, "a"), "d": (3.0, "c"), "e": (1.0, "d")},
    {"t3": "e", "t2": "d", "t1": "b", "t0": "c"},
)


def test_the_order_by_hand() -> None:
    # From nothing: t0 costs a+c = 2, t1 a+b = 3. Then t1 costs b = 2, t2 d = 3; then t2 3, t3 4; then t3 1.
    assert best_order(BRANCHES) == ("t0", "t1", "t2", "t3")
    assert [(a.computed, a.time_s) for a in activations(BRANCHES)] == [
        (("a", "c"), 2.0),
        (("b",), 4.0),
        (("d",), 7.0),
        (("e",), 8.0),
    ]


def test_what_is_on_the_way_goes_first_even_if_it_costs_the_same() -> None:
    zero = graph({"a": (1.0, ""), "z": (0.0, "a")}, {"late": "z", "early": "a"})
    assert best_order(zero) == ("early", "late")


def test_a_chain_is_ready_from_its_end_to_its_start() -> None:
    profile = Profile("p", tuple(GradientProfile(f"g{i}", 1, 3.0 - i, 0.5) for i in range(3)))
    assert best_order(training_graph(profile)) == ("transfer.2", "transfer.1", "transfer.0")


def test_a_tenth_of_a_second_three_times_ties_with_three_tenths() -> None:
    tenths = graph({"a": (0.1, ""), "b": (0.1, "a"), "c": (0.1, "b"), "d": (0.3, "")}, {"one": "d", "three": "c"})
    assert best_order(tenths) == ("one", "three"), "equal cost, fewer operations"


def greedy_by_the_text(given_graph: Graph) -> list[float]:
    """Section 4.1 with sets of names: the cost of each step."""

    def closure(name: str) -> set[str]:
        inputs = given_graph[name].inputs
        return set(inputs).union(*(closure(one) for one in inputs))

    left = {transfer.name: closure(transfer.name) for transfer in given_graph.transfers}
    done: set[str] = set()
    costs = []
    while left:
        cost = {name: sum(given_graph[one].time_s for one in needs - done) for name, needs in left.items()}
        chosen = min(left, key=lambda name: (cost[name], len(left[name] - done), list(left).index(name)))
        costs.append(cost[chosen])
        done |= left.pop(chosen)
    return costs


@given(graphs())
def test_the_order_is_the_papers_greedy(given_graph: Graph) -> None:
    found = activations(given_graph)
    assert np.diff([0.0, *(a.time_s for a in found)]) == pytest.approx(greedy_by_the_text(given_graph))
    assert found[0].time_s == min(min(ready_times(given_graph, e).values()) for e in executions(given_graph))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_of_parameters_that_share_nothing_no_order_has_an_earlier_mean(costs: list[int]) -> None:
    apart = graph({f"c{i}": (float(c), "") for i, c in enumerate(costs)}, {f"t{i}": f"c{i}" for i in range(len(costs))})
    best = min(sum(itertools.accumulate(order)) for order in itertools.permutations(costs))
    assert sum(a.time_s for a in activations(apart)) == pytest.approx(best)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (("t0", "t1", "t2"), "must have each of the 4 transfers once; look at 't3'"),
        (("t0", "t1", "t2", "t3", "t3"), "must have each of the 4 transfers once; look at 't3'"),
        (("t0", "t1", "t2", "a"), "look at 'a'"),
    ],
)
def test_an_order_of_something_else(order: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        activations(BRANCHES, order)


def test_a_transfer_goes_after_the_transfer_that_it_waits_for() -> None:
    chained = graph({"a": (1.0, ""), "b": (0.0, "first")}, {"second": "b", "first": "a"})
    assert best_order(chained) == ("first", "second")
    with pytest.raises(UserError, match="'second' waits for 'first'; put it after that"):
        enforce(chained, ("second", "first"))


# ---- its enforcement


def test_the_dependencies_by_hand() -> None:
    # The end sets are {c}, {b}, {d}; the free sets after them {b}, {d}, {e}, of which e waits for d already.
    assert control_dependencies(BRANCHES) == {"b": ("c",), "d": ("b",)}
    assert list(executions(enforce(BRANCHES))) == [("a", "c", "b", "d", "e")]
    # Turned round, nothing of b may start before e has ended, and c waits for a already.
    assert control_dependencies(BRANCHES, ("t3", "t2", "t0", "t1")) == {"b": ("e",)}


def test_an_operation_that_no_parameter_needs_comes_last() -> None:
    metric = graph({"a": (1.0, ""), "b": (1.0, "a"), "metric": (9.0, "")}, {"t1": "b", "t0": "a"})
    assert control_dependencies(metric) == {"metric": ("b",)}


def test_the_next_forward_pass_gets_nothing_more_to_wait_for() -> None:
    assert control_dependencies(training_graph(resnet50(25_600_000))) == {}


@settings(deadline=None, max_examples=60)
@given(graphs(6))
def test_every_execution_is_the_best_one_and_no_dependency_is_spare(given_graph: Graph) -> None:
    enforced = enforce(given_graph)
    best = {a.transfer: a.time_s for a in activations(given_graph)}
    allowed = set(executions(given_graph))
    for execution in executions(enforced):
        assert execution in allowed, "what was there to wait for is kept"
        assert ready_times(given_graph, execution) == best
    added = control_dependencies(given_graph)
    for name, more in added.items():
        for one in more:
            fewer = {**added, name: tuple(other for other in more if other != one)}
            weaker = Graph(
                "weaker", tuple(replace(o, inputs=(*o.inputs, *fewer.get(o.name, ()))) for o in given_graph.operations)
            )
            assert any(ready_times(weaker, execution) != best for execution in executions(weaker)), (name, one)


@given(graphs(), st.randoms(use_true_random=False))
def test_any_order_can_be_enforced(given_graph: Graph, random: Random) -> None:
    order = [transfer.name for transfer in given_graph.transfers]
    random.shuffle(order)
    times = {a.transfer: a.time_s for a in activations(given_graph, order)}
    execution = next(executions(enforce(given_graph, order)))
    # A parameter that is ready on the way to an earlier one of the order may be ready sooner.
    assert all(t <= times[name] for name, t in ready_times(given_graph, execution).items())


# ---- windows


def test_windows_by_hand() -> None:
    profile = Profile("p", (GradientProfile("a", 1, 3.0, 0.5), GradientProfile("b", 2, 1.0, 0.25)))
    windows = windows_of_profile(profile)
    assert windows == Windows((Window("b", 2, 1.0, 0.5), Window("a", 1, 3.0, 0.0)), 3.0, 0.75)
    assert [windows.length_s(w) for w in windows.parameters] == [2.5, 0.0]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=8))
def test_a_profile_and_its_graph_have_the_same_windows(rows: list[tuple[int, int, int]]) -> None:
    rows.sort(key=lambda row: -row[1])
    profile = Profile("p", tuple(GradientProfile(f"g{i}", s, c / 8, f / 8) for i, (s, c, f) in enumerate(rows)))
    from_graph, from_profile = windows_of_graph(training_graph(profile)), windows_of_profile(profile)
    assert [w.name for w in from_graph.parameters] == [f"transfer.{i}" for i in reversed(range(len(rows)))]
    assert [replace(w, name="") for w in from_graph.parameters] == [
        replace(w, name="") for w in from_profile.parameters
    ]
    assert (from_graph.backward_s, from_graph.forward_s) == (from_profile.backward_s, from_profile.forward_s)


def test_a_parameter_that_nothing_reads_may_travel_until_the_end() -> None:
    assert windows_of_graph(graph({"b": (1.0, ""), "f": (2.0, "b t0")}, {"t0": "b", "t1": "b"})).parameters == (
        Window("t0", 1, 1.0, 0.0),
        Window("t1", 1, 1.0, 2.0),
    )


def test_a_graph_that_receives_before_it_computes_has_no_windows() -> None:
    with pytest.raises(
        UserError, match="'b' waits for transfer 'parameter' and transfers wait for it; give a graph of"
    ):
        windows_of_graph(graph({"b": (1.0, "parameter")}, {"parameter": "", "gradient": "b"}))


# ---- the network model and batching


def test_the_network_model_is_the_line_through_its_samples() -> None:
    line = Network(1.25e9, 2e-4)
    sizes = (64, 64, 4 * 1024 * 1024)
    fitted = fit_network((size, line.transfer_s(size)) for size in sizes)
    assert fitted.bandwidth == pytest.approx(1.25e9)
    assert fitted.overhead_s == pytest.approx(2e-4)
    assert fit_network([(0, 1.0), (0, 3.0), (10, 12.0)]).transfer_s(5) == pytest.approx(7.0)
    assert fit_network([(1, 0.5), (2, 2.0)]).overhead_s == 0.0
    with pytest.raises(UserError, match="samples: 1 sizes"):
        fit_network([(64, 1.0), (64, 2.0)])
    with pytest.raises(UserError, match="larger transfers take no longer"):
        fit_network([(64, 1.0), (128, 1.0)])


@given(st.floats(1e-6, 1e-1), st.floats(1e3, 1e11), st.floats(0.5, 0.99))
def test_the_threshold_is_the_papers(overhead_s: float, bandwidth: float, gain: float) -> None:
    line = Network(bandwidth, overhead_s)
    threshold = threshold_bytes(line, gain)

    def joined(size: float) -> float:
        return line.transfer_s(2 * size) / (2 * line.transfer_s(size))

    assert joined(threshold) == pytest.approx(gain)
    assert joined(threshold * 0.9) <= joined(threshold) <= joined(threshold * 1.1)
    assert threshold_bytes(line) == pytest.approx(1.5 * overhead_s * bandwidth)


@pytest.mark.parametrize("gain", [0.4, 1.0])
def test_a_gain_without_a_threshold(gain: float) -> None:
    with pytest.raises(UserError, match="gain is"):
        threshold_bytes(UNIT, gain)


def parameters(*rows: tuple[int, float]) -> list[Window]:
    """(bytes, generated_s), to be read in the reverse order."""
    return [Window(f"p{i}", size, at, float(len(rows) - i)) for i, (size, at) in enumerate(rows)]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # An idle network takes a parameter at once.
        ([(1, 0.0), (1, 9.0)], [[0], [1]]),
        # The first of 1 + 2 s keeps it busy till 3, so those of 1 and 2 are joined; at 3 it is free before 4.
        ([(2, 0.0), (1, 1.0), (1, 2.0), (1, 4.0)], [[0], [1, 2], [3]]),
        # Above the threshold of 5 bytes: alone, and ahead of a batch that is open.
        ([(4, 0.0), (1, 1.0), (9, 2.0), (1, 3.0)], [[0], [2], [1, 3]]),
        # More than 5 bytes together: the batch is closed and waits its turn.
        ([(20, 0.0), (3, 1.0), (3, 2.0), (3, 3.0), (1, 40.0)], [[0], [1, 2], [3], [4]]),
        # What appears together is joined.
        ([(1, 1.0), (1, 1.0), (1, 1.0)], [[0, 1, 2]]),
    ],
)
def test_batches_by_hand(rows: list[tuple[int, float]], expected: list[list[int]]) -> None:
    assert [list(one.members) for one in batch(parameters(*rows), Network(1.0, 1.0), 5.0)] == expected


def test_a_batch_is_ready_with_its_last_and_read_with_its_first_member() -> None:
    assert batch(parameters((1, 1.0), (2, 1.0)), UNIT, 5.0) == (Batch((0, 1), 3, 1.0, 1.0),)


def test_a_network_without_overhead_joins_nothing() -> None:
    assert [one.members for one in batch(parameters((1, 0.0), (1, 0.0)), UNIT)] == [(0,), (1,)]


def test_parameters_in_another_order() -> None:
    with pytest.raises(UserError, match="'p1' is generated before 'p0'; sort them by generated_s"):
        batch(parameters((1, 1.0), (1, 0.0)), UNIT)


ROWS = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 20)), min_size=1, max_size=12)


@given(ROWS, st.integers(0, 20), st.integers(0, 3))
def test_every_parameter_is_in_exactly_one_batch(rows: list[tuple[int, int]], threshold: int, overhead: int) -> None:
    given_parameters = parameters(*((size, float(at)) for size, at in sorted(rows, key=lambda row: row[1])))
    batches = batch(given_parameters, Network(1.0, float(overhead)), float(threshold))
    assert sorted(place for one in batches for place in one.members) == list(range(len(rows)))
    for one in batches:
        members = [given_parameters[place] for place in one.members]
        assert one.size_bytes == sum(p.size_bytes for p in members)
        assert one.generated_s == max(p.generated_s for p in members)
        assert one.read_s == min(p.read_s for p in members)
        if len(members) > 1:
            assert all(p.size_bytes <= threshold for p in members)
            assert sum(p.size_bytes for p in members[:-1]) <= threshold, "closed when it exceeds the threshold"


# ---- packing


def batches_of(*rows: tuple[int, float, float]) -> list[Batch]:
    """(bytes, generated_s, read_s)."""
    return [Batch((i,), size, at, read) for i, (size, at, read) in enumerate(rows)]


def test_the_four_places_by_hand() -> None:
    # Backward [0, 10], forward [0, 6]. 0 (6 s) is the largest: [2, 8]. 1 (5 s) does not fit after it, but before it
    # is read at 6: [1, 6] of forward. 2 (4 s) fits in neither: after backward it takes 2 s of what is left at [8, 10]
    # and the gap grows by 2, before forward it could use 1 s and the gap would grow by 3. 3 (3 s) is read at 1:
    # after backward it would cost 3, before forward 2. 4 (2 s) fits at the start, [0, 2].
    rows = batches_of((6, 2.0, 6.0), (5, 8.0, 6.0), (4, 8.0, 1.0), (3, 8.0, 1.0), (2, 0.0, 0.0))
    packed = pack(rows, 10.0, 6.0, UNIT)
    assert packed.gap_s == 4.0
    assert packed.slots == (
        PackedSlot(4, Place.BACKWARD, 0.0, 2.0),
        PackedSlot(0, Place.BACKWARD, 2.0, 8.0),
        PackedSlot(2, Place.AFTER_BACKWARD, 8.0, 12.0),
        PackedSlot(3, Place.BEFORE_FORWARD, 12.0, 15.0),
        PackedSlot(1, Place.FORWARD, 15.0, 20.0),
    )
    assert (packed.computation_s, packed.communication_s, packed.iteration_s) == (16.0, 20.0, 20.0)


def test_without_the_forward_pass_the_rest_waits_after_backward() -> None:
    rows = batches_of((6, 2.0, 6.0), (5, 8.0, 6.0))
    packed = pack(rows, 10.0, 6.0, UNIT, forward=False)
    assert packed.slots == (PackedSlot(0, Place.BACKWARD, 2.0, 8.0), PackedSlot(1, Place.AFTER_BACKWARD, 8.0, 13.0))
    assert packed.gap_s == 3.0
    assert pack(rows, 10.0, 6.0, UNIT).gap_s == 0.0


def test_the_backward_pass_is_filled_from_its_start_and_the_forward_pass_from_its_end() -> None:
    packed = pack(batches_of((3, 0.0, 0.0), (2, 0.0, 0.0), (2, 4.5, 4.0), (1, 4.5, 3.0)), 5.0, 4.0, UNIT)
    assert packed.slots == (
        PackedSlot(0, Place.BACKWARD, 0.0, 3.0),
        PackedSlot(1, Place.BACKWARD, 3.0, 5.0),
        PackedSlot(3, Place.FORWARD, 6.0, 7.0),
        PackedSlot(2, Place.FORWARD, 7.0, 9.0),
    )


def test_a_model_without_a_forward_pass() -> None:
    packed = pack(batches_of((1, 0.0, 0.0), (1, 1.0, 0.0)), 1.0, 0.0, UNIT)
    assert (packed.gap_s, packed.iteration_s) == (1.0, 2.0)


def least_gap(rows: Sequence[Batch], backward_s: float, network: Network) -> float:
    """Over every order of transfers that are not cut: how far the forward pass must move for all to be in time."""
    best = float("inf")
    for order in itertools.permutations(rows):
        now = gap = 0.0
        for one in order:
            now = max(now, one.generated_s) + network.transfer_s(one.size_bytes)
            gap = max(gap, now - backward_s - one.read_s)
        best = min(best, gap)
    return best


PACKED = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 10), st.integers(0, 8)), min_size=1, max_size=5)


@given(PACKED, st.sampled_from([0.0, 0.5]), st.booleans())
def test_no_slot_is_outside_of_its_window_and_no_order_needs_a_longer_gap(
    rows: list[tuple[int, int, int]], overhead_s: float, forward: bool
) -> None:
    backward_s, forward_s, network = 10.0, 8.0, Network(2.0, overhead_s)
    given_batches = batches_of(*((size, float(at), float(read)) for size, at, read in rows))
    packed = pack(given_batches, backward_s, forward_s, network, forward)
    assert sorted(slot.batch for slot in packed.slots) == list(range(len(rows)))
    began = backward_s + packed.gap_s
    for slot in packed.slots:
        one = given_batches[slot.batch]
        assert slot.end_s - slot.start_s == pytest.approx(network.transfer_s(one.size_bytes))
        assert slot.start_s >= one.generated_s - 1e-9
        assert slot.end_s <= began + one.read_s + 1e-9
        if slot.place is Place.BACKWARD:
            assert slot.end_s <= backward_s + 1e-9
        elif slot.place is Place.FORWARD:
            assert slot.start_s >= began - 1e-9
        else:
            assert packed.gap_s > 0
            assert slot.start_s < began and slot.end_s > backward_s, "it uses the gap"
        assert forward or slot.end_s <= began + 1e-9
    for before, after in itertools.pairwise(packed.slots):
        assert before.end_s <= after.start_s + 1e-9, "one transfer has the network at a time"
    assert packed.gap_s >= least_gap(given_batches, backward_s, network) - 1e-9
    assert packed.iteration_s >= max(packed.computation_s, packed.communication_s) - 1e-9


# ---- depth


@pytest.mark.parametrize(
    ("size", "threshold", "depth"),
    [(1, 100.0, 1), (199, 100.0, 1), (200, 100.0, 2), (799, 100.0, 7), (800, 100.0, 8), (10**9, 100.0, 8), (1, 0.0, 8)],
)
def test_the_adaptive_depth_by_hand(size: int, threshold: float, depth: int) -> None:
    assert adaptive_depth(size, threshold) == depth


def test_chunks_by_hand() -> None:
    assert chunks(10, 4) == (3, 3, 2, 2)
    assert chunks(2, 8) == (1, 1)
    assert chunks(5, 1) == (5,)


def test_a_pipeline_by_hand() -> None:
    # Two chunks: 1 + 4/2 = 3 s and 4/4 = 1 s each. 3 + 1, and the second chunk 3 s later.
    stages = (Network(2.0, 1.0), Network(4.0))
    assert pipelined_s(8, 2, stages) == 7.0
    assert pipelined_s(8, 1, stages) == 7.0
    assert best_depth(8, stages) == 1, "the smaller of equals"
    assert best_depth(80, stages) == 4, "depth d takes d + 40 + 20/d: 49 at 4 and at 5"


@given(st.integers(1, 10**9), st.integers(1, 12), st.lists(st.tuples(st.floats(0, 1), st.floats(1, 1e9)), min_size=1))
def test_a_pipeline_is_what_a_simulation_of_its_chunks_takes(
    size: int, depth: int, rows: list[tuple[float, float]]
) -> None:
    stages = [Network(rate, overhead_s) for overhead_s, rate in rows]
    free = [0.0] * len(stages)
    for _ in range(depth):
        now = 0.0
        for index, stage in enumerate(stages):
            now = free[index] = max(now, free[index]) + stage.transfer_s(size / depth)
    assert pipelined_s(size, depth, stages) == pytest.approx(free[-1])


def test_adapting_is_never_far_from_the_best_depth_and_a_fixed_one_is() -> None:
    # To the wire, over it, and the sum, each as slow as the others; from 1 KB to 256 MB.
    stages = (Network(1e9, 1e-4),) * 3
    sizes = [1000 * 2**k for k in range(19)]
    threshold = threshold_bytes(stages[0])

    def worst(depth_of: Callable[[int], int]) -> float:
        return max(
            pipelined_s(size, depth_of(size), stages) / pipelined_s(size, best_depth(size, stages), stages)
            for size in sizes
        )

    assert worst(lambda size: adaptive_depth(size, threshold)) < 1.2
    assert worst(lambda size: 1) > 2.3
    assert worst(lambda size: 8) > 3.2


def test_no_depth() -> None:
    for call in (lambda: adaptive_depth(1, 1.0, 0), lambda: chunks(1, 0), lambda: pipelined_s(1, 0, [UNIT])):
        with pytest.raises(UserError, match="depth is 0; it must be 1 or more"):
            call()
    with pytest.raises(UserError, match="stages is empty"):
        pipelined_s(1, 1, [])


# ---- metrics


def test_metrics_by_hand() -> None:
    # 3 s of computing, 2 s of transfers, 4 s together: 1 s of the 2 s is hidden.
    assert overlap_coefficient(4.0, 2.0, 3.0) == 0.5
    assert communication_ratio(2.0, 3.0) == pytest.approx(2 / 3)
    assert utilisation(0.5, 2 / 3) == pytest.approx(0.75)
    assert iteration_s(0.5, 2.0, 3.0) == 4.0
    assert overlap_coefficient(3.0, 0.0, 3.0) == 1.0


@given(st.floats(0.01, 10), st.floats(0.01, 10), st.floats(0, 1))
def test_utilisation_is_computing_through_iteration(communication: float, computation: float, hidden: float) -> None:
    total = communication + computation - hidden * min(communication, computation)
    overlap = overlap_coefficient(total, communication, computation)
    assert overlap == pytest.approx(hidden, abs=1e-6)
    ratio = communication_ratio(communication, computation)
    assert utilisation(overlap, ratio) == pytest.approx(computation / total)
    assert iteration_s(overlap, communication, computation) == pytest.approx(total)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: communication_ratio(1.0, 0.0), "computation_s is 0.0; it must be above 0"),
        (lambda: overlap_coefficient(1.0, -1.0, 1.0), "communication_s is -1.0; it must be 0 or more"),
        (lambda: overlap_coefficient(float("nan"), 1.0, 1.0), "iteration_s is nan"),
        (lambda: utilisation(3.0, 1.0), "overlap is 3.0 at a ratio of 1.0"),
    ],
)
def test_impossible_times(call: Callable[[], float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        call()


# ---- the policy


def test_the_plan_by_hand() -> None:
    # Generated: c at 0 (4 bytes), b at 1 and a at 2 (1 byte each, joined: the network has c until 5).
    # Read: a at 0, b at 3, c at 6.
    profile = Profile(
        "p",
        (GradientProfile("a", 1, 2.0, 3.0), GradientProfile("b", 1, 1.0, 3.0), GradientProfile("c", 4, 0.0, 3.0)),
        (10, 11, 12),
    )
    plan = Caramel().plan(profile, Network(1.0, 1.0))  # the threshold is 1.5 bytes
    # c (5 s) fits before its read at 6, [1, 6]; a and b (3 s) are read at 0 and generated at 2: they are the gap.
    assert plan.push.groups == {12: 0, 11: 1, 10: 1}
    assert plan.push.order == {12: 1, 11: 0, 10: 0}
    assert plan.push.credit == 1
    assert plan.size_bytes == {10: 1, 11: 1, 12: 4}
    assert plan.push.deadlines == (Deadline(0.0, 1), Deadline(2.0, 0))
    assert plan.generation_s == {10: 2.0, 11: 1.0, 12: 0.0}
    assert plan.deadline_slack_s == 0.001
    assert Caramel().plan(profile, Network(1.0, 1.0), jitter_s=0.5).deadline_slack_s == 0.5
    assert plan.pull.order == plan.push.order and not plan.pull.groups
    unscheduled = Caramel(scheduling=False).plan(profile, Network(1.0, 1.0))
    assert unscheduled.push.order == {12: 0, 11: 1, 10: 1} and not unscheduled.push.deadlines
    assert Caramel(holding=False).plan(profile, Network(1.0, 1.0)).push == replace(plan.push, deadlines=())
    alone = Caramel(batching=False).plan(profile, Network(1.0, 1.0))
    assert alone.push.groups == {12: 0, 11: 1, 10: 2}
    assert sorted((alone.push.order or {}).values()) == [0, 1, 2]


def test_the_names_of_the_ablation() -> None:
    assert Caramel().name == "caramel"
    assert Caramel(batching=False).name == "caramel-no-batching"
    assert Caramel(batching=False, scheduling=False).name == "caramel-no-batching-no-scheduling"


def test_a_threshold_below_nothing() -> None:
    with pytest.raises(UserError, match="threshold is -1; it must be 0 or more bytes"):
        Caramel(threshold=-1)


def test_within_a_step_each_gradient_tells_that_it_has_come() -> None:
    profile = Profile("p", tuple(GradientProfile(f"g{i}", 9, 1.0, 1.0) for i in range(4)))
    plan = Caramel().plan(profile, UNIT)  # no overhead: four batches
    times = [plan.generation_s[gradient] for gradient in (3, 2, 1, 0)]
    assert times == sorted(set(times)) and times == pytest.approx([1.0] * 4)
    assert sorted(times) == [deadline.time_s for deadline in plan.push.deadlines]


def test_the_policy_plans_before_it_knows() -> None:
    assert Caramel().plan(None, None).push.credit == 1
    profile = resnet50(25_600_000)
    plan = Caramel().plan(profile, None)
    assert plan.push.order == {i: 160 - i for i in range(161)} and not plan.push.groups
    assert Caramel().plan(None, UNIT) == Caramel().plan(None, None)


@pytest.mark.parametrize("network", [Network(31.25e6, 0.0005, 0.004), Network(1.25e9, 0.0007)])
def test_the_plan_of_a_model_covers_it(network: Network) -> None:
    profile = resnet50(25_600_000)
    policy = Caramel()
    plan = policy.plan(profile, network)
    assert set(plan.push.groups) == set(plan.push.order or {}) == set(profile.gradient_ids)
    batches, packed = policy.pack(profile, network)
    assert len(batches) == len(set(plan.push.groups.values())) == len(set((plan.push.order or {}).values())) < 161
    assert len(policy.depths(profile, network)) == len(batches)
    assert packed.iteration_s < Caramel(batching=False, scheduling=False).pack(profile, network)[1].iteration_s


def drive(plan: Plan, profile: Profile, network: Network) -> list[tuple[int, float]]:
    """The real queue on a wire of `network`: (gradient, when it left), one task a gradient."""
    queue = ScheduledQueue(QueueKind.PUSH, watchdog_s=1e6)
    queue.set_plan(plan)
    coming = sorted((g.generation_s, -i) for i, g in enumerate(profile.gradients))
    now = 0.0
    left: list[tuple[int, float]] = []
    while len(left) < len(profile.gradients):
        while coming and coming[0][0] <= now:
            at, index = coming.pop(0)
            queue.add(-index, profile.gradient_ids[-index], profile.gradients[-index].size_bytes, at)
        task, _ = queue.get(now)
        if task is None:
            now = coming[0][0]
            continue
        left.append((task, now))
        now += network.transfer_s(profile.gradients[task].size_bytes)
        queue.finish(task, now)
    return left


def test_the_queue_carries_the_plan_out() -> None:
    # Packed: c [0, 3], the batch of a and b [4, 6] and a gap of 2, d in forward, just before it is read: [9, 18].
    profile = Profile(
        "p",
        (
            GradientProfile("a", 1, 4.0, 4.0),
            GradientProfile("b", 1, 2.5, 4.0),
            GradientProfile("c", 3, 0.0, 4.0),
            GradientProfile("d", 9, 0.0, 4.0),
        ),
    )
    policy = Caramel(threshold=2.0)
    assert [(slot.start_s, slot.end_s) for slot in policy.pack(profile, UNIT)[1].slots] == [(0, 3), (4, 6), (9, 18)]
    assert drive(policy.plan(profile, UNIT), profile, UNIT) == [(2, 0.0), (1, 4.0), (0, 5.0), (3, 6.0)]
    greedy = Caramel(threshold=2.0, holding=False).plan(profile, UNIT)
    assert drive(greedy, profile, UNIT) == [(2, 0.0), (3, 3.0), (1, 12.0), (0, 13.0)], "d is in the way"


@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12), st.integers(0, 6)), min_size=1, max_size=9),
    st.integers(0, 8),
)
def test_no_batch_ends_later_than_it_is_packed(rows: list[tuple[int, int, int]], threshold: int) -> None:
    rows.sort(key=lambda row: -row[1])
    profile = Profile("p", tuple(GradientProfile(f"g{i}", s, float(c), float(f)) for i, (s, c, f) in enumerate(rows)))
    policy = Caramel(threshold=float(threshold))
    batches, packed = policy.pack(profile, UNIT)
    ends = {g: at + profile.gradients[g].size_bytes for g, at in drive(policy.plan(profile, UNIT), profile, UNIT)}
    for slot in packed.slots:
        members = [len(rows) - 1 - place for place in batches[slot.batch].members]
        assert max(ends[gradient] for gradient in members) <= slot.end_s + 1e-6
