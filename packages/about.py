"""Facts that every distribution of this checkout gives: prophet-scheduler and those of plugins/.

REPOSITORY is empty until the project has a public home. Fill it in here, and nowhere else.
"""

from pathlib import Path
from runpy import run_path

REPOSITORY = ""
"""Address of the repository, without a slash at its end; issues are in its tracker."""
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
"""Versions that wheels are made for."""

_CORE = Path(__file__).parents[1] / "prophet" / "prophet_scheduler" / "__init__.py"
VERSION = run_path(str(_CORE))["__version__"]
COMMON = {
    "version": VERSION,
    "python_requires": f">={PYTHONS[0]}",
    "project_urls": {"Source": REPOSITORY, "Issues": f"{REPOSITORY}/issues"} if REPOSITORY else {},
}
"""Arguments of setup() that all have."""
