"""What is said: there and back, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from prophet_mlfabric.messages import (
    MOST_REQUEST_BYTES,
    Answer,
    Ask,
    Beat,
    Bye,
    Challenge,
    Clock,
    Collect,
    Denied,
    Done,
    Grant,
    Hello,
    NicRates,
    Parting,
    Proceed,
    Request,
    Welcome,
    decode_answer,
    decode_request,
    encode,
    prove,
    proves,
)
from prophet_scheduler.core.errors import UserError

HELLO = Hello(tenant="job", worker=3, incarnation=5, node="machine1")


@pytest.mark.parametrize(
    "request_",
    [
        HELLO,
        Ask(update=1, size_bytes=10**9, version=2, norm=0.25),
        Done(update=1, version=2, size_bytes=0),
        Done(update=4, size_bytes=7, sum=True),
        Ask(update=4, sum=True),
        NicRates(up=1e9),
        Clock(rounds=3, models=4),
        Beat(),
        Bye(),
    ],
)
def test_requests_come_back_as_they_were(request_: Request) -> None:
    assert decode_request(encode(request_)) == request_


@pytest.mark.parametrize(
    "answer",
    [
        Challenge(nonce="0" * 64),
        Welcome(epoch=1, version=2),
        Grant(update=1, version=0, dropped=True, reason="too late"),
        Collect(number=1, members=((0, 4), (1, 5))),
        Denied(text="no", update=4, sum=True),
        Proceed(rounds=3, now=False),
        Parting(working=1, died=(2, 5)),
    ],
)
def test_answers_come_back_as_they_were(answer: Answer) -> None:
    assert decode_answer(encode(answer)) == answer


ASK: dict[str, Any] = {"kind": "ask", "update": 1, "size_bytes": 10, "version": 0, "norm": 1.0}


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"size_bytes": -1}, "ask.size_bytes"),
        ({"size_bytes": 2**60}, "ask.size_bytes"),
        ({"size_bytes": "10"}, "ask.size_bytes"),
        ({"update": -1}, "ask.update"),
        ({"update": 1.5}, "ask.update"),
        ({"version": -3}, "ask.version"),
        ({"norm": -1.0}, "ask.norm"),
        ({"norm": None}, "ask.norm"),
        ({"more": 1}, "ask.more"),
        ({"kind": "order"}, "message"),
        ({"kind": "grant"}, "message"),
    ],
)
def test_what_cannot_be_is_one_line_that_names_the_field(change: dict[str, Any], where: str) -> None:
    with pytest.raises(UserError, match=f"^{where}: ") as error:
        decode_request(json.dumps({**ASK, **change}).encode())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"\xff\xfe",
        b'{"kind": "ask", "norm": NaN}',
        b'{"kind": "ask", "update": 1, "size_bytes": 1, "version": 0, "norm": 1e999}',
        b"[" * 4000,
        b" " * (MOST_REQUEST_BYTES + 1),
    ],
)
def test_what_is_no_message_is_one_line(data: bytes) -> None:
    with pytest.raises(UserError) as error:
        decode_request(data)
    assert "\n" not in str(error.value) and len(str(error.value)) < 300


@pytest.mark.parametrize("tenant", ["", "a b", "x" * 200, "line\nline"])
def test_names_are_short_and_plain(tenant: str) -> None:
    with pytest.raises(UserError, match=r"^hello\.tenant: "):
        decode_request(json.dumps({**HELLO.model_dump(), "tenant": tenant}).encode())


def test_a_proof_is_for_one_token_one_nonce_and_one_worker() -> None:
    nonce, token = "ab" * 32, "a token of the tests"
    hello = HELLO.model_copy(update={"proof": prove(token, nonce, HELLO)})
    assert proves(token, nonce, hello)
    assert token not in encode(hello).decode()
    assert not proves(token, "cd" * 32, hello)
    assert not proves("another token", nonce, hello)
    assert not proves(token, nonce, hello.model_copy(update={"worker": 4}))
    assert not proves(token, nonce, HELLO)
