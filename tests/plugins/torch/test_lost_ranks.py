"""Tests of which rank was lost, by the words of gloo and what the ranks have left in their store."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

pytest.importorskip("torch")

import torch.distributed as dist

from prophet_ddp import lost_ranks
from prophet_ddp.lost_ranks import LostRanks, ends_here

HASH_STORE: Any = vars(dist)["HashStore"]
MEMBERS = [1, 3, 5, 7, 9]
"""Ranks of the job that share a group."""
HOST = "10.0.0.{}"
PORT = 5018


@pytest.fixture(autouse=True)
def answering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_ranks, "_silent", False)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> list[LostRanks]:
    """All ranks of a group, each at an address of its own, as they are once it is made."""
    store = HASH_STORE()
    made = [LostRanks(store, MEMBERS, place) for place in range(len(MEMBERS))]
    for place, peer in enumerate(made):
        monkeypatch.setattr(lost_ranks, "ends_here", lambda place=place: {HOST.format(place): [PORT, 40000 + place]})
        peer.say()
    for peer in made:
        peer.look()
    return made


def closed(place: int, port: int | None = None) -> str:
    """Gloo's words in a rank that has seen the one at this place leave."""
    port = 40000 + place if port is None else port
    wire = int.from_bytes(port.to_bytes(2, "big"), "little")
    return f"[gloo/transport/tcp/pair.cc:553] Connection closed by peer [{HOST.format(place)}]:{wire}. This is typical"


def test_a_rank_names_the_neighbour_that_it_has_seen_leave(group: list[LostRanks]) -> None:
    assert group[1].loss(closed(2), 6) == "rank 5 (10.0.0.2) was lost"
    assert group[3].loss(closed(2, PORT), 6) == "rank 5 (10.0.0.2) was lost"


def test_a_rank_that_sees_others_leave_for_a_loss_names_the_loss(group: list[LostRanks]) -> None:
    group[1].loss(closed(2), 6)
    assert group[0].loss(closed(1), 6) == "rank 5 (10.0.0.2) was lost"
    assert group[4].loss(closed(3), 6) == "rank 5 (10.0.0.2) was lost"


def test_a_rank_that_is_no_neighbour_is_known_too(group: list[LostRanks]) -> None:
    assert group[0].loss(closed(2), 6) == "rank 5 (10.0.0.2) was lost"


def test_connections_that_were_made_later_are_known_once_they_are_said(
    group: list[LostRanks], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_ranks, "ends_here", lambda: {HOST.format(2): [50000]})
    group[2].say()
    assert group[1].loss(closed(2, 50000), 6) == "rank 5 (10.0.0.2) was lost"


def test_where_the_rank_cannot_be_known_its_address_is_said(group: list[LostRanks]) -> None:
    assert group[0].loss(closed(2, 50000), 6) == "a rank at 10.0.0.2 was lost"
    group[1].loss(closed(2), 6)
    assert group[0].loss(closed(2, 50000), 6) == "rank 5 (10.0.0.2) was lost"
    assert group[0].loss("Out of memory\nor so", 6) == "Out of memory"


def test_of_two_ranks_it_is_the_other() -> None:
    assert LostRanks(HASH_STORE(), [4, 6], 0).loss(closed(2), 6) == "rank 6 (10.0.0.2) was lost"


def test_who_is_late_is_known_by_who_waits(group: list[LostRanks]) -> None:
    for place in (0, 1):
        group[place].others(6)
    group[2].others(5)
    assert group[0].others(6) == ": ranks 5 and 7 and 9 are late"
    group[2].others(6), group[3].others(7)
    assert group[0].others(6) == ": rank 9 is late"
    assert group[0].loss("Timed out waiting 8000ms\nfor it", 6) == "Timed out waiting 8000ms: rank 9 is late"
    group[4].others(6)
    assert group[0].others(6) == ": all ranks wait, for the network"


class Gone:
    """A store whose host is not there any more."""

    def check(self, _keys: Any) -> bool:
        raise ConnectionError("Connection reset by peer")

    def set(self, _key: str, _value: str) -> None:
        raise ConnectionError("Connection reset by peer")


@pytest.mark.parametrize(("place", "said"), [(1, "rank 3 (10.0.0.1) was lost"), (2, "a rank at 10.0.0.2 was lost")])
def test_without_the_store_neighbours_are_known(
    group: list[LostRanks], monkeypatch: pytest.MonkeyPatch, place: int, said: str
) -> None:
    monkeypatch.setattr(group[0], "_store", Gone())
    assert group[0].others(6) == ""
    assert group[0].loss(closed(place), 6) == said


def test_a_store_that_is_lost_with_a_rank_is_not_asked(group: list[LostRanks], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_ranks, "_answer", lambda _question: pytest.fail("it is asked"))
    monkeypatch.setattr(group[1], "_members", [0, *MEMBERS[1:]])
    assert group[1].loss(closed(0), 6) == "rank 0 (10.0.0.0) was lost"


def test_ends_are_those_of_the_process_and_stay_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        with socket.socketpair()[0]:  # neither an address nor a port
            ends = ends_here()
        assert {server.getsockname()[1], client.getsockname()[1]} <= set(ends["127.0.0.1"])
        with server.accept()[0] as accepted:
            client.sendall(json.dumps(ends).encode())
            assert accepted.recv(1)
