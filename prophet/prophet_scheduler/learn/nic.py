"""I/O of the bandwidth monitor: counters of this machine's interfaces, and the interface towards a host."""

from __future__ import annotations

import socket

import psutil

from prophet_scheduler.learn.bandwidth import NicSample


def sample_nic(interface: str, time_s: float) -> NicSample | None:
    """Return the present counters of `interface`, or None if it no longer exists."""
    counters = psutil.net_io_counters(pernic=True).get(interface)
    return NicSample(time_s, counters.bytes_sent, counters.bytes_recv) if counters else None


def interface_towards(host: str) -> str | None:
    """Return the interface through which this machine reaches `host`, or None if unknown."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))  # no packet is sent: connecting a datagram socket only picks the route
            address = probe.getsockname()[0]
    except OSError:
        return None
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in addresses):
            return name
    return None
