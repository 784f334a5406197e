"""Training scripts of the experiments. Each is an ordinary BytePS program and knows nothing of Prophet."""

from pathlib import Path


def progress_path(out: Path) -> Path:
    """Beside a job's result: a file that grows by a line an iteration, for whoever waits for the job."""
    return out.with_suffix(".progress")
