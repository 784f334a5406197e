"""A program of the maintainers as ranks on a testbed, and what it says.

Rule of this file: what several tools need of running it; the tools evaluate the results.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.lab.launchers import without_jobs
from prophet_scheduler.lab.own_script import run_ranks
from prophet_scheduler.lab.testbed import Testbed


def said_by_ranks(
    program: Sequence[str], workers: Sequence[str], nodes: Testbed, own: Mapping[str, str] | None = None
) -> Any:
    """Run `python -m PROGRAM` as a rank on each worker, with `own` in its environment. Return the last line that is
    JSON, parsed. Raises UserError.
    """
    said: list[str] = []
    shell = without_jobs(os.environ) | dict(own or {})
    status = run_ranks([sys.executable, "-m", *program], workers, nodes, said.append, shell=shell)
    found = [line for line in said if line.startswith("{")]
    if status or not found:
        raise UserError(f"{' '.join(program[:2])}: {'; '.join(said[-2:]) or 'it said nothing'}")
    return json.loads(found[-1])
