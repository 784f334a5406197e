"""Keeps a TCP port busy until it is killed: occupy.py PORT"""

from __future__ import annotations

import signal
import socket
import sys

with socket.create_server(("", int(sys.argv[1]))):
    print("bound", flush=True)
    signal.pause()
