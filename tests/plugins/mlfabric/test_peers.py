"""Workers that send each other bytes, over real sockets of this machine."""

from __future__ import annotations

import hashlib
import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_mlfabric.peers import HEAD_BYTES, NONCE_BYTES, PeerMessage, Peers

TOKEN = "sixteen characters"
LONG_S = 60.0
"""Nothing takes so long."""


class Inbox:
    def __init__(self) -> None:
        self.messages: list[tuple[PeerMessage, int, int, bytes]] = []
        self.came = threading.Event()

    def __call__(self, what: PeerMessage, worker: int, update: int, payload: bytes) -> None:
        self.messages.append((what, worker, update, payload))
        self.came.set()


def test_a_message_arrives_whole_and_one_without_the_token_does_not() -> None:
    inbox = Inbox()
    receiver = Peers(TOKEN, 0, "127.0.0.1", 1 << 20)
    sender, stranger = Peers(TOKEN, 3, "127.0.0.1", 1 << 20), Peers("another job's token", 4, "127.0.0.1", 1 << 20)
    try:
        for peer in (sender, stranger):
            peer.know({0: ("127.0.0.1", receiver.port)})
        stranger.send(PeerMessage.UPDATE, 0, 1, b"forged")
        sender.send(PeerMessage.MODEL, 0, 2**40, memoryview(bytes(range(256)) * 100))
        receiver.listen(inbox)
        assert inbox.came.wait(LONG_S)
    finally:
        for peer in (sender, stranger, receiver):
            peer.close()
    assert inbox.messages == [(PeerMessage.MODEL, 3, 2**40, bytes(range(256)) * 100)]


def test_a_worker_that_nobody_has_told_of_is_an_error() -> None:
    peer = Peers(TOKEN, 0, "127.0.0.1", 1 << 20)
    with pytest.raises(KeyError):
        peer.send(PeerMessage.UPDATE, 9, 0, b"")
    peer.close()


MOST = 1000
"""Bytes of a message."""


class Listening:
    """A worker that listens, and how a stranger gets at it."""

    def __init__(self, stranger_s: float = LONG_S) -> None:
        self.inbox = Inbox()
        self.peers = Peers(TOKEN, 0, "127.0.0.1", MOST, stranger_s)
        self.peers.listen(self.inbox)

    def connect(self) -> tuple[socket.socket, bytes]:
        own = socket.create_connection(("127.0.0.1", self.peers.port), LONG_S)
        return own, own.recv(NONCE_BYTES, socket.MSG_WAITALL)

    def served(self) -> bool:
        """Whether another worker's message arrives."""
        self.inbox.came.clear()
        sender = Peers(TOKEN, 3, "127.0.0.1", MOST)
        sender.know({0: ("127.0.0.1", self.peers.port)})
        sender.send(PeerMessage.UPDATE, 0, 1, b"update")
        came = self.inbox.came.wait(LONG_S)
        sender.close()
        return came


@pytest.fixture
def listening() -> Iterator[Listening]:
    worker = Listening()
    yield worker
    worker.peers.close()


def said(nonce: bytes, payload: bytes, length: int | None = None, digest: bytes | None = None, kind: int = 1) -> bytes:
    """A head with a proof, and bytes."""
    digest = hashlib.blake2b(payload, digest_size=32).digest() if digest is None else digest
    head = struct.pack("<BIQQ32s", kind, 3, 1, len(payload) if length is None else length, digest)
    key = hashlib.sha256(TOKEN.encode()).digest()
    return head + hashlib.blake2b(nonce + head, key=key, digest_size=32).digest() + payload


def ends(own: socket.socket) -> bool:
    """Whether the other end closes it."""
    try:
        return own.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("wrong", ["no proof", "another's nonce", "too long", "huge", "other bytes"])
def test_whoever_has_no_proof_or_says_too_much_is_disconnected(listening: Listening, wrong: str) -> None:
    own, nonce = listening.connect()
    with own:
        own.sendall(
            {
                "no proof": b"x" * HEAD_BYTES,
                "another's nonce": said(bytes(NONCE_BYTES), b"forged"),
                "too long": said(nonce, b"", MOST + 1),
                "huge": said(nonce, b"", 2**64 - 1),
                "other bytes": said(nonce, b"forged", digest=bytes(32)),
            }[wrong]
        )
        assert ends(own)
    assert listening.served()
    assert [payload for *_, payload in listening.inbox.messages] == [b"update"]


def test_a_message_that_was_overheard_is_of_no_use_on_another_connection(listening: Listening) -> None:
    own, nonce = listening.connect()
    message = said(nonce, b"update")
    with own:
        own.sendall(message)
        assert listening.inbox.came.wait(LONG_S)
    own, _ = listening.connect()
    with own:
        own.sendall(message)
        assert ends(own)
    assert len(listening.inbox.messages) == 1


def test_a_message_of_no_known_sort_or_without_bytes_disturbs_nobody(listening: Listening) -> None:
    own, nonce = listening.connect()
    with own:
        own.sendall(said(nonce, b"?", kind=9) + said(nonce, b"") + said(nonce, b"last"))
        while len(listening.inbox.messages) < 2:
            assert listening.inbox.came.wait(LONG_S)
    assert [payload for *_, payload in listening.inbox.messages] == [b"", b"last"]


def test_a_stranger_that_says_nothing_is_disconnected_in_time() -> None:
    listening = Listening(stranger_s=0.2)
    try:
        own, _ = listening.connect()
        with own:
            own.sendall(b"x" * (HEAD_BYTES - 1))
            assert ends(own)
        assert listening.served()
    finally:
        listening.peers.close()


def test_many_strangers_keep_no_worker_out(listening: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening.peers._hub, "_most_strangers", 8)
    strangers = [socket.create_connection(("127.0.0.1", listening.peers.port)) for _ in range(40)]
    try:
        assert listening.served()
        assert len(listening.peers._hub) <= 8 + 1
    finally:
        for own in strangers:
            own.close()


def test_whatever_bytes_come_a_worker_is_served() -> None:
    listening = Listening()

    @given(st.binary(max_size=2 * HEAD_BYTES), st.integers(0, HEAD_BYTES))
    def stranger(data: bytes, cut: int) -> None:
        own, nonce = listening.connect()
        with own:
            own.sendall(said(nonce, data)[:cut] + data)

    try:
        stranger()
        listening.inbox.messages.clear()
        assert listening.served()
    finally:
        listening.peers.close()
