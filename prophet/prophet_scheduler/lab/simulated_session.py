"""One `prophet simulate` from start to end: the progress bar, and everything that is written.

Rule of this file: putting the parts together; each part is another file's.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from rich.console import Console

from prophet_scheduler.core.files import require_folder
from prophet_scheduler.lab.config import Experiment
from prophet_scheduler.lab.session import progress_bar, report
from prophet_scheduler.lab.simulated import prepare_experiment, simulate_experiment


def simulate_session(experiment: Experiment, out: Path) -> int:
    """Simulates the experiment and writes what `prophet run` writes, and utilisation; how many policies failed.

    Raises UserError where the config cannot be simulated; nothing is written then.
    """
    require_folder(out, "--out")
    planned = prepare_experiment(experiment)
    console = Console()
    existed = out.exists()
    try:
        with progress_bar(experiment, console, recordings=False) as listener:
            done = simulate_experiment(experiment, planned, out, listener)
    except BaseException:
        if not existed:
            shutil.rmtree(out, ignore_errors=True)
        raise
    return report(experiment, done, out, console)
