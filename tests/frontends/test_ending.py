"""What comes before the end of a process, and in which one."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os
from prophet.frontends.ending import at_end

at_end(lambda: print("second", os.getpid() == parent, flush=True))
at_end(lambda: print("first", os.getpid() == parent, flush=True))
parent = os.getpid()
child = os.fork()
if child:
    os.waitpid(child, 0)
    print("the fork has ended", flush=True)
"""


def test_a_fork_that_ends_does_nothing_of_what_its_parent_is_to_do() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.splitlines() == ["the fork has ended", "first True", "second True"]
