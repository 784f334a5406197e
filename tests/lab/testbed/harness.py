"""A program that makes a testbed, for test_testbed.py to see what is left of it: harness.py HOW LOG

HOW is what it does when a program runs in the testbed, with its output in LOG, and the namespaces' numbers are printed:
wait until it is killed, fail with an error, or measure both ways of the link.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from prophet_scheduler.lab.testbed import NodeSpec, Testbed, reexec_in_user_namespace

PROGRAM = ["sh", "-c", "echo started; trap '' HUP; sleep 1000 & sleep 1000"]
RATE_BPS = 100e6
MEASURE_S = 0.9
MEASURED = 5
"""Times at most: a busy machine disturbs some."""
DELAY_S = 0.002


def main(how: str, log: Path) -> None:
    reexec_in_user_namespace()
    with Testbed([NodeSpec("worker0", RATE_BPS, delay_s=DELAY_S), NodeSpec("server", None)]) as testbed:
        testbed.popen("worker0", PROGRAM, env={"PATH": os.environ["PATH"]}, log=log)
        while "started" not in log.read_text():
            time.sleep(0.01)
        print(*[Path(path).stat().st_ino for path in testbed._namespaces], flush=True)
        if how == "wait":
            signal.pause()
        if how == "error":
            raise ValueError("a bug in the harness")
        if how == "measure":
            for source, target in (("worker0", "server"), ("server", "worker0")):
                for _ in range(MEASURED):
                    rate = testbed.measure(source, target, MEASURE_S)
                    if abs(rate / RATE_BPS - 1) < 0.1:
                        break
                print(rate)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
