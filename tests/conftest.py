"""For all tests: Ctrl-C means the same in what they start, however they were started themselves."""

from __future__ import annotations

import signal

# A shell that starts something in the background lets it ignore Ctrl-C, and programs inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
