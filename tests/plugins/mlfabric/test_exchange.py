"""Requests and answers over real sockets of this machine: who is believed, and what strangers cost."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_mlfabric.exchange import (
    DONE,
    HEAD_BYTES,
    NONCE_BYTES,
    REFUSED,
    Asked,
    Listener,
    Request,
    key_of,
    message,
)
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.hub import listener_at

KEY = key_of("job", "sixteen characters")
LONG_S = 60.0
"""Longer than anything here takes."""
MOST = 100_000
"""Most bytes of a message."""


def take(own: socket.socket, count: int) -> bytes:
    """Return `count` bytes, or what comes before the other end closes the connection."""
    taken = b""
    while len(taken) < count and (piece := own.recv(count - len(taken))):
        taken += piece
    return taken


class Listening:
    """Listener that answers each request with its bytes twice, and ways for a stranger to get at it."""

    def __init__(self, stranger_s: float = LONG_S) -> None:
        self.requests: list[Request] = []
        self.listener = Listener("127.0.0.1", 0, KEY, MOST, self.handle, stranger_s)
        self.thread = threading.Thread(target=self.listener.serve)
        self.thread.start()

    def handle(self, request: Request) -> None:
        self.requests.append(request)
        if request.kind == 9:
            raise KeyError("nine")
        refused = request.kind == 8
        request.answer(REFUSED if refused else DONE, request.number, b"not so" if refused else 2 * request.payload)

    def ask(self, payload: bytes = b"update", kind: int = 1, key: bytes = KEY) -> tuple[int, bytes]:
        with Asked(self.listener.address, key, kind, 3, 2**40, payload, LONG_S) as asked:
            return asked.answer()

    def served(self) -> bool:
        """Return True if a client with the token is served."""
        return self.ask() == (2**40, b"updateupdate")

    def connect(self) -> tuple[socket.socket, bytes]:
        own = socket.create_connection(self.listener.address, LONG_S)
        return own, take(own, NONCE_BYTES)

    def stop(self) -> None:
        self.listener.stop()
        self.thread.join(LONG_S)
        assert not self.thread.is_alive()
        self.listener.close()


@pytest.fixture
def listening() -> Iterator[Listening]:
    one = Listening()
    yield one
    one.stop()


def said(nonce: bytes, payload: bytes, length: int | None = None, kind: int = 1) -> bytes:
    """A message with a proof, as the format says; its head may say another `length`."""
    digest = hashlib.blake2b(payload, digest_size=32).digest()
    head = struct.pack("<BIQQ32s32s", kind, 3, 1, len(payload) if length is None else length, digest, b"")
    return head + hashlib.blake2b(nonce + head, key=KEY, digest_size=32).digest() + payload


def ends(own: socket.socket) -> bool:
    """Return True if the other end closes the connection."""
    try:
        return own.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_request_and_its_answer_arrive_whole(listening: Listening) -> None:
    payload = bytes(range(256)) * 300
    assert listening.ask(payload) == (2**40, 2 * payload)
    assert listening.ask(b"") == (2**40, b"")
    assert [(each.kind, each.worker, each.payload) for each in listening.requests] == [(1, 3, payload), (1, 3, b"")]


def test_a_refusal_is_an_error_with_its_words(listening: Listening) -> None:
    with pytest.raises(UserError, match=r"^not so$"):
        listening.ask(kind=8)


def test_a_failure_of_whoever_is_asked_is_one_warning_there(
    listening: Listening, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="prophet_scheduler"), pytest.raises(OSError):
        listening.ask(kind=9)
    assert [record.message for record in caplog.records] == ["Prophet: a request was not answered: KeyError: 'nine'"]
    assert listening.served()


def test_one_without_the_token_is_refused_and_nothing_of_its_bytes_is_taken(listening: Listening) -> None:
    for key in (key_of("job", "another token"), key_of("other", "sixteen characters")):
        with pytest.raises(UserError, match="the token is wrong"):
            listening.ask(b"x" * MOST, key=key)
    assert listening.requests == []


@pytest.mark.parametrize("wrong", ["no proof", "another's nonce"])
def test_without_a_proof_there_is_a_head_without_one_and_no_more(listening: Listening, wrong: str) -> None:
    own, _ = listening.connect()
    with own:
        own.sendall(b"x" * HEAD_BYTES if wrong == "no proof" else said(bytes(NONCE_BYTES), b"forged"))
        own.shutdown(socket.SHUT_WR)
        assert take(own, 2 * HEAD_BYTES) == bytes([REFUSED]) + bytes(HEAD_BYTES - 1)
    assert listening.served() and len(listening.requests) == 1


@pytest.mark.parametrize("wrong", ["too long", "huge", "other bytes"])
def test_whoever_says_too_much_is_disconnected(listening: Listening, wrong: str) -> None:
    own, nonce = listening.connect()
    with own:
        own.sendall(
            {
                "too long": said(nonce, b"", MOST + 1),
                "huge": said(nonce, b"", 2**64 - 1),
                "other bytes": said(nonce, b"forged")[:-1] + b"?",
            }[wrong]
        )
        assert ends(own)
    assert listening.served() and len(listening.requests) == 1


def test_a_message_that_was_overheard_is_of_no_use_on_another_connection(listening: Listening) -> None:
    own, nonce = listening.connect()
    overheard = said(nonce, b"update")
    with own:
        own.sendall(overheard)
        take(own, HEAD_BYTES)
    own, _ = listening.connect()
    with own:
        own.sendall(overheard)
        assert own.recv(1) == bytes([REFUSED])
    assert len(listening.requests) == 1


def test_several_messages_on_one_connection_are_answered_in_order(listening: Listening) -> None:
    own, nonce = listening.connect()
    with own:
        own.sendall(said(nonce, b"first") + said(nonce, b"") + said(nonce, b"last"))
        take(own, 3 * HEAD_BYTES + 18)
    assert [request.payload for request in listening.requests] == [b"first", b"", b"last"]


def test_a_stranger_that_says_nothing_is_disconnected_in_time() -> None:
    listening = Listening(stranger_s=0.2)
    try:
        own, _ = listening.connect()
        with own:
            own.sendall(b"x" * (HEAD_BYTES - 1))
            assert ends(own)
        assert listening.served()
    finally:
        listening.stop()


def test_many_strangers_who_drip_take_no_thread_and_keep_nobody_out(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening.listener._hub, "_most_strangers", 8)
    threads = threading.active_count()
    strangers = [socket.create_connection(listening.listener.address) for _ in range(40)]
    try:
        for own in strangers[-4:]:
            own.sendall(b"x")
        assert listening.served()
        assert len(listening.listener._hub) <= 8 + 1
        assert threading.active_count() == threads
    finally:
        for own in strangers:
            own.close()


def test_whatever_bytes_come_others_are_served(listening: Listening) -> None:
    @given(st.binary(max_size=2 * HEAD_BYTES), st.integers(0, HEAD_BYTES))
    def stranger(data: bytes, cut: int) -> None:
        own, nonce = listening.connect()
        with own:
            own.sendall(said(nonce, data)[:cut] + data)

    stranger()
    assert listening.served()


@contextlib.contextmanager
def impostor(*answers: bytes) -> Iterator[tuple[str, int]]:
    """Listener that gives these answers to whoever asks, the last one again and again."""
    with listener_at("127.0.0.1", 0) as listener:

        def serve() -> None:
            own, _ = listener.accept()
            with own, contextlib.suppress(OSError):
                for answer in answers:
                    own.sendall(answer)
                while True:
                    own.sendall(answers[-1])

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[:2]
        thread.join(LONG_S)
        assert not thread.is_alive()


def test_of_one_who_has_not_the_token_no_more_than_a_head_is_read() -> None:
    answer = message(b"another key", bytes(32), DONE, 0, 7, b"x" * 10**6)
    with (
        impostor(bytes(NONCE_BYTES), answer) as address,
        Asked(address, KEY, 1) as asked,
        pytest.raises(UserError, match="does not have the job's token"),
    ):
        asked.answer()


def test_one_that_is_not_there_or_says_nothing_is_an_error_of_the_system() -> None:
    with listener_at("127.0.0.1", 0) as listener:
        address = listener.getsockname()[:2]
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            Asked(address, KEY, 1, timeout_s=0.05)
        assert time.monotonic() - began < LONG_S
    with pytest.raises(ConnectionRefusedError):
        Asked(address, KEY, 1)
