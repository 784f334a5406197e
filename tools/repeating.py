"""Work that is repeated beside a job.

Rule of this file: its thread, and no more; the caller supplies the work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeating(every_s: float, act: Callable[[], object]) -> Iterator[None]:
    """Call `act` every `every_s` seconds, in a thread of its own, as long as the context lasts."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(every_s):
            act()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
