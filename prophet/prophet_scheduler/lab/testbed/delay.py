"""Delay of a link: its limits, the TCP buffers it needs, and the relay process that adds it.

    node -- tbf ==== near | relay | far ==== tbf -- bridge

The relay (native/relay.cc) joins the node's veth pair to a second pair that ends at the bridge. In both directions it
follows the token bucket, as a long wire follows the card that feeds it.
"""

from __future__ import annotations

import math
import subprocess

from prophet_scheduler.core.errors import UserError

from .namespaces import launcher, try_alone
from .shaping import MAX_BANDWIDTH_BPS, QUEUE_S

MAX_DELAY_S = 0.02
PATIENCE_S = 10.0

SLACK_S = 0.0005
"""Maximum time that programs and the bridge may add to a round trip, with or without a relay."""

FAST_BPS = 10e9
"""Rate assumed, when sizing buffers, for a link with a delay but without shaping."""


def check_delay(node: str, delay_s: float | None) -> None:
    """Raise UserError unless the delay is None (no relay) or within what this testbed can emulate."""
    if delay_s is not None and not (math.isfinite(delay_s) and 0 <= delay_s <= MAX_DELAY_S):
        most = f"{MAX_DELAY_S * 1e3:g} ms"
        raise UserError(f"delay of {node}: {delay_s * 1e3:g} ms each way cannot be emulated here; give 0 to {most}")


def tcp_buffer_bytes(round_trip_s: float, bandwidth_bps: float | None) -> int:
    """Return the size that a connection's buffers must be able to reach so as not to limit the rate; 0 without delay.

    They hold the bytes on the wire and in the bucket's queue (`token_bucket`), doubled for the kernel's overhead. A
    known rate counts as at least MAX_BANDWIDTH_BPS, since it may rise later; an unknown rate (None) counts as FAST_BPS.
    """
    rate = FAST_BPS if bandwidth_bps is None else max(bandwidth_bps, MAX_BANDWIDTH_BPS)
    held_s = round_trip_s + max(QUEUE_S, round_trip_s)
    return round(2 * rate / 8 * held_s) if round_trip_s else 0


def require_relay() -> None:
    """Raise UserError with the reason if a relay cannot run."""
    tried = try_alone(*launcher("relay", "try"))
    if tried.returncode != 0:
        raise UserError(f"links cannot be delayed here: {_last_line(tried.stderr)}")


class Relay:
    """Running relay of `node`'s link. It exits on `close`, or when this process exits for any reason."""

    def __init__(self, node: str, namespace: str, near: str, far: str, delay_s: float) -> None:
        """Start the relay. Raises UserError if that fails."""
        self._node = node
        self._fault: str | None = None
        self._process = subprocess.Popen(
            launcher("enter", namespace, *launcher("relay", near, far, repr(delay_s))),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout
        if self._process.stdout.readline() != "ready\n":
            raise UserError(f"the link of {node} cannot be delayed: {_last_line(self._process.communicate()[1])}")

    def fault(self) -> str | None:
        """Reason, in one line, why frames no longer pass; None while they do."""
        status = self._process.poll()
        if status is not None and self._fault is None:
            words = _last_line(self._process.communicate()[1])
            self._fault = f"the relay of {self._node}'s link ended with status {status}: {words}"
        return self._fault

    def close(self) -> None:
        try:
            self._process.communicate(timeout=PATIENCE_S)  # closes standard input, which makes the relay exit
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1]
