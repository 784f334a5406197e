"""Results of an experiment: numbers from its runs.

Rule of this file: arithmetic on seconds. records.py has results.json's types, results_view.py the printed table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from pydantic_core import to_jsonable_python

from prophet_scheduler.core.bound import lower_bound_s
from prophet_scheduler.engines.topology import ALL_REDUCE, Topology
from prophet_scheduler.lab.cluster_config import ASYNCHRONOUS, FSDP2
from prophet_scheduler.lab.config import Cell, Experiment
from prophet_scheduler.lab.contenders import Contender
from prophet_scheduler.lab.iterations import rests_from, rounded, times_of
from prophet_scheduler.lab.job_config import AsynchronousJob, ScoredJob, SyntheticJob
from prophet_scheduler.lab.jobs.record import WorkerRecord
from prophet_scheduler.lab.narrow_link import narrow_link, round_trip_s, seconds_per_bit
from prophet_scheduler.lab.records import (
    SCHEMA,
    AgentCost,
    CellResult,
    ConvergenceResult,
    LossAt,
    PolicyResult,
    Results,
)
from prophet_scheduler.lab.runs import CellRuns, Run
from prophet_scheduler.policies import get_definition
from prophet_scheduler.simulate.collectives import COLLECTIVES

CURVE_POINTS = 100


def summarize(experiment: Experiment, cells: Sequence[CellRuns]) -> Results:
    """Return the content of results.json."""
    return Results(
        schema=SCHEMA,
        config=to_jsonable_python(experiment.source),
        repeats=experiment.repeats,
        cells=list(map(summarize_cell, cells)),
    )


def summarize_cell(done: CellRuns) -> CellResult:
    """Return the result of one cell. Ratios to stock above 1 are faster than stock."""
    cell = done.cell
    contenders = {policy.name: policy for policy in cell.policies}
    policies = {name: summarize_policy(cell, contenders[name], runs) for name, runs in done.runs.items()}
    narrow = narrow_link(cell.cluster, simulated_topology(cell) if done.simulated else cell.engine.topology)
    for policy in () if done.simulated else cell.policies:
        own = narrow_link(cell.cluster, policy.engine.topology)
        if own != narrow:
            policies[policy.name] = policies[policy.name].model_copy(update={"narrow_link": own})
    policies |= _compared_with_stock(cell, policies)
    took_s = {name: policy.time_s for name, policy in policies.items() if policy.time_s is not None}
    stock = next((took_s[p.name] for p in cell.policies if p.base == cell.engine.stock and p.name in took_s), None)
    measured = as_measured(cell, done.links)
    bound = lower_bound(measured)
    more = {
        "round_trips": dict(done.round_trips),
        "bound_is_measured": bound is not None and measured is not cell,
    }
    return CellResult(
        setting=to_jsonable_python(cell.setting),
        emulated=emulation(cell, simulated=done.simulated),
        narrow_link=narrow,
        links=dict(done.links),
        compute_s=compute_s(cell),
        lower_bound_s=bound,
        policies=policies,
        ratios={} if stock is None else {name: stock / time_s for name, time_s in took_s.items()},
        **{name: part for name, part in more.items() if part},  # type: ignore[arg-type]
    )


def as_measured(cell: Cell, links: Mapping[str, float]) -> Cell:
    """Return `cell` with the measured rates of its unshaped links, each the lower of its two directions."""
    bandwidth = cell.cluster.bandwidth
    rates = {}
    for node in cell.cluster.nodes:
        ways = [rate for way, rate in links.items() if way.rpartition(" ")[0] == node]
        if ways and bandwidth.rate(node) is None:
            rates[node] = min(ways)
    if not rates:
        return cell
    return replace(cell, cluster=cell.cluster.model_copy(update={"bandwidth": bandwidth.with_rates(rates)}))


def simulated_topology(cell: Cell) -> Topology:
    """Topology of the simulator's exchange if the config sets a collective one, else of the config's engine."""
    return ALL_REDUCE if cell.simulator.exchange in (*COLLECTIVES, FSDP2) else cell.engine.topology


def _compared_with_stock(cell: Cell, policies: Mapping[str, PolicyResult]) -> dict[str, PolicyResult]:
    """Set `same_weights_as_stock` of each policy that can be compared with stock: the stock of the config's engine, or
    else of the policy's own, if trained equally long and in the same framework (initial weights differ between these).

    A difference means nothing if sums depend on timing: then even stock's models differ each time.
    """

    def trained(policy: Contender, base: str) -> tuple[object, ...]:
        return base, policy.framework, cell.job_of(policy).iterations

    digests = {
        trained(policy, policy.base): policies[policy.name].weights_sha256
        for policy in reversed(cell.policies)
        if policies[policy.name].weights_sha256 is not None
    }
    compared = {}
    for policy in cell.policies:
        digest = policies[policy.name].weights_sha256
        stocks = [trained(policy, base) for base in (cell.engine.stock, policy.engine.stock) if base != policy.base]
        reference = next((digests[stock] for stock in stocks if stock in digests), None)
        if policy.base != cell.engine.stock and reference is not None and digest is not None:
            same = digest == reference
            if same or not _sums_vary(cell):
                compared[policy.name] = policies[policy.name].model_copy(update={"same_weights_as_stock": same})
    return compared


def summarize_policy(cell: Cell, policy: Contender, runs: Sequence[Run]) -> PolicyResult:
    """Return the result of one policy over its repeats. Successful repeats count even if others failed."""
    good = [run for run in runs if run.error is None]
    parts = _counted(cell, policy, good) if good else {}
    if ended := [run.ended_after_s for run in runs if run.ended_after_s is not None]:
        parts["ended_after_s"] = max(ended)
    summary = PolicyResult().model_copy(update=parts)
    if (error := _error(cell, runs, summary)) is None:
        return summary
    tails = (dict(run.log_tail) for run in runs if run.error is not None)
    return summary.model_copy(update={"error": error, "log_tail": next(tails, {})})


def _counted(cell: Cell, policy: Contender, good: Sequence[Run]) -> dict[str, object]:
    """Return the fields of a PolicyResult from finished runs, without those that this kind of job lacks."""
    by_repeat = [_iterations(run) for run in good]
    times = times_of([worker for repeat in by_repeat for worker in repeat])
    compute = compute_s(cell)
    workers = [worker for run in good for worker in run.workers]
    parts: dict[str, object] = {
        "iteration_s": times,
        "iterations": [[rounded(times_s) for times_s, _ in repeat] for repeat in by_repeat],
        "samples_per_s": cell.job.batch_size * cell.cluster.workers / times.headline,
        "wait_s": None if compute is None else times.headline - compute,
        "repeats": [times_of(repeat).median for repeat in by_repeat],
    }
    if starts := [worker.start_s for worker in workers if worker.start_s is not None]:
        # Only a real job has a start and a final model.
        digests = sorted({worker.weights_sha256 for worker in workers if worker.weights_sha256})
        parts |= {"start_s": median(starts), "weights_sha256": digests[0] if len(digests) == 1 else digests or None}
    if isinstance(cell.job, ScoredJob):
        parts["accuracy"] = min(worker.accuracy or 0.0 for worker in workers)
    if isinstance(cell.job, AsynchronousJob):
        parts["convergence"] = converged([run.workers for run in good], cell.job.target_loss)
    sometimes = {
        "processor_utilisation": good[0].processor_utilisation,
        "agent": _agent(good) if good[0].statuses else None,
        "given_back": next((status.given_back for run in good for status in run.statuses if status.given_back), None),
        "processor_s": _processor_s(good, cell.job_of(policy).warmup),
    }
    return parts | {name: part for name, part in sometimes.items() if part is not None}


def losses(workers: Sequence[WorkerRecord]) -> list[tuple[float, float]]:
    """Return the loss measurements of all workers as (time, loss), by time.

    In asynchronous training, a worker measures the weights that it last pulled from the server.
    """
    began_s = min(worker.marks[0].start for worker in workers)
    return sorted(
        (time_s - began_s, loss)
        for worker in workers
        if worker.convergence is not None
        for time_s, loss in zip(worker.convergence.times_s, worker.convergence.losses, strict=True)
    )


def update_s(workers: Sequence[WorkerRecord]) -> float | None:
    """Mean seconds between applied updates of any workers, while all workers train; None if none was applied.

    For synchronous workers, this is the iteration time divided by their number. Dropped updates do not count; they are
    assumed to be spread evenly over the run.
    """
    first = max(worker.marks[0].start for worker in workers)
    last = min(worker.marks[-1].start for worker in workers)
    applied = 0.0
    for worker in workers:
        kept = worker.convergence
        computed = sum(first < mark.start <= last for mark in worker.marks[1:])
        share = 1.0
        if kept is not None and kept.sent is not None and kept.dropped:
            share = kept.sent / (kept.sent + kept.dropped)
        applied += computed * share
    return (last - first) / applied if applied > 0 and last > first else None


def converged(runs: Sequence[Sequence[WorkerRecord]], target_loss: float) -> ConvergenceResult | None:
    """Return the result of a policy from its repeats, each a sequence of workers; None if no worker recorded a loss.

    `time_to_loss_s` is set only if every repeat reached the loss. The curve has about CURVE_POINTS measurements of the
    first repeat.
    """
    kept = [worker.convergence for workers in runs for worker in workers if worker.convergence is not None]
    if not kept:
        return None
    looks = [losses(workers) for workers in runs]
    times = [next((time_s for time_s, loss in each if loss <= target_loss), None) for each in looks]
    updates = [update for update in map(update_s, runs) if update is not None]
    apart = [worker for worker in kept if worker.sent is not None]
    delays = [worker.greatest_delay for worker in apart if worker.greatest_delay is not None]
    reached = [time_s for time_s in times if time_s is not None]
    return ConvergenceResult(
        target_loss=target_loss,
        time_to_loss_s=median(reached) if len(reached) == len(times) else None,
        times_to_loss_s=times,
        update_s=median(updates) if updates else None,
        least_loss=min((loss for worker in kept for loss in worker.losses), default=None),
        greatest_delay=max(delays) if delays else None,
        sent=sum(worker.sent or 0 for worker in apart) if apart else None,
        dropped=sum(worker.dropped or 0 for worker in apart) if apart else None,
        uncoordinated=sum(worker.uncoordinated or 0 for worker in apart) if apart else None,
        applied_otherwise=sum((worker.applied or 0) != worker.sent for worker in apart) if apart else None,
        curve=[LossAt(time_s=time_s, loss=loss) for time_s, loss in looks[0][:: max(1, len(looks[0]) // CURVE_POINTS)]],
    )


def _iterations(run: Run) -> list[tuple[list[float], int]]:
    """Return each worker's iterations and the index of the first at rest."""
    return [
        (worker.iteration_s, rests_from([mark.start for mark in worker.marks[:-1]], run.recut_s))
        for worker in run.workers
    ]


def _processor_s(runs: Sequence[Run], warmup: int) -> float | None:
    """CPU seconds per iteration of one worker after the warm-up; None if not recorded."""
    records = [worker.processor_s for run in runs for worker in run.workers]
    means = [
        (record[-1] - record[warmup]) / (len(record) - 1 - warmup) for record in records if len(record) > warmup + 1
    ]
    return median(means) if means else None


def _agent(runs: Sequence[Run]) -> AgentCost:
    pairs = [pair for run in runs for pair in zip(run.workers, run.statuses, strict=True)]
    # With collectives, one worker learns for all.
    learning = [(worker, status) for worker, status in pairs if status.agent_cpu_s > 0] or pairs
    shares = [status.agent_cpu_s / sum(worker.iteration_s) for worker, status in learning]
    statuses = [status for _, status in learning]
    networks = [status.network for status in statuses if status.network is not None]
    return AgentCost(
        cpu_share=median(shares),
        plans=max(status.plans for status in statuses),
        watchdog_releases=sum(status.hook.watchdog_releases for status in statuses if status.hook is not None),
        push_credit=statuses[-1].push_credit,
        partition_bytes=statuses[-1].partition_bytes,
        network=min(networks, key=lambda network: network.bandwidth, default=None),
    )


def _error(cell: Cell, runs: Sequence[Run], summary: PolicyResult) -> str | None:
    """Return the error as one line; None if there is none."""
    failed = [(repeat, run.error) for repeat, run in enumerate(runs) if run.error is not None]
    if failed:
        repeat, error = failed[0]
        others = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        return f"repeat {repeat + 1} of {len(runs)}: {error}{others}"
    digests = summary.weights_sha256
    apart = any(len({worker.weights_sha256 for worker in run.workers}) > 1 for run in runs)
    if isinstance(digests, list) and (apart or not _sums_vary(cell)):
        return f"{len(digests)} different models at the end of {len(runs)} runs from one seed"
    accuracy = summary.accuracy
    if isinstance(cell.job, ScoredJob) and accuracy is not None and accuracy < cell.job.target_accuracy:
        return f"accuracy {accuracy:.3f}, below the target of {cell.job.target_accuracy:g}"
    kept = summary.convergence
    if kept is not None and kept.time_to_loss_s is None:
        return f"lowest loss {kept.least_loss:.3f}, above the target of {kept.target_loss:g}"
    return None


def _sums_vary(cell: Cell) -> bool:
    """True if rounding depends on timing: a sum of two is the same in any order, a sum of more is not."""
    return cell.cluster.workers > 2


def compute_s(cell: Cell) -> float | None:
    """Compute seconds of an iteration, known only in a replay; None otherwise."""
    return None if cell.profile is None else cell.profile.backward_s + cell.profile.forward_s


def lower_bound(cell: Cell) -> float | None:
    """Lower bound of an iteration in seconds (core/bound.py), at the rate of the narrow link, with the links' delays.

    None for real training (its compute is not exactly known), for asynchronous servers, and if rates change.
    """
    topology, wire = simulated_topology(cell), cell.wire
    if wire is None or cell.cluster.bandwidth.changes or cell.simulator.exchange == ASYNCHRONOUS:
        return None
    links = seconds_per_bit(cell.cluster, topology)
    return lower_bound_s(wire, 1 / max(links.values()) / 8, round_trip_s(cell.cluster, topology)) if links else None


def emulation(cell: Cell, *, simulated: bool) -> str:
    """Describe in one line which parts were real and which were not."""
    if simulated:
        traced = [policy.name for policy in cell.policies if policy.hooked and get_definition(policy.base).traced]
        more = f"; forward times of {', '.join(traced)} from a trace of operations" if traced else ""
        return (
            "simulated: queue, policies and learning as in a job; computing, links and servers on a virtual clock"
            + more
        )
    compute = "compute and data real"
    if cell.profile is not None:
        compute = "compute replaced by sleeping"
    elif isinstance(cell.job, SyntheticJob):
        compute = "compute real, data random"
    elif isinstance(cell.job, AsynchronousJob):
        compute = "data and gradients real, compute lengthened by sleeping"
    engines = list(dict.fromkeys(policy.engine.words for policy in cell.policies))
    shaped = any(cell.cluster.bandwidth.rate(node) is not None for node in cell.cluster.nodes)
    delayed = ", delayed by a relay" if cell.cluster.delay else ""
    network = f"{'shaped veth' if shaped else 'veth'} on one machine{delayed}"
    return f"{', '.join(engines)} real; {compute}; network: {network}"


def failures(results: Results) -> int:
    """Return the number of failed policies in all cells."""
    return sum(policy.error is not None for cell in results.cells for policy in cell.policies.values())
