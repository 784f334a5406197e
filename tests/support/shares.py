"""Shares of the workers of `pytest --numprocesses`: one worker has the real networks, and the rest goes by file.

Rule of this file: names of files alone decide, so that all workers and the distributing process agree.

Jobs on real networks wait for most of their time, and tests that compute fit in between. Two such jobs at once would
take each other's processor, so they are one share. Tests that look at rates or times come last in it, when only tests
that compute run beside them. The scripts of test_scripts.py make networks as well, but no time counts there. They are
the second share to begin, since they take longest of the rest.
"""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadScopeScheduling

NETWORKS = (
    "tests/net/",
    "tests/docs/test_tutorial.py",
    "tests/contract/scheduled_engines/",
    "tests/plugins/byteps/build/test_cuda.py",
)
"""Prefixes of files whose tests make networks."""
TIMED = (
    "tests/net/test_asynchronous.py",
    "tests/net/test_real_jobs.py",
    "tests/net/test_start.py",
    "tests/lab/test_own_script.py",
    "tests/lab/testbed/",
    "tests/tools/test_soak.py",
)
"""Prefixes of those that look at rates or times."""
SCRIPTS = "tests/scripts/test_scripts.py"


def place(test: str) -> int:
    """Return a test's place in a run, by its id: 0 and 1 are the share of networks, 2 the scripts, 3 all others."""
    file = test.partition("::")[0]
    if file.startswith(TIMED):
        return 1
    if file.startswith(NETWORKS):
        return 0
    return 2 if file == SCRIPTS else 3


class Shares(LoadScopeScheduling):  # type: ignore[misc]
    """xdist's scheduler of tests that stay together, in the order of collection."""

    def __init__(self, config: Any, log: Any) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return "networks" if place(nodeid) < 2 else nodeid.partition("::")[0]
