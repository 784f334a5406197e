"""Sources of a Situation for advice: a profile with a network, or a folder of `prophet run`.

Rule of this file: turn a user's files and options into a Situation, with one UserError for every mistake. Rates are
bits per second, times seconds.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.engines.registry import engines, scheduled_engine
from prophet_scheduler.engines.spec import STOCK
from prophet_scheduler.lab.advice import Situation, cell_of, contender_of
from prophet_scheduler.lab.cluster_config import Bandwidth, ClusterConfig, Delay
from prophet_scheduler.lab.config import Cell, experiment_of
from prophet_scheduler.lab.records import RESULTS_FILE, CellResult, Results, read_results, read_status
from prophet_scheduler.lab.results import as_measured
from prophet_scheduler.lab.results_view import describe_setting
from prophet_scheduler.lab.runs import PROFILE_FILE, STATUS_FILE
from prophet_scheduler.lab.simulator_config import FSDP2, SimulatorConfig
from prophet_scheduler.lab.transfers import WORKER
from prophet_scheduler.lab.workload import scaled
from prophet_scheduler.models.profiles import load_profile
from prophet_scheduler.models.zoo import MODELS

PROPHET = "prophet"
"""Policy that advice is about by default."""
SHARDED = {FSDP2: STOCK, f"{FSDP2}-{PROPHET}": PROPHET}
"""Policies of FSDP2 by their --policy name: without Prophet, and under it."""


@dataclass(frozen=True)
class LinkOptions:
    """Options that describe the cluster. Workers on a host share `bandwidth`. `shards` and `keep`: SimulatorConfig."""

    bandwidth: float | None = None
    server_bandwidth: float | None = None
    delay_s: float = 0.0
    workers: int = 2
    servers: int = 1
    workers_per_host: int = 1
    shards: int | None = None
    keep: bool = False


def of_profile(
    profile: Profile, policy: str | None, links: LinkOptions, status: Path | None = None, assumed: str = ""
) -> Situation:
    """Return a job with this profile. Without a bandwidth in `links`, use the one that Prophet measured, from the
    `status` file of a job. `assumed` is a sentence on the profile's times.

    The default `policy` is Prophet on that job's engine, or without `status` DistributedDataParallel without Prophet.
    Raises UserError if there is no bandwidth, and for an impossible cluster.
    """
    for name in ("workers", "servers", "workers_per_host"):
        if (count := getattr(links, name)) < 1:
            raise UserError(f"--{name.replace('_', '-')} is {count}; it must be 1 or more")
    if links.workers_per_host > links.workers:
        raise UserError(f"--workers-per-host is {links.workers_per_host}, but there are only {links.workers} workers")
    job = None if status is None else read_status(status)
    simulator = SimulatorConfig()
    if policy in SHARDED:
        ways = [f"--shards {links.shards}"] * (links.shards is not None) + ["--keep"] * links.keep
        contender = contender_of(engines()["ddp"].called_here(SHARDED[policy]))
        contender = replace(contender, name=" ".join([policy, *ways]))
        simulator = SimulatorConfig(exchange=FSDP2, shards=links.shards, keep=links.keep)
    elif links.shards is not None or links.keep:
        raise UserError(f"--shards and --keep need --policy {FSDP2}; leave them out, or give it")
    else:
        # Only a job of BytePS has a hook in its status.
        engine = engines()["ddp"] if job is None or job.hook is None else scheduled_engine()
        contender = contender_of(policy or engine.called_here(STOCK if job is None else PROPHET))
    rate = links.bandwidth
    if rate is None and job is None:
        raise UserError(
            "--bandwidth is missing; give the rate of each worker's link, such as 3gbit, or --status FILE "
            "(PROPHET_STATUS_OUT) of a job that measured it"
        )
    if rate is None and job is not None:
        if job.network is None:
            raise UserError(f"{status}: that job measured no network; give --bandwidth")
        # The measured rate counts gradient bytes; in an all-reduce, each bit crosses a link more than once.
        rate = 8 * job.network.bandwidth * contender.engine.topology.worker_share(links.workers)
    server_rate = links.server_bandwidth
    nodes = {} if server_rate is None else {f"server{place}": server_rate for place in range(links.servers)}
    cluster = ClusterConfig.model_construct(
        workers=links.workers, servers=links.servers, bandwidth=Bandwidth(rate, nodes), delay=Delay(links.delay_s)
    )
    if profile.name in MODELS:
        assumed = (
            f"computing takes {profile.backward_s:.3g} s backward, {profile.forward_s:.3g} s forward, as in the "
            "profile; give your job's own profile (PROPHET_PROFILE_OUT) for its real times"
        )
    notes = (assumed,) if assumed else ()
    return Situation(cell_of(profile, contender, cluster, simulator), contender, links.workers_per_host, assumed=notes)


def of_run(folder: Path, policy: str | None = None, number: int | None = None) -> tuple[Situation, float]:
    """Return the situation of the `prophet run` in `folder`, and its iteration time at rest.

    `policy` defaults to Prophet if it ran, else to the first policy. `number` is the cell's; None if there is only one
    cell. Raises UserError.
    """
    results = read_results(folder / RESULTS_FILE)
    if number is None and len(results.cells) > 1:
        cells = "; ".join(f"{place}: {describe_setting(cell.setting)}" for place, cell in enumerate(results.cells))
        raise UserError(f"{folder} has {len(results.cells)} cells; choose one with --cell ({cells})")
    number = number or 0
    if not 0 <= number < len(results.cells):
        raise UserError(f"--cell is {number}; {folder} has {len(results.cells)}, counted from 0")
    measured = results.cells[number]
    runs = folder / "runs" / f"cell{number}"
    cell = as_measured(_cell(results, measured, runs), measured.links)
    by_name = {contender.name: contender for contender in cell.policies if contender.name in measured.rests_s}
    if not by_name:
        raise UserError(f"{folder}: nothing was measured in that cell")
    if policy is not None and policy not in by_name:
        raise UserError(f"--policy: {policy!r} was not measured there; {', '.join(by_name)} were")
    ours = [name for name, contender in by_name.items() if contender.policy == PROPHET]
    name = policy or (ours or list(by_name))[0]
    run = runs / f"{name}-repeat1"
    if cell.profile is None:
        path = run / f"{WORKER}.{PROFILE_FILE}"
        if not path.exists():
            raise UserError(f"{name} left no profile ({path}); a job under Prophet does: choose it with --policy")
        learned = load_profile(path)
        halves = 1 if cell.job.compression == "none" else 2  # learned sizes are those on the wire
        cell = replace(cell, profile=scaled(learned, learned.total_bytes * halves))
    status = run / f"{WORKER}.{STATUS_FILE}"
    waits = status.exists() and read_status(status).barrier
    assumed = ("the measured time is a median: that run kept no means",) if results.schema_ == 1 else ()
    cell = replace(cell, policies=(by_name[name],))
    return Situation(cell, by_name[name], waits=waits, assumed=assumed), measured.rests_s[name]


def _cell(results: Results, measured: CellResult, runs: Path) -> Cell:
    """Return the cell, in the config in results.json, that these results belong to. A folder may have only one cell of
    a sweep.
    """
    raw: dict[str, Any] = copy.deepcopy(results.config)
    sweep = raw.get("sweep")
    # A recorded profile's file was beside the config, which may be gone; the run has the replayed profile.
    replayed = next(iter(sorted(runs.glob("*/profile.json"))), None)
    for part in (raw, *(sweep if isinstance(sweep, list) else ())):
        job = part.get("job") if isinstance(part, dict) else None
        if replayed is not None and isinstance(job, dict) and job.get("profile") not in (None, *MODELS):
            job["profile"] = str(replayed.resolve())
    path = runs / "run.yaml"
    try:
        cells = experiment_of(raw, path).cells
    except UserError as error:
        raise UserError(f"its config cannot be read any more: {str(error).removeprefix(f'{path}: ')}") from None
    wanted = _comparable(measured.setting)
    cell = next((cell for cell in cells if _comparable(to_jsonable_python(cell.setting)) == wanted), None)
    if cell is None:
        raise UserError("its cell is not in its config; run it again")
    return cell


def _comparable(setting: Mapping[str, Any]) -> dict[str, Any]:
    profile = setting.get("profile")
    return {**setting, "profile": profile if profile in MODELS else None}
