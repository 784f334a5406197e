"""A whole `prophet run` or `prophet simulate`: the testbed, the progress bar, and all output.

Rule of this file: put the parts together; each part has its own file.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich import progress as bars
from rich.console import Console

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.files import require_folder
from prophet_scheduler.core.optional import require
from prophet_scheduler.engines.spec import is_worker
from prophet_scheduler.lab.cluster_config import ClusterConfig
from prophet_scheduler.lab.config import SIMULATOR, Cell, Experiment
from prophet_scheduler.lab.contenders import Contender
from prophet_scheduler.lab.doctor import obstacle
from prophet_scheduler.lab.records import RESULTS_FILE, write_results
from prophet_scheduler.lab.results import failures, summarize
from prophet_scheduler.lab.results_view import describe_setting, print_results
from prophet_scheduler.lab.runner import run_experiment
from prophet_scheduler.lab.runs import CellRuns
from prophet_scheduler.lab.screen import screen
from prophet_scheduler.lab.simulated import prepare_experiment, simulate_experiment
from prophet_scheduler.lab.testbed import NodeSpec, Testbed, reexec_in_user_namespace


class ProgressBar:
    """Progress bar of an experiment, in iterations of a run."""

    def __init__(self, experiment: Experiment, progress: bars.Progress) -> None:
        self._progress = progress
        total = 0
        for cell in experiment.cells:
            total += sum(cell.job_of(policy).iterations for policy in cell.policies) * experiment.repeats
        self._task = progress.add_task("", total=total)
        self._before = 0
        self._length = 0

    def run_starts(self, cell: Cell, policy: Contender, repeat: int) -> None:
        words = f"{describe_setting(cell.setting)}  {policy.name}  repeat {repeat + 1}"
        self._length = cell.job.iterations
        self._progress.update(self._task, description=words)

    def iterations(self, done: int) -> None:
        self._progress.update(self._task, completed=self._before + done)
        self._progress.refresh()

    def run_ends(self, error: str | None) -> None:
        self._before += self._length
        self._progress.update(self._task, completed=self._before)
        if error is not None:
            self._progress.console.print(f"failed: {error}", style="red", markup=False)


@contextmanager
def progress_bar(experiment: Experiment, console: Console) -> Iterator[ProgressBar]:
    # The experiment's own calls draw the bar: a drawing thread would take CPU time from the measured job.
    times = bars.TimeElapsedColumn(), bars.TimeRemainingColumn()
    columns = bars.SpinnerColumn(), bars.TextColumn("{task.description}"), bars.BarColumn(), *times
    with bars.Progress(*columns, console=console, auto_refresh=False) as progress:
        yield ProgressBar(experiment, progress)


def run_session(experiment: Experiment, out: Path) -> int:
    """Run the experiment, write results.json into `out`, and return the number of failed policies.

    A policy that cannot start on this machine counts as failed. Raises UserError, and writes nothing, if no policy can
    start or the testbed is impossible.
    """
    if experiment.engine == SIMULATOR:
        raise UserError(
            f"engine: {experiment.name} is for the simulator; run it with: prophet simulate {experiment.file}"
        )
    kinds = sorted({cell.job.kind for cell in experiment.cells} & {"digits", "asynchronous"})
    frameworks = {policy.framework for cell in experiment.cells for policy in cell.policies}
    torch = [("torch", "workers")] if frameworks == {"torch"} else []
    require(*(("sklearn", f"job.kind: {kind}") for kind in kinds), *torch)
    require_folder(out, "--out")
    policies = [policy for cell in experiment.cells for policy in cell.policies]
    obstacles = [obstacle(policy) for policy in policies]
    if obstacles[0] is not None and all(reason is not None for reason in obstacles):
        raise UserError(obstacles[0])
    reexec_in_user_namespace()
    console = screen()
    with _new_folder(out, UserError), progress_bar(experiment, console) as listener:
        hosts = lambda cell: testbed_of(cell.cluster, measured=True)  # noqa: E731
        done = run_experiment(experiment, out, hosts, listener, obstacle=obstacle)
    return report(experiment, done, out, console)


def simulate_session(experiment: Experiment, out: Path) -> int:
    """Simulate the experiment, write the outputs of `prophet run` into `out`, and return the number of failed policies.

    Raises UserError, and writes nothing, if the config cannot be simulated.
    """
    require_folder(out, "--out")
    planned = prepare_experiment(experiment)
    console = screen()
    with _new_folder(out), progress_bar(experiment, console) as listener:
        done = simulate_experiment(experiment, planned, out, listener)
    return report(experiment, done, out, console)


@contextmanager
def _new_folder(out: Path, after: type[BaseException] = BaseException) -> Iterator[None]:
    """Remove the folder after an error of type `after`, unless it existed before."""
    existed = out.exists()
    try:
        yield
    except after:
        if not existed:
            shutil.rmtree(out, ignore_errors=True)
        raise


def testbed_of(cluster: ClusterConfig, *, measured: bool = False) -> Testbed:
    """Return a testbed with the cluster's nodes. `measured`: each worker has its own cores, and links are measured."""
    cores = worker_cores(sorted(os.sched_getaffinity(0)), cluster.workers) if measured else {}
    specs = []
    for node in cluster.nodes:
        delay_s = (cluster.delay or None) if is_worker(node) else None
        link = cluster.bandwidth.rate(node), cores.get(node, ()), delay_s
        specs.append(NodeSpec(node, *link, measured=measured and is_worker(node)))
    return Testbed(specs)


def worker_cores(available: Sequence[int], workers: int) -> dict[str, tuple[int, ...]]:
    """Return the CPU cores of each worker: the same number for each and none shared, as in a real cluster. Empty if
    there are fewer cores than workers.
    """
    each = len(available) // workers
    return {f"worker{n}": tuple(available[n * each : (n + 1) * each]) for n in range(workers if each else 0)}


def report(experiment: Experiment, done: list[CellRuns], out: Path, console: Console) -> int:
    """Write and print the results of a finished experiment; return the number of failed policies."""
    results = summarize(experiment, done)
    out.mkdir(parents=True, exist_ok=True)
    write_results(results, out / RESULTS_FILE)
    print_results(results, console)
    console.print(f"results are in {out}; a page of them: prophet report {out}", markup=False, soft_wrap=True)
    return failures(results)
