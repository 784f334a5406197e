"""Messages from anybody: what is refused, who may speak for whom, and what hostile tenants can do."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_mlfabric import messages as msg
from prophet_mlfabric.connections import Connections, Outgoing
from prophet_mlfabric.coordination import Coordination, Terms
from prophet_scheduler.core.errors import UserError

TOKENS = {"a": "the token of tenant a", "b": "the token of tenant b"}
NASTY: tuple[Any, ...] = (
    0,
    1,
    -1,
    2**52,
    2**53 + 1,
    10**400,
    1e308,
    1e-320,
    math.nan,
    math.inf,
    None,
    True,
    "",
    "\x00",
    [[]],
    {"a": 1},
)
KINDS = [kind.model_fields["kind"].default for kind in get_args(msg.Request)]
KEYS = sorted({key for kind in get_args(msg.Request) for key in kind.model_fields} - {"kind"})
NONSENSE = [
    b"[" * 4000,
    b'{"a":' * 800,
    b'{"kind": "bye", "kind": "ask", "kind": "none"}',
    b'{"kind": "ask", "update": NaN, "size_bytes": 1, "version": 0}',
    b'{"kind": "ask", "update": 0, "size_bytes": 1, "version": 0, "norm": Infinity}',
    b'{"kind": "ask", "update": 0, "size_bytes": 1, "version": 0, "norm": 1e308}',
    b'{"kind": "ask", "update": ' + b"9" * 4000 + b', "size_bytes": 1, "version": 0}',
    b'{"kind": "hello", "tenant": "\\ud800", "worker": 0, "incarnation": 1, "node": "n"}',
    b'{"kind": "' + b"k" * 4000 + b'"}',
    b"\xff\xfe\x00",
    b"",
    b"[]",
    b" " * (msg.MOST_REQUEST_BYTES + 1),
]
TERMS, ASK = Terms(), msg.Ask(update=0, size_bytes=1000, version=0)
QUIET = msg.Copied(number=0)
LIMITS = st.sampled_from([0, 1, 2, 2**20, 2**52, 2**53])
SIZES = st.sampled_from([0, 1, 10**6, 2**44])
NORMS = st.sampled_from([0.0, 5e-324, 1.0, 1e100])
REQUESTS: st.SearchStrategy[msg.Request] = st.one_of(
    st.builds(msg.Ask, update=LIMITS, size_bytes=SIZES, version=LIMITS, norm=NORMS),
    st.builds(msg.Ask, update=st.integers(0, 9), size_bytes=SIZES, version=st.just(0), norm=NORMS),
    st.builds(msg.Done, update=LIMITS, version=LIMITS, size_bytes=SIZES, norm=NORMS),
    st.builds(msg.Done, update=st.integers(0, 9), version=LIMITS, size_bytes=SIZES, norm=NORMS),
    st.builds(msg.Copied, number=st.integers(2**20, 2**20 + 4), reason=st.sampled_from(["", "full"])),
    st.just(msg.Bye()),
    st.builds(
        msg.Hello,
        tenant=st.just("a"),
        worker=st.integers(0, 2),
        incarnation=st.integers(1, 2),
        node=st.sampled_from(["server", "n0", "n1"]),
        version=st.sampled_from([0, 2**52]),
        epoch=st.sampled_from([None, 0, 1, 2**53]),
        replicates=st.booleans(),
    ),
)
WHOLE = st.sampled_from([0, 1, 7, 2**53])
START_S = st.sampled_from([0.0, 1.0, 1e308])
ANSWERS: st.SearchStrategy[msg.Answer] = st.one_of(
    st.just(msg.Challenge(nonce="0" * 64)),
    st.builds(msg.Welcome, epoch=WHOLE, version=WHOLE),
    st.builds(msg.Wait, update=WHOLE),
    st.builds(msg.Grant, update=WHOLE, start_s=START_S, dropped=st.booleans(), version=WHOLE),
    st.builds(msg.Applied, update=WHOLE, version=WHOLE, delay=WHOLE),
    st.builds(msg.Copy, number=WHOLE, bound=st.sampled_from([5e-324, 1e308])),
    st.builds(msg.Denied, text=st.just("no"), update=st.one_of(st.none(), WHOLE)),
    st.builds(msg.Parting, working=WHOLE, died=st.sampled_from([(), (0, 2**20 - 1)])),
)


def decoded(data: bytes) -> None:
    """Check that each decoder returns a message that encodes and decodes to itself, or raises an error of one line."""
    for decode in (msg.decode_request, msg.decode_answer):
        try:
            message: Any = decode(data)
        except UserError as error:
            assert "\n" not in str(error) and len(str(error)) <= 200
        else:
            assert decode(msg.encode(message)) == message


@given(REQUESTS, ANSWERS)
def test_encoding_and_decoding_keep_a_message(request_: msg.Request, answer: msg.Answer) -> None:
    assert msg.decode_request(msg.encode(request_)) == request_
    assert msg.decode_answer(msg.encode(answer)) == answer


@given(st.binary(max_size=200))
def test_any_bytes_give_a_message_or_one_line(data: bytes) -> None:
    decoded(data)


@given(st.sampled_from(KINDS), st.dictionaries(st.sampled_from(KEYS), st.sampled_from(NASTY)))
def test_any_values_give_a_message_or_one_line(kind: str, values: dict[str, Any]) -> None:
    decoded(json.dumps({**values, "kind": kind}).encode())


@pytest.mark.parametrize("data", NONSENSE)
def test_nonsense_gives_one_line(data: bytes) -> None:
    with pytest.raises(UserError):
        msg.decode_request(data)
    decoded(data)


FIELDS: dict[str, Any] = {"kind": "ask", "update": 1, "size_bytes": 10, "version": 0, "norm": 1.0}


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"size_bytes": -1}, "ask.size_bytes"),
        ({"update": 1.5}, "ask.update"),
        ({"version": -3}, "ask.version"),
        ({"norm": None}, "ask.norm"),
        ({"more": 1}, "ask.more"),
        ({"kind": "order"}, "message"),
        ({"kind": "grant"}, "message"),
    ],
)
def test_invalid_fields_are_named(change: dict[str, Any], where: str) -> None:
    with pytest.raises(UserError, match=f"^{where}: ") as error:
        msg.decode_request(json.dumps({**FIELDS, **change}).encode())
    assert "\n" not in str(error.value)


@given(st.lists(st.binary(max_size=20), max_size=6), st.integers(1, 9))
def test_frames_do_not_depend_on_how_bytes_arrive(frames: list[bytes], piece: int) -> None:
    travels = b"".join(len(frame).to_bytes(msg.LENGTH_BYTES, "big") + frame for frame in frames)
    received, taken = bytearray(), []
    for place in range(0, len(travels), piece):
        received += travels[place : place + piece]
        taken += list(msg.take_frames(received, 20))
    assert taken == frames and not received


@given(st.binary(max_size=64))
def test_the_bytes_kept_of_a_frame_are_bounded(data: bytes) -> None:
    received = bytearray(data)
    try:
        list(msg.take_frames(received, 8))
    except UserError:
        return
    assert len(received) < msg.LENGTH_BYTES + 8


class Coordinating:
    """Two tenants on a coordinator."""

    def __init__(self, terms: Terms = TERMS) -> None:
        self.jobs = {name: Coordination(terms, epoch=1) for name in TOKENS}
        self.all: Connections[bytes] = Connections(TOKENS, self.jobs)
        self.now_s = 0.0

    def enter(self, connection: bytes, hello: msg.Hello, token: str = "") -> list[Outgoing[bytes]]:
        ((_, challenge),) = self.say(connection, hello)
        assert isinstance(challenge, msg.Challenge)
        proof = msg.prove(token or TOKENS[hello.tenant], challenge.nonce, hello)
        return self.say(connection, hello.model_copy(update={"proof": proof}))

    def say(self, connection: bytes, request: msg.Request) -> list[Outgoing[bytes]]:
        return self.all.receive(connection, msg.encode(request), self.now_s)

    def turn(self) -> list[Outgoing[bytes]]:
        return self.all.turn(self.now_s)


def worker(tenant: str, number: int = 0, **more: Any) -> msg.Hello:
    return msg.Hello(tenant=tenant, worker=number, incarnation=1, node=f"n{number}", **more)


def test_a_proof_holds_for_one_token_nonce_and_worker() -> None:
    nonce, token = "ab" * 32, "a token of the tests"
    hello = worker("a").model_copy(update={"proof": msg.prove(token, nonce, worker("a"))})
    assert msg.proves(token, nonce, hello)
    assert token not in msg.encode(hello).decode()
    assert not msg.proves(token, "cd" * 32, hello)
    assert not msg.proves("another token", nonce, hello)
    assert not msg.proves(token, nonce, hello.model_copy(update={"worker": 4}))
    assert not msg.proves(token, nonce, worker("a"))


def test_only_a_proof_of_the_token_admits_a_worker() -> None:
    all_ = Coordinating()
    ((_, answer),) = all_.say(b"1", ASK)
    assert isinstance(answer, msg.Challenge)
    assert len(all_.all) == 0 and all_.turn() == []
    assert all_.enter(b"1", worker("a")) == [(b"1", msg.Welcome(epoch=1, version=0))]
    assert all_.say(b"1", ASK) == [(b"1", msg.Wait(update=0))]


def test_wrong_tokens_are_refused() -> None:
    all_ = Coordinating()
    for token in ("another token", TOKENS["b"]):
        assert all_.enter(b"2", worker("a"), token) == [(b"2", msg.Denied(text="tenant a: the token is wrong"))]


def test_an_overheard_proof_is_worthless_on_another_connection() -> None:
    all_ = Coordinating()
    ((_, challenge),) = all_.say(b"1", worker("a"))
    assert isinstance(challenge, msg.Challenge)
    proof = msg.prove(TOKENS["a"], challenge.nonce, worker("a"))
    ((_, answer),) = all_.say(b"2", worker("a", proof=proof))
    assert isinstance(answer, msg.Denied)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (msg.encode(worker("c")), "tenant c: there is no such tenant here"),
        (msg.encode(worker("a", proof="0" * 64)), "tenant a: the token is wrong"),
        (b'{"kind": "ask", "update": -1}', "ask.update: "),
        (b"nonsense", "message: "),
    ],
    ids=["unknown tenant", "wrong token", "negative number", "nonsense"],
)
def test_thousands_of_refused_messages_change_nothing(data: bytes, text: str) -> None:
    all_ = Coordinating()
    all_.enter(b"1", worker("a"))
    all_.say(b"1", ASK)
    job = all_.jobs["a"]
    before = job.version, replace(job.counts), len(all_.all)
    for number in range(5000):
        ((_, answer),) = all_.all.receive(b"1" if number % 2 else b"2", data, 0.0)
        assert isinstance(answer, msg.Denied) and answer.text.startswith(text)
    assert all_.all.refused == 5000
    assert (job.version, job.counts, len(all_.all)) == before
    assert [type(answer) for _, answer in all_.turn()] == [msg.Grant]


@pytest.mark.parametrize("request_", [ASK, msg.Bye(), worker("a")])
def test_unproven_connections_leave_nothing_behind(request_: msg.Request) -> None:
    all_ = Coordinating()
    for number in range(2000):
        all_.say(b"%d" % number, request_)
        all_.all.closed(b"%d" % number)
    assert len(all_.all) == len(all_.all._nonces) == 0


def seen_by_b(requests: list[tuple[int, msg.Request, float]], terms: Terms) -> list[Any]:
    """Return the answers to b's worker while a's workers send these requests, each followed by a step of time."""
    all_ = Coordinating(terms)
    seen: list[Any] = []
    for number in range(3):
        all_.enter(b"a%d" % number, worker("a", number, replicates=terms.divergence_bound is not None))
    seen += all_.enter(b"b", worker("b"))
    for update, (number, request, step_s) in enumerate(requests):
        if isinstance(request, msg.Hello):
            all_.enter(b"a%d" % number, request)
        else:
            all_.say(b"a%d" % number, request)
        all_.now_s += step_s
        if update < 20:
            seen += all_.say(b"b", msg.Ask(update=update, size_bytes=1000, version=0))
        seen += [(name, answer) for name, answer in all_.turn() if name == b"b"]
    return seen


STEPS = st.tuples(st.integers(0, 2), REQUESTS, st.sampled_from([0.0, 0.05, 0.2, 20.0]))


@given(st.lists(STEPS, max_size=30), st.sampled_from([None, 1, 30]), st.sampled_from([None, 1e-9, 1e99]))
def test_no_tenants_messages_affect_another_or_break_its_own_job(
    steps: list[tuple[int, msg.Request, float]], delay_bound: int | None, divergence_bound: float | None
) -> None:
    terms = Terms(delay_bound=delay_bound, divergence_bound=divergence_bound)
    failures: list[str] = []

    class Failures(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            failures.append(record.getMessage())

    handler = Failures()
    logging.getLogger("prophet_scheduler").addHandler(handler)
    try:
        alone = seen_by_b([(number, QUIET, step_s) for number, _, step_s in steps], terms)
        assert seen_by_b(steps, terms) == alone
    finally:
        logging.getLogger("prophet_scheduler").removeHandler(handler)
    assert failures == []


def test_the_largest_first_version_can_be_counted_up() -> None:
    all_ = Coordinating()
    all_.enter(b"a", worker("a", version=2**52))
    ((_, applied),) = all_.say(b"a", msg.Done(update=0, version=0, size_bytes=1))
    assert isinstance(applied, msg.Applied) and applied.version == 2**52 + 1


@pytest.mark.parametrize("call", ["join", "receive", "turn"])
def test_a_failure_restarts_only_that_tenants_job(
    call: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    all_ = Coordinating()
    all_.enter(b"a", worker("a"))
    all_.enter(b"b", worker("b"))
    all_.say(b"b", ASK)
    with monkeypatch.context() as broken:
        broken.setattr(all_.jobs["a"], call, lambda *of: 1 // 0)
        said = {
            "join": lambda: all_.enter(b"another", worker("a", 1)),
            "receive": lambda: all_.say(b"a", ASK),
            "turn": all_.turn,
        }[call]()
        assert said[0] == (b"a", None), "it is closed"
        assert not all_.all.knows(b"a") and all_.all.knows(b"b")
    assert [record.getMessage() for record in caplog.records] == [
        "Prophet: the job a restarts: ZeroDivisionError: integer division or modulo by zero"
    ]
    granted = [answer for name, answer in [*said, *all_.turn()] if name == b"b"]
    assert [type(answer) for answer in granted] == [msg.Grant]
    assert all_.enter(b"again", worker("a")) == [(b"again", msg.Welcome(epoch=2, version=0))]


def test_answers_for_a_closed_connection_are_discarded() -> None:
    all_ = Coordinating()
    all_.enter(b"a", worker("a"))
    all_.say(b"a", ASK)
    all_.all.closed(b"a")
    assert all_.turn() == []
    assert [type(answer) for _, answer in all_.enter(b"again", worker("a"))] == [msg.Welcome]
    ((name, answer),) = all_.say(b"again", ASK)
    assert (name, type(answer)) == (b"again", msg.Grant), "it is told there"


def test_a_second_connection_of_a_worker_replaces_the_first() -> None:
    all_ = Coordinating()
    all_.enter(b"1", worker("a"))
    assert all_.enter(b"1", worker("a")) == [(b"1", msg.Welcome(epoch=1, version=0))]
    assert all_.enter(b"2", worker("a")) == [(b"1", None), (b"2", msg.Welcome(epoch=1, version=0))]
    assert len(all_.all) == 1 and not all_.all.knows(b"1")
    ((_, answer),) = all_.say(b"1", ASK)
    assert isinstance(answer, msg.Challenge)
    all_.say(b"2", ASK)
    assert [connection for connection, _ in all_.turn()] == [b"2"]
