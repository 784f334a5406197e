"""Privileges for tests that make network namespaces in this very process.

Rule of this file: reasons to skip; without root the tests that start programs in a user namespace still run.
"""

from __future__ import annotations

import os

import pytest

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.lab.testbed import require_namespaces


def skip_without_namespaces() -> None:
    """Skip the test if this process may not make a testbed."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    try:
        require_namespaces()
    except UserError as error:
        pytest.skip(str(error))
