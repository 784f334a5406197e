"""Training scripts of the experiments. Each is an ordinary program of its framework and knows nothing of Prophet.

`pytorch` and `gluon` have a module for each kind of job; what they share, and what knows no framework, is here.
"""

from pathlib import Path


def progress_path(out: Path) -> Path:
    """Beside a job's result: a file that grows by a line an iteration, for whoever waits for the job."""
    return out.with_suffix(".progress")
