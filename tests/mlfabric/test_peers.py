"""Workers that send each other bytes, over real sockets of this machine."""

from __future__ import annotations

import threading

import pytest

from prophet.mlfabric.peers import PeerMessage, Peers

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
