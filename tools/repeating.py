"""Something that is done again and again beside a job.

Rule of this file: the thread of it, and no more; what is done is the caller's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeating(every_s: float, act: Callable[[], object]) -> Iterator[None]:
    """Calls `act` every so many seconds, in a thread of its own, as long as the context lasts."""
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
