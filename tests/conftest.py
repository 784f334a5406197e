"""For all tests: Ctrl-C means the same in what they start, and no test hangs on how fast the machine is."""

from __future__ import annotations

import signal

from hypothesis import settings

# A shell that starts something in the background lets it ignore Ctrl-C, and programs inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run, and as much time for each as it takes.
settings.register_profile("deterministic", deadline=None, derandomize=True)
settings.load_profile("deterministic")
