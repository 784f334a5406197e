"""Sources of a Situation for advice: a profile with a network, or a job's record (PROPHET_RECORD).

Rule of this file: turn a user's files and options into a Situation and the iteration time, with one UserError for every
mistake and each way in which a record can be insufficient. Rates are bits per second, times seconds, sizes bytes.

In a record (watch/rows.py) a worker sees its share of the network while all workers send, but not whose link is the
narrow one. If the servers' rate is unknown, all machines are assumed to have the same rate. No event gives the forward
time. The record has the iteration time and the time spent waiting for averages; what remains after backward counts as
forward.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from prophet_scheduler.core import settings
from prophet_scheduler.core.arena import at_pace, pace_of
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.core.units import format_rate
from prophet_scheduler.engines.registry import engines, scheduled_engine
from prophet_scheduler.engines.spec import STOCK
from prophet_scheduler.lab.advice import Situation, cell_of, contender_of
from prophet_scheduler.lab.cluster_config import FSDP2, Bandwidth, ClusterConfig, SimulatorConfig
from prophet_scheduler.lab.contenders import known_policies, require_known
from prophet_scheduler.lab.iterations import LEAST_AT_REST
from prophet_scheduler.lab.records import read_status
from prophet_scheduler.lab.report.from_record import begin_of, chapter_of, read_workers
from prophet_scheduler.lab.workload import scaled
from prophet_scheduler.models.zoo import MODELS
from prophet_scheduler.watch.rows import EndRow, NetworkRow, ProfileRow, RatesRow, WaitsRow

PROPHET = "prophet"
"""Policy that advice is about by default."""
SHARDED = {FSDP2: STOCK, f"{FSDP2}-{PROPHET}": PROPHET}
"""Policies of FSDP2 by their --policy name: without Prophet, and under it."""
NEWEST_LAPS = 200
"""Maximum number of iterations, the newest, in the median."""
NARROW = 0.8
"""If the workers together get at least this share of the servers' rate, the servers' links are the narrow ones."""
LOCAL_WORLD_SIZE = "LOCAL_WORLD_SIZE"
"""Variable of torchrun with the number of ranks on a machine."""


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


def of_profile(profile: Profile, policy: str | None, links: LinkOptions, status: Path | None = None) -> Situation:
    """Return a job with this profile. Without a bandwidth in `links`, use the one that Prophet measured, from the
    `status` file of a job.

    The default `policy` is Prophet on that job's engine, or without `status` DistributedDataParallel without Prophet.
    Raises UserError if there is no bandwidth, and for an impossible cluster.
    """
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
        name = policy or engine.called_here(STOCK if job is None else PROPHET)
        require_known(name, [*SHARDED, *known_policies()], "--policy")
        contender = contender_of(name)
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
        workers=links.workers, servers=links.servers, bandwidth=Bandwidth(rate, nodes), delay=links.delay_s
    )
    times = f"computing takes {profile.backward_s:.3g} s backward, {profile.forward_s:.3g} s forward, as in the profile"
    real = "give your job's own profile (PROPHET_PROFILE_OUT) for its real times"
    notes = (f"{times}; {real}",) if profile.name in MODELS else ()
    return Situation(cell_of(profile, contender, cluster, simulator), contender, links.workers_per_host, assumed=notes)


def of_record(folder: Path, links: LinkOptions, policy: str | None = None) -> tuple[Situation, float]:
    """Return the job recorded in `folder`, as it was at its end, with its iteration time then.

    `links` may set only the rates of links; the record has everything else. Raises UserError.
    """
    if replace(links, bandwidth=None, server_bandwidth=None) != LinkOptions():
        raise UserError(
            f"{folder} is a job's record, which has its workers and delays; the only network options that it takes are "
            "--bandwidth and --server-bandwidth"
        )
    if policy is not None:
        raise UserError(f"{folder} is a job's record, which knows how it ran; leave --policy out")
    record = _Record(folder)
    network, workers, shared = record.network(), record.workers, record.workers_per_host
    if network is None and links.bandwidth is None:
        raise UserError(f"{folder}: that job measured no network; give --bandwidth")
    contender = contender_of(record.base())
    measured = 8 * network.bandwidth if network is not None else 0.0
    nodes: dict[str, float | None] = {}
    assumed = record.notes()
    if record.served:
        rate, server_rate, note = _through_servers(measured, links, workers, record.servers, shared)
        assumed += [note] if note else []
        nodes = {f"server{place}": server_rate for place in range(record.servers)}
    else:
        rate = links.bandwidth or measured * record.engine.topology.worker_share(workers)
    bandwidth = Bandwidth(rate, nodes)
    cluster = ClusterConfig.model_construct(workers=workers, servers=record.servers, bandwidth=bandwidth)
    costs = SimulatorConfig()
    if network is not None:
        # A push goes one way, its acknowledgement the other. A ring has 2 (p - 1) steps, and only their total delay is
        # known (simulate/collectives.py).
        steps = 2 if record.served else max(1, 2 * (workers - 1))
        costs = SimulatorConfig(overhead_s=network.overhead_s, latency_s=network.ack_delay_s / steps, burst=0)
    learned = record.learned
    cell = cell_of(record.profile(), contender, cluster, costs, half=learned.half)
    return Situation(cell, contender, shared, waits=learned.barrier, assumed=tuple(assumed)), record.iteration_s()


class _Record:
    """Records of all workers; `rows` are those of the worker that learned."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.workers_rows = folder, read_workers(folder)
        if not self.workers_rows:
            raise UserError(f"{folder}: no worker's record is there; give a folder that PROPHET_RECORD has left")
        learners = (rows for rows in self.workers_rows if any(isinstance(row, ProfileRow) for row in rows))
        if (rows := next(learners, None)) is None:
            raise UserError(
                f"{folder}: no worker's record has a profile of the job: the job was too short, an older Prophet wrote "
                "the record, or the file of the deciding rank (usually the first) is missing"
            )
        self.rows, self.begin = rows, begin_of(rows)
        self.chapter = chapter_of(rows, self.begin.unix_s)  # on the worker's clock, like the lines
        self.profiles = [row for row in rows if isinstance(row, ProfileRow)]
        self.learned = self.profiles[-1]
        self.agent = rows[-1].agent if isinstance(rows[-1], EndRow) else None  # None: killed or still running
        self.engine = engines()[self.begin.worker.engine]
        self.served = self.engine.topology.through_servers
        self.servers = self._number(settings.DMLC_NUM_SERVER)
        # BytePS sums the gradients of a machine's processes, so each machine sends as one worker.
        local = self._number(settings.BYTEPS_LOCAL_SIZE) if self.served else 1
        self.workers = max(1, (self.begin.worker.workers or len(self.workers_rows)) // local)
        hosts = [begin_of(each).worker.host for each in self.workers_rows]
        shared = max(map(hosts.count, hosts)) // local if self.served else self._number(LOCAL_WORLD_SIZE)
        self.workers_per_host = min(max(1, shared), self.workers)

    def _set(self, name: str) -> str:
        return (self.begin.settings or {}).get(name, "").strip().lower()

    def _number(self, name: str) -> int:
        text = self._set(name)
        return max(1, int(text)) if text.isdecimal() else 1

    def base(self) -> str:
        """Return the name of the contender that the job ran under."""
        variable = settings.SCHEDULER if self.engine.scheduled else settings.DDP_SCHEDULER
        policy = self.agent.policy if self.agent is not None else self._set(variable)
        base = self.engine.called_here(policy)
        if base not in known_policies():
            raise UserError(f"{self.folder}: that job ran under {policy!r}, for which there is no prediction")
        return base

    def profile(self) -> Profile:
        """Return the most detailed profile learned, at the pace of the newest, with uncompressed gradient sizes."""
        newest = self._profile(self.learned)
        same = [self._profile(row) for row in self.profiles if sum(row.bytes) == newest.total_bytes]
        finest = max(reversed(same), key=lambda profile: len(profile.gradients))
        if self.chapter.arena and len(finest.gradients) > len(newest.gradients):
            finest = scaled(at_pace(finest, pace_of(newest, finest)), forward_s=newest.forward_s or None)
        else:
            finest = newest
        # Time that is neither backward nor waiting counts as forward, if waits were recorded and any time remains.
        waited_s = self._waited_s()
        forward_s = 0.0 if waited_s is None else self.iteration_s() - waited_s - finest.backward_s
        whole_bytes = finest.total_bytes * (2 if self.learned.half else 1)
        return replace(scaled(finest, whole_bytes, forward_s=forward_s if forward_s > 0 else None), ids=())

    def _profile(self, row: ProfileRow) -> Profile:
        names = (f"gradient{id_}" for id_ in row.gradient)
        try:
            gradients = zip(names, row.bytes, row.generation_s, row.forward_s, strict=True)
            return Profile(self.begin.worker.job, tuple(GradientProfile(*each) for each in gradients), row.gradient)
        except (ValueError, UserError) as error:
            wrong = f"the job's profile cannot be read ({error}); record the job again"
            raise UserError(f"{self.folder}: {wrong}") from None

    def _waited_s(self) -> float | None:
        """Seconds per iteration that the program waited for averages since blocks last changed; None if unknown, as
        with MXNet, whose engine waits in its own threads.
        """
        since_s = self.chapter.recut_s
        spans = [row for row in self.rows if isinstance(row, RatesRow) and (since_s is None or row.from_s >= since_s)]
        if not spans or self.begin.worker.framework != "torch":
            return None
        from_s, until_s = spans[0].from_s, spans[-1].until_s
        count = sum(from_s < lap.end_s <= until_s for lap in self.chapter.laps)
        if count < LEAST_AT_REST:
            return None
        waits = [row for row in self.rows if isinstance(row, WaitsRow) and from_s < row.until_s <= until_s]
        return sum(sum(row.waited_s.values()) + row.others_s for row in waits) / count

    def network(self) -> Network | None:
        """Return the final network of the slowest worker, for which every iteration waits."""
        newest = []
        for rows in self.workers_rows:
            newest += [row.network for row in rows if isinstance(row, NetworkRow)][-1:]
        return min(newest, key=lambda network: network.bandwidth, default=None)

    def iteration_s(self) -> float:
        """Median of the newest iterations at rest; not the mean, since a user's job does other work at times."""
        laps = self.chapter.laps
        periods = [lap.period_s for lap in laps[self.chapter.rests_from :]]
        if len(periods) < LEAST_AT_REST:
            raise UserError(f"{self.folder}: the job has {len(laps)} iterations on record; let it run longer")
        return median(periods[-NEWEST_LAPS:])

    def notes(self) -> list[str]:
        """Return sentences on facts that affect the predictions or differ from their assumptions."""
        aside, back = (self.agent.stepped_aside, self.agent.given_back) if self.agent is not None else ("", "")
        framework = self.begin.worker.framework
        all_notes = (
            (
                self.learned.barrier,
                "the program reads all gradients before it uses any, as clipping by their norm does; all predictions "
                "assume the same",
            ),
            (aside, f"Prophet stepped aside in that job ({aside})"),
            (back, f"the job ended with torch's own reducer, which was faster ({back})"),
            (framework != "torch", f"predicted as a PyTorch job, though it ran in {framework}"),
        )
        return [note for applies, note in all_notes if applies]


def _through_servers(
    measured: float, links: LinkOptions, workers: int, servers: int, shared: int
) -> tuple[float, float, str]:
    """Return the link rates of each host and each server, and a note on assumptions. `measured` is a worker's rate
    while all send; `shared` is the number of workers per host.
    """
    rate, server_rate = links.bandwidth, links.server_bandwidth
    if server_rate is None:
        alike = rate or measured * max(shared, workers / servers)
        note = (
            f"workers and servers are assumed to have links of the same rate, {format_rate(alike)}; --bandwidth and "
            "--server-bandwidth change that"
        )
        return alike, alike, note
    if rate is not None:
        return rate, server_rate, ""
    if measured < NARROW * server_rate * servers / workers:
        return measured * shared, server_rate, ""
    # The measured rate is that of the servers' links; a worker's link may have any higher rate.
    rate = max(measured * shared, server_rate)
    return rate, server_rate, f"workers' links are assumed to be as fast as servers', {format_rate(rate)} (--bandwidth)"
