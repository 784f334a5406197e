"""Training scripts of the experiments. Each is an ordinary program of its framework and knows nothing of Prophet.

`pytorch` has a module for each kind of job. The parts that know no framework, which other packages' scripts share, are
here.
"""

from pathlib import Path


def progress_path(out: Path) -> Path:
    """Return the path, beside a job's result, of a file that grows by one line an iteration to show progress."""
    return out.with_suffix(".progress")
