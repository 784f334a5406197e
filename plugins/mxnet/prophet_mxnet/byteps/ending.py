"""The end of a Gluon job: MXNet's remaining work is done before BytePS goes.

Rule of this file: the order of the two, and nothing about trainers. MXNet waits for all of its operators when the
process ends, after BytePS's own end. If one of them is a transfer, which BytePS no longer makes by then, that wait has
no end. So MXNet is waited for first: before BytePS is shut down or suspended, and before the process ends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from prophet_scheduler.frontends.ending import finish_first

PATIENCE_S = 300.0
"""Longest wait in seconds: where a worker is gone, what others wait for may never come."""

logger = logging.getLogger("prophet_scheduler")


class WaitForMXNet:
    """Wait for MXNet, by its `waitall`, before BytePS goes."""

    def __init__(self, waitall: Callable[[], None], patience_s: float = PATIENCE_S) -> None:
        self._waitall = waitall
        self._patience_s = patience_s

    def put_before(self, bps: Any) -> None:
        """Wait before `shutdown` and `suspend` of `bps`, byteps.mxnet, and the end of a process after its `init`."""
        finish_first(bps, self.settle)

    def settle(self) -> None:
        """Return when MXNet has done all its work, or after the patience, with a warning."""
        waiting = threading.Thread(target=self._wait, name="prophet-end", daemon=True)
        waiting.start()
        waiting.join(self._patience_s)
        if waiting.is_alive():
            logger.warning("transfers were still to come when the job ended, and %.0f s later", self._patience_s)

    def _wait(self) -> None:
        try:
            self._waitall()
        except Exception as error:
            logger.warning("when the job ended, MXNet said: %s", str(error).strip().partition("\n")[0])
