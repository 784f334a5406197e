"""One `prophet simulate` from start to end: the progress bar, and all output.

Rule of this file: putting the parts together; each part has its own file.
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
    """Simulate the experiment and return the number of failed policies.

    Writes the outputs of `prophet run`, and utilisation. Raises UserError, and writes nothing, if the config cannot be
    simulated.
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
