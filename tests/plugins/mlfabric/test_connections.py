"""Tests of who may speak for whom."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prophet_mlfabric.connections import Connections, Outgoing
from prophet_mlfabric.coordination import Coordination
from prophet_mlfabric.messages import Ask, Beat, Challenge, Denied, Grant, Hello, Wait, Welcome, encode, prove
from prophet_mlfabric.terms import Terms
from support.virtual_job import open_updates

TOKENS = {"a": "the token of tenant a", "b": "the token of tenant b"}


def connections() -> tuple[Connections[bytes], dict[str, Coordination]]:
    jobs = {name: Coordination(Terms(), epoch=1) for name in TOKENS}
    return Connections(TOKENS, jobs), jobs


def hello(tenant: str = "a", worker: int = 0, proof: str = "") -> Hello:
    return Hello(tenant=tenant, worker=worker, incarnation=1, node="machine", proof=proof)


def enter(
    all_: Connections[bytes], connection: bytes, tenant: str = "a", worker: int = 0, token: str = ""
) -> list[Outgoing[bytes]]:
    ((_, challenge),) = all_.receive(connection, encode(hello(tenant, worker)), 0.0)
    assert isinstance(challenge, Challenge)
    proof = prove(token or TOKENS[tenant], challenge.nonce, hello(tenant, worker))
    return all_.receive(connection, encode(hello(tenant, worker, proof)), 0.0)


ASK = encode(Ask(update=0, size_bytes=1000, version=0))


def test_a_worker_with_the_token_is_let_in() -> None:
    all_, _ = connections()
    assert enter(all_, b"1") == [(b"1", Welcome(epoch=1, version=0))]
    assert all_.receive(b"1", ASK, 0.0) == [(b"1", Wait(update=0, start_s=0.0))]


def test_nothing_but_hello_counts_before_that() -> None:
    all_, jobs = connections()
    ((_, answer),) = all_.receive(b"1", ASK, 0.0)
    assert isinstance(answer, Challenge)
    assert len(all_) == 0 and not list(open_updates(jobs["a"]))


def test_a_wrong_token_a_wrong_tenant_and_nonsense_change_nothing() -> None:
    all_, jobs = connections()
    enter(all_, b"1")
    refusals = [
        enter(all_, b"2", token="another token"),
        enter(all_, b"2", "a", token=TOKENS["b"]),
        all_.receive(b"2", encode(hello("c")), 0.0),
        all_.receive(b"1", b"nonsense", 0.0),
        all_.receive(b"1", b'{"kind": "ask", "update": 0, "size_bytes": -1, "version": 0}', 0.0),
    ]
    texts = [answer.text for ((_, answer),) in refusals if isinstance(answer, Denied)]
    assert texts[:3] == [
        "tenant a: the token is wrong",
        "tenant a: the token is wrong",
        "tenant c: there is none of that name here",
    ]
    assert len(texts) == len(refusals) == all_.refused
    assert len(all_) == 1 and not list(open_updates(jobs["a"]))


def test_a_proof_that_was_overheard_is_of_no_use_on_another_connection() -> None:
    all_, _ = connections()
    ((_, challenge),) = all_.receive(b"1", encode(hello()), 0.0)
    assert isinstance(challenge, Challenge)
    proof = prove(TOKENS["a"], challenge.nonce, hello())
    ((_, answer),) = all_.receive(b"2", encode(hello(proof=proof)), 0.0)
    assert isinstance(answer, Denied)


def test_a_worker_speaks_on_its_newest_connection() -> None:
    all_, _ = connections()
    enter(all_, b"1")
    enter(all_, b"2")
    assert len(all_) == 1
    ((_, answer),) = all_.receive(b"1", ASK, 0.0)
    assert isinstance(answer, Challenge)
    all_.receive(b"2", ASK, 0.0)
    assert [connection for connection, _ in all_.turn(0.0)] == [b"2"]
    enter(all_, b"2")
    assert len(all_) == 1


def test_tenants_share_nothing() -> None:
    all_, jobs = connections()
    enter(all_, b"1", "a")
    enter(all_, b"2", "b")
    all_.receive(b"1", ASK, 0.0)
    assert list(open_updates(jobs["a"])) == [(0, 0)] and not list(open_updates(jobs["b"]))
    assert [connection for connection, _ in all_.turn(0.0)] == [b"1"]


@pytest.mark.parametrize(
    "data",
    [
        encode(hello("c")),
        encode(hello(proof="0" * 64)),
        ASK.replace(b"1000", b"-1"),
        b"nonsense",
    ],
    ids=["unknown tenant", "wrong token", "negative size", "nonsense"],
)
def test_what_is_refused_again_and_again_changes_nothing_and_keeps_nobody_out(data: bytes) -> None:
    all_, jobs = connections()
    enter(all_, b"1")
    all_.receive(b"1", ASK, 0.0)
    job = jobs["a"]
    before = job.version, list(open_updates(job)), replace(job.counts), len(all_)
    for number in range(5000):
        ((_, answer),) = all_.receive(b"1" if number % 2 else b"2", data, 0.0)
        assert isinstance(answer, Denied)
    assert all_.refused == 5000
    assert (job.version, list(open_updates(job)), job.counts, len(all_)) == before
    assert [type(answer) for _, answer in all_.turn(0.0)] == [Grant]


@pytest.mark.parametrize("data", [ASK, encode(Beat()), encode(hello())])
def test_connections_that_prove_nothing_leave_nothing_behind(data: bytes) -> None:
    all_, _ = connections()
    for number in range(2000):
        all_.receive(str(number).encode(), data, 0.0)
        all_.closed(str(number).encode())
    assert len(all_) == len(all_._nonces) == 0
