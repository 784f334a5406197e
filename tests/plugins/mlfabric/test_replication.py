"""Section 5.3 of MLfabric: Eq. 11's bound against real models, and transfers to the replica."""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from prophet_mlfabric.network import NetworkState
from prophet_mlfabric.ordering import Update
from prophet_mlfabric.replication import DivergenceLedger
from prophet_mlfabric.scheduler import PlannedTransfer, Scheduler

SERVER, REPLICA = 0, 1
Vector: TypeAlias = NDArray[np.float64]


def even(nodes: int, rate: float = 1.0) -> NetworkState:
    return NetworkState.of_rates([rate] * nodes, [rate] * nodes)


def filled(bound: float, momentum: float, norms: list[float]) -> DivergenceLedger:
    ledger = DivergenceLedger(bound, momentum)
    for norm in norms:
        ledger.add(norm)
    return ledger


def models(vectors: list[Vector], momentum: float) -> list[Vector]:
    """Return the model after each step, by Eq. 2, from zero."""
    pair = [np.zeros(len(vectors[0]))] * 2
    for vector in vectors:
        pair.append(pair[-1] + vector + momentum * (pair[-1] - pair[-2]))
    return pair[1:]


def apart(ledger: DivergenceLedger, server: int, replica: int) -> float:
    """Return the maximum distance of the models after so many updates (Eq. 11): the steps that only one of them has."""
    first, last = sorted((server, replica))
    return math.fsum(ledger.weights(first)[: last - first])


def test_equations_7_and_8_by_hand() -> None:
    # h0 = 2, u1 = 3, u2 = 5, momentum 1/2, all in one direction, so that norms add up exactly.
    ledger = filled(100.0, 0.5, [2.0, 3.0, 5.0])
    assert apart(ledger, 3, 1) == (0.5 + 0.25) * 2 + (1 + 0.5) * 3 + 5
    assert apart(ledger, 3, 2) == 0.25 * 2 + 0.5 * 3 + 5
    assert apart(ledger, 2, 2) == 0.0


@given(st.integers(0, 2**32 - 1), st.floats(0, 0.95), st.integers(1, 12))
def test_models_are_never_further_apart_than_eq_11_says(seed: int, momentum: float, count: int) -> None:
    vectors = np.random.default_rng(seed).normal(size=(count, 3))
    ledger = filled(1e9, momentum, np.linalg.norm(vectors, axis=1).tolist())
    steps = models(list(vectors), momentum)
    for server in range(count + 1):
        for replica in range(count + 1):
            distance = float(np.linalg.norm(steps[server] - steps[replica]))
            assert distance <= apart(ledger, server, replica) * (1 + 1e-9) + 1e-12


@given(st.lists(st.floats(0.1, 2), min_size=1, max_size=12), st.floats(0, 0.6))
def test_needed_is_the_lowest_position_within_the_bound(norms: list[float], momentum: float) -> None:
    ledger = filled(10.0, momentum, norms)
    for position in range(len(norms) + 1):
        within = (other for other in range(position + 1) if apart(ledger, position, other) <= 10.0 * (1 + 1e-11))
        assert ledger.needed(position) == next(within)


def decide(bound: float, replica_rate: float) -> tuple[list[tuple[int, list[int]]], list[int], list[int]]:
    """Schedule two updates of norm 1, which the server gets at 1 and 2, with a replica whose NIC has this rate.

    Return the transfers as (destination, updates), the needs of commits, and the punted updates.
    """
    network = NetworkState.of_rates([1.0] * 4, [1.0, replica_rate, 1.0, 1.0])
    scheduler = Scheduler(SERVER, [], replica=REPLICA, divergence_bound=bound)
    schedule = scheduler.schedule([Update(0, 2, 1.0), Update(1, 3, 1.0)], network, 0.0)
    places = [(transfer.destination, [update.id for update in transfer.updates]) for transfer in schedule.transfers]
    return places, [commit.needs for commit in schedule.commits], [update.id for update in scheduler.punted]


def test_updates_that_arrive_by_the_servers_last_are_sent_and_the_rest_punted() -> None:
    # The first copy travels when its worker has served the server, from 1 to 2, the other one before it.
    everything = [(SERVER, [0]), (SERVER, [1]), (REPLICA, [0]), (REPLICA, [1])]
    assert decide(bound=2.0, replica_rate=1.0) == (everything, [0, 0], [])
    # At half the rate neither is there at 2. The replica may lack both, so both wait for the next batch.
    assert decide(bound=2.0, replica_rate=0.5) == (everything[:2], [0, 0], [0, 1])


def test_figure_3_the_servers_last_update_waits_until_the_replica_has_one() -> None:
    # u1 reaches the replica at 2, when u2 is applied: just in time.
    everything = [(SERVER, [0]), (SERVER, [1]), (REPLICA, [0]), (REPLICA, [1])]
    assert decide(bound=1.0, replica_rate=1.0) == (everything, [0, 1], [])
    # At half the rate u1 arrives at 3, so u2, which would be applied at 2, gives way.
    assert decide(bound=1.0, replica_rate=0.5) == ([(SERVER, [0]), (REPLICA, [0]), (SERVER, [1])], [0, 1], [1])


norm_lists = st.lists(st.lists(st.floats(0.1, 1.5), min_size=1, max_size=6), min_size=1, max_size=5)


@given(norm_lists, st.floats(3.1, 9), st.floats(0, 0.5), st.integers(0, 2**31))
def test_every_interleaving_keeps_the_bound_and_the_order(
    batches: list[list[float]], bound: float, momentum: float, seed: int
) -> None:
    scheduler = Scheduler(SERVER, [2, 3], replica=REPLICA, divergence_bound=bound, momentum=momentum)
    random = np.random.default_rng(seed)
    ledger = DivergenceLedger(bound, momentum)
    server: list[Update] = []
    replica: list[Update] = []
    waiting_commits: list[PlannedTransfer] = []
    waiting_copies: list[PlannedTransfer] = []
    number = 0
    for norms in batches:
        batch = []
        for norm in norms:
            batch.append(Update(number, int(random.integers(2, 6)), float(random.integers(1, 9)), norm=norm))
            number += 1
        rates = random.uniform(0.5, 4, (2, 6)).tolist()
        schedule = scheduler.schedule(batch, NetworkState.of_rates(*rates), 0.0)
        order = [update for commit in schedule.commits for update in commit.updates]
        assert sorted(update.id for update in order) == [update.id for update in batch]
        for update in order:
            ledger.add(update.norm)
        waiting_commits += schedule.commits
        waiting_copies += schedule.copies
        # Arrivals in any interleaving that obeys their needs: the adversary flips a coin for who goes next.
        while waiting_commits or waiting_copies:
            may_commit = waiting_commits and waiting_commits[0].needs <= len(replica)
            may_copy = waiting_copies and waiting_copies[0].needs <= len(server)
            assert may_commit or may_copy
            if may_commit and (not may_copy or random.random() < 0.5):
                server += waiting_commits.pop(0).updates
            else:
                replica += waiting_copies.pop(0).updates
            assert apart(ledger, len(server), len(replica)) <= bound * (1 + 1e-9)
    # The replica has a prefix of the server's updates, and the rest is punted: nothing is lost.
    assert [*replica, *scheduler.punted] == server


def test_a_schedule_lists_a_sum_after_its_parts() -> None:
    scheduler = Scheduler(SERVER, [5])
    schedule = scheduler.schedule([Update(place, 1 + place, 1.0) for place in range(4)], even(6), 0.0)
    assert [transfer.destination for transfer in schedule.transfers] == [SERVER, SERVER, 5, 5, SERVER]
    assert schedule.transfers[4].after == schedule.transfers[2:4]
    assert [schedule.transfers.index(commit) for commit in schedule.commits] == [0, 1, 4]
    assert scheduler.version == 4
