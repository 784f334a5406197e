"""The end of a Gluon job: MXNet finishes its work before BytePS shuts down.

Rule of this file: the order of the two, and nothing about trainers. MXNet waits for all of its operators when the
process exits, after BytePS's shutdown. If one of them is a transfer, which BytePS no longer makes by then, MXNet waits
forever. So wait for MXNet first: before BytePS is shut down or suspended, and before the process exits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from prophet_scheduler.frontends.ending import finish_first
from prophet_scheduler.frontends.notices import logger

PATIENCE_S = 300.0
"""Maximum wait in seconds: if a worker is gone, averages that others wait for may never arrive."""


def wait_for_mxnet_first(bps: Any, waitall: Callable[[], None], patience_s: float = PATIENCE_S) -> None:
    """Wait for MXNet, by its `waitall`, before `shutdown` and `suspend` of byteps.mxnet (`bps`), and before the process
    exits after `init`. When the patience runs out, go on with a warning.
    """

    def wait() -> None:
        try:
            waitall()
        except Exception as error:
            logger.warning("MXNet failed when the job ended: %s", str(error).strip().partition("\n")[0])

    def settle() -> None:
        waiting = threading.Thread(target=wait, name="prophet-end", daemon=True)
        waiting.start()
        waiting.join(patience_s)
        if waiting.is_alive():
            logger.warning("transfers were still outstanding when the job ended, and %.0f s later", patience_s)

    finish_first(bps, settle)
