"""The delay of a link: which ones make sense, what they ask of TCP, and the relay process that makes one.

    node -- tbf ==== near | relay | far ==== tbf -- bridge

The relay (native/relay.cc) joins the node's veth pair to one that ends on the bridge. In both directions it comes after
the token bucket, as a long wire comes after the card that feeds it.
"""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from prophet_scheduler.core.errors import UserError

from .namespaces import launcher, try_alone
from .shaping import MAX_BANDWIDTH_BPS, QUEUE_S

PROGRAM = Path(__file__).with_name("relay.py")
MAX_DELAY_S = 0.02
PATIENCE_S = 10.0

SLACK_S = 0.0005
"""How much longer than asked for a round trip may take: what programs and bridge add, without and with a relay."""

FAST_BPS = 10e9
"""The rate that buffers are made for where a link with a delay is not shaped."""


@dataclass(frozen=True)
class RelayReport:
    """What a relay did since it was last asked; times in seconds.

    `late_...` is how much later than due a frame was sent; `dropped` frames found no room. `realtime` says whether the
    relay goes before all other programs of the machine.
    """

    frames: int
    bytes: int
    dropped: int
    late_mean_s: float
    late_p99_s: float
    late_max_s: float
    cpu_s: float
    realtime: bool


def check_delay(node: str, delay_s: float | None) -> None:
    """Raises UserError unless it is None (no relay) or a delay that this testbed can make."""
    if delay_s is not None and not (math.isfinite(delay_s) and 0 <= delay_s <= MAX_DELAY_S):
        most = f"{MAX_DELAY_S * 1e3:g} ms"
        raise UserError(f"delay of {node}: {delay_s * 1e3:g} ms each way cannot be emulated here; give 0 to {most}")


def tcp_buffer_bytes(round_trip_s: float, bandwidth_bps: float | None) -> int:
    """How large a connection's buffers must be able to grow, so that not they limit the rate; 0 without a delay.

    They hold what is under way and what waits in the bucket's queue (`token_bucket`), and the kernel counts its own
    overhead as well, which is as much again. A rate that is not known (None) is taken for FAST_BPS; one that is may be
    raised later.
    """
    rate = FAST_BPS if bandwidth_bps is None else max(bandwidth_bps, MAX_BANDWIDTH_BPS)
    held_s = round_trip_s + max(QUEUE_S, round_trip_s)
    return round(2 * rate / 8 * held_s) if round_trip_s else 0


def require_relay() -> None:
    """Raises UserError where a relay cannot run, with the reason and what to do."""
    tried = try_alone(*_program("try"))
    if tried.returncode != 0:
        raise UserError(f"links cannot be delayed here: {_last_line(tried.stderr)}")


class Relay:
    """A running relay of `node`'s link. Ends when it is closed, or when this process ends in any way."""

    def __init__(self, node: str, namespace: str, near: str, far: str, delay_s: float) -> None:
        """Raises UserError where it does not start."""
        self._node = node
        self._fault: str | None = None
        self._process = subprocess.Popen(
            launcher("enter", namespace, *_program(near, far, repr(delay_s))),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout and self._process.stderr
        if self._process.stdout.readline() != "ready\n":
            reason = _last_line(self._process.stderr.read())
            self.close()
            raise UserError(f"the link of {node} cannot be delayed: {reason}")

    def fault(self) -> str | None:
        """Why frames do not pass any more, in one line; None while they do."""
        status = self._process.poll()
        if status is not None and self._fault is None:
            assert self._process.stderr
            words = _last_line(self._process.stderr.read())
            self._fault = f"the relay of {self._node}'s link ended with status {status}: {words}"
        return self._fault

    def report(self) -> RelayReport:
        """What it did since the last report. Raises UserError where it has ended."""
        assert self._process.stdin and self._process.stdout
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._process.wait(PATIENCE_S)
            raise UserError(self.fault() or f"the relay of {self._node}'s link says nothing")
        return RelayReport(**json.loads(line))

    def close(self) -> None:
        assert self._process.stdin and self._process.stdout and self._process.stderr
        with contextlib.suppress(BrokenPipeError):  # it has ended, with a question unread
            self._process.stdin.close()  # it ends now
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._process.stderr.close()


def _program(*arguments: str) -> list[str]:
    return [sys.executable, "-I", "-S", str(PROGRAM), *arguments]


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1]
