"""Training scripts of the experiments. Each is an ordinary program of its framework, unaware of Prophet.

`pytorch` has a module for each kind of job. The framework-independent parts, shared with other packages' scripts, are
in this folder.
"""

from pathlib import Path


def progress_path(out: Path) -> Path:
    """Return the path of the progress file beside a job's result; it gains one line per iteration."""
    return out.with_suffix(".progress")
