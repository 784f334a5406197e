"""The two ends of a rate measurement: programs run by path inside two nodes.

traffic.py receive ADDRESS DISCARD_S     prints the port, then the rate in bits a second of the bytes after DISCARD_S
traffic.py send ADDRESS PORT SECONDS     sends for that long and closes
"""

from __future__ import annotations

import socket
import sys
import time

CHUNK_BYTES = 1 << 20
PATIENCE_S = 10.0


def receive(address: str, discard_s: float) -> float:
    """Bits per second of payload from the first arrival after `discard_s` to the last one; 0 if nothing came then."""
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


def main(arguments: list[str]) -> None:
    match arguments:
        case ["receive", address, discard_s]:
            print(receive(address, float(discard_s)), flush=True)
        case ["send", address, port, seconds]:
            send(address, int(port), float(seconds))


if __name__ == "__main__":
    main(sys.argv[1:])
