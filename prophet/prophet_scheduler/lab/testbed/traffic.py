"""The testbed's own traffic: programs run by path inside two nodes.

traffic.py receive ADDRESS DISCARD_S     prints the port, then the rate after DISCARD_S in bits per second
traffic.py send ADDRESS PORT SECONDS     sends for that long and closes
traffic.py echo ADDRESS                  prints the port, and sends back all packets that arrive
traffic.py ask ADDRESS PORT COUNT        prints the median round trip in seconds of COUNT small packets, one at a time
traffic.py sink ADDRESS                  prints the port, and ignores all packets that arrive
traffic.py flood ADDRESS PORT RATE       sends RATE bits per second, regardless of other traffic
"""

from __future__ import annotations

import contextlib
import signal
import socket
import statistics
import sys
import time

CHUNK_BYTES = 1 << 20
PATIENCE_S = 10.0

ASK_BYTES = 64
ASK_PATIENCE_S = 1.0  # for one answer
FLOOD_EVERY_S = 0.001
MOST_FLOOD_BYTES = 60_000  # of a datagram, which the kernel splits into frames: a single call sends all of them
DEBT_S = 0.02  # maximum delay that a flood makes up for
SEND_BUFFER_BYTES = 16 << 20  # a share of the longest queue, so that a flood waits for the link
SO_SNDBUFFORCE = 32  # not defined in Python's socket module


def receive(address: str, discard_s: float) -> float:
    """Return the payload rate in bits per second from the first arrival after `discard_s` to the last; 0 if none."""
    with socket.create_server((address, 0)) as server:
        server.settimeout(PATIENCE_S)
        print(server.getsockname()[1], flush=True)
        connection, _ = server.accept()
    chunk = bytearray(CHUNK_BYTES)
    with connection:
        connection.settimeout(PATIENCE_S)
        opened = time.monotonic()
        counting_from = last = 0.0
        counted = 0
        while size := connection.recv_into(chunk):
            last = time.monotonic()
            if counting_from:
                counted += size
            elif last - opened >= discard_s:
                counting_from = last
    return 8 * counted / (last - counting_from) if counted else 0.0


def send(address: str, port: int, seconds: float) -> None:
    chunk = bytes(CHUNK_BYTES)
    with socket.create_connection((address, port), timeout=PATIENCE_S) as connection:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            connection.sendall(chunk)


def echo(address: str) -> None:
    with _bound(address) as server:
        while True:
            packet, sender = server.recvfrom(ASK_BYTES)
            server.sendto(packet, sender)


def ask(address: str, port: int, count: int) -> float:
    """Return the median seconds of the round trips that completed; infinite if none did."""
    times = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect((address, port))
        client.settimeout(ASK_PATIENCE_S)
        for number in range(count):
            packet = number.to_bytes(ASK_BYTES, "big")
            asked = time.monotonic()
            client.send(packet)
            with contextlib.suppress(TimeoutError):
                while client.recv(ASK_BYTES) != packet:
                    pass  # a late answer to a packet that timed out
                times.append(time.monotonic() - asked)
    return statistics.median(times) if times else float("inf")


def sink(address: str) -> None:
    with _bound(address):
        signal.pause()  # the kernel drops packets once the socket's buffer is full


def flood(address: str, port: int, bits_per_s: float) -> None:
    """Send datagrams at a steady rate, forever; other traffic gets the rest of the link."""
    datagram = bytes(max(1, min(MOST_FLOOD_BYTES, round(bits_per_s / 8 * FLOOD_EVERY_S))))
    every_s = 8 * len(datagram) / bits_per_s
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        try:
            client.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, SEND_BUFFER_BYTES)
        except PermissionError:  # root of a user namespace gets only the size allowed to every user
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        client.connect((address, port))
        due = time.monotonic()
        while True:
            now = time.monotonic()
            if due > now:
                time.sleep(due - now)
            due = max(due, now - DEBT_S) + every_s
            client.send(datagram)


def _bound(address: str) -> socket.socket:
    """Return a bound datagram socket, and print its port."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    bound.bind((address, 0))
    print(bound.getsockname()[1], flush=True)
    return bound


def main(arguments: list[str]) -> None:
    match arguments:
        case ["receive", address, discard_s]:
            print(receive(address, float(discard_s)), flush=True)
        case ["ask", address, port, count]:
            print(ask(address, int(port), int(count)), flush=True)
        case ["send", address, port, seconds]:
            send(address, int(port), float(seconds))
        case ["flood", address, port, rate]:
            flood(address, int(port), float(rate))
        case ["echo", address]:
            echo(address)
        case ["sink", address]:
            sink(address)


if __name__ == "__main__":
    main(sys.argv[1:])
