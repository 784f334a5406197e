"""Tests of what is refused in a message, by name, and of what a proof is for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from prophet_mlfabric.messages import Hello, decode_request, encode, prove, proves
from prophet_scheduler.core.errors import UserError

HELLO = Hello(tenant="job", worker=3, incarnation=5, node="machine1")


ASK: dict[str, Any] = {"kind": "ask", "update": 1, "size_bytes": 10, "version": 0, "norm": 1.0}


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
        decode_request(json.dumps({**ASK, **change}).encode())
    assert "\n" not in str(error.value)


def test_a_proof_holds_for_one_token_nonce_and_worker() -> None:
    nonce, token = "ab" * 32, "a token of the tests"
    hello = HELLO.model_copy(update={"proof": prove(token, nonce, HELLO)})
    assert proves(token, nonce, hello)
    assert token not in encode(hello).decode()
    assert not proves(token, "cd" * 32, hello)
    assert not proves("another token", nonce, hello)
    assert not proves(token, nonce, hello.model_copy(update={"worker": 4}))
    assert not proves(token, nonce, HELLO)
