"""Situation of a job from its own record (PROPHET_RECORD).

Rule of this file: from lines (watch/rows.py) to a Situation and the iteration time, with one UserError for each way in
which they do not suffice. Rates are bits per second, times seconds, sizes bytes.

A worker sees its part of the network while all send, but not whose link is the narrow one. If the servers' rate is
unknown, all machines are assumed to have links of one rate. No event gives the forward time, so the learned one is an
estimate. But the record has the iteration time and the time of waiting for averages. The rest of an iteration, without
backward, counts as forward.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from prophet_scheduler.core import settings
from prophet_scheduler.core.arena import at_pace, pace_of
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.core.units import format_rate
from prophet_scheduler.engines.registry import engines
from prophet_scheduler.engines.spec import EngineSpec
from prophet_scheduler.lab.advice import Situation, cell_of, contender_of
from prophet_scheduler.lab.advice_sources import LinkOptions
from prophet_scheduler.lab.cluster_config import Bandwidth, ClusterConfig
from prophet_scheduler.lab.contenders import known_policies
from prophet_scheduler.lab.iterations import LEAST_AT_REST
from prophet_scheduler.lab.report.from_record import begin_of, chapter_of, read_workers
from prophet_scheduler.lab.report.stories import Chapter
from prophet_scheduler.lab.simulator_config import SimulatorConfig
from prophet_scheduler.lab.workload import scaled
from prophet_scheduler.watch.rows import BeginRow, EndRow, NetworkRow, ProfileRow, RatesRow, RecordRow, WaitsRow

NEWEST_LAPS = 200
"""Iterations in the median of the job's end."""
NARROW = 0.8
"""Share of the servers' rate above which, if the workers together get it, the servers' links are the narrow ones."""
LOCAL_WORLD_SIZE = "LOCAL_WORLD_SIZE"
"""Variable of torchrun with the number of ranks of a machine."""


def of_record(folder: Path, links: LinkOptions, policy: str | None = None) -> tuple[Situation, float]:
    """Return the job of the record in `folder` as it was at its end, and its iteration time then.

    `links` may set only the rates of links; the record has all else. Raises UserError.
    """
    if replace(links, bandwidth=None, server_bandwidth=None) != LinkOptions():
        raise UserError(
            f"{folder} is a job's record, which knows its workers and delays; of the options of a network only "
            "--bandwidth and --server-bandwidth can be given"
        )
    if policy is not None:
        raise UserError(f"{folder} is a job's record, which knows how it ran; leave --policy out")
    record = _Record.read(folder)
    engine, contender = record.engine, contender_of(record.base)
    workers, servers, shared = record.workers, record.servers, record.workers_per_host
    network = record.network()
    if network is None and links.bandwidth is None:
        raise UserError(f"{folder}: that job measured no network; give --bandwidth")
    measured = 8 * network.bandwidth if network is not None else 0.0
    nodes: dict[str, float | None] = {}
    assumed = list(record.notes())
    if engine.topology.through_servers:
        rate, server_rate, note = _through_servers(measured, links, workers, servers, shared)
        assumed += [note] if note else []
        nodes = {f"server{place}": server_rate for place in range(servers)}
    else:
        rate = links.bandwidth or measured * engine.topology.worker_share(workers)
    cluster = ClusterConfig.model_construct(workers=workers, servers=servers, bandwidth=Bandwidth(rate, nodes))
    costs = SimulatorConfig() if network is None else _costs(network, engine, workers)
    learned = record.learned
    cell = cell_of(record.profile(), contender, cluster, costs, half=learned.half)
    return Situation(cell, contender, shared, waits=learned.barrier, assumed=tuple(assumed)), record.iteration_s()


@dataclass(frozen=True)
class _Record:
    """Record of all workers: `rows` of each, by rank. `learner` is the place of the one that learned."""

    folder: Path
    rows: Sequence[Sequence[RecordRow]]
    learner: int

    @classmethod
    def read(cls, folder: Path) -> _Record:
        rows = read_workers(folder)
        learner = next(
            (place for place, each in enumerate(rows) if any(isinstance(row, ProfileRow) for row in each)), None
        )
        if learner is None:
            raise UserError(
                f"{folder}: no worker's record says what was learned of the job: it was too short, an older Prophet "
                "wrote it, or the file of the rank that decides, the first as a rule, is not there"
            )
        return cls(folder, rows, learner)

    @property
    def begin(self) -> BeginRow:
        return begin_of(self.rows[self.learner])

    @property
    def learned(self) -> ProfileRow:
        """Newest learned profile."""
        return self._profiles()[-1]

    @property
    def engine(self) -> EngineSpec:
        return engines()[self.begin.worker.engine]

    @property
    def end(self) -> EndRow | None:
        """Last row; None if the job was killed or still runs."""
        last = self.rows[self.learner][-1]
        return last if isinstance(last, EndRow) else None

    @property
    def base(self) -> str:
        """Name of the contender under which the job ran."""
        engine, end = self.engine, self.end
        variable = settings.SCHEDULER if engine.scheduled else settings.DDP_SCHEDULER
        policy = end.agent.policy if end is not None else self._set(variable)
        base = engine.called_here(policy)
        if base not in known_policies():
            raise UserError(f"{self.folder}: that job ran under {policy!r}, of which nothing is predicted")
        return base

    @property
    def workers(self) -> int:
        """Number of senders: ranks, or with BytePS machines, since it sums the gradients of a machine's processes."""
        processes = self.begin.worker.workers or len(self.rows)
        return max(1, processes // self._local_size) if self.engine.topology.through_servers else processes

    @property
    def servers(self) -> int:
        return max(1, self._number(settings.DMLC_NUM_SERVER, 1))

    @property
    def workers_per_host(self) -> int:
        if not self.engine.topology.through_servers:
            return min(max(1, self._number(LOCAL_WORLD_SIZE, 1)), self.workers)
        hosts = [begin_of(rows).worker.host for rows in self.rows]
        most = max(hosts.count(host) for host in hosts) // self._local_size
        return min(max(1, most), self.workers)

    @property
    def _local_size(self) -> int:
        return max(1, self._number(settings.BYTEPS_LOCAL_SIZE, 1))

    def _set(self, name: str) -> str:
        environment: Mapping[str, str] = self.begin.settings or {}
        return environment.get(name, "").strip().lower()

    def _number(self, name: str, default: int) -> int:
        text = self._set(name)
        return int(text) if text.isdecimal() else default

    def _profiles(self) -> list[ProfileRow]:
        return [row for row in self.rows[self.learner] if isinstance(row, ProfileRow)]

    def profile(self) -> Profile:
        """Return the most detailed learned profile, at the pace of the newest, with the bytes of whole gradients."""
        whose = self.begin.worker.job, self.folder
        newest = _profile(self.learned, *whose)
        same = [_profile(row, *whose) for row in self._profiles() if sum(row.bytes) == newest.total_bytes]
        finest = max(reversed(same), key=lambda profile: len(profile.gradients))
        if self._chapter.arena and len(finest.gradients) > len(newest.gradients):
            finest = scaled(at_pace(finest, pace_of(newest, finest)), forward_s=newest.forward_s or None)
        else:
            finest = newest
        whole_bytes = finest.total_bytes * (2 if self.learned.half else 1)
        return replace(scaled(finest, whole_bytes, forward_s=self._forward_s(finest)), ids=())

    def _forward_s(self, profile: Profile) -> float | None:
        """Seconds of an iteration besides backward and waiting; None if the waits are not recorded."""
        waited_s = self._waited_s()
        rest_s = 0.0 if waited_s is None else self.iteration_s() - waited_s - profile.backward_s
        return rest_s if rest_s > 0 else None

    def _waited_s(self) -> float | None:
        """Seconds an iteration that the program waited for averages since blocks last changed, None if unknown. MXNet's
        engine waits in its own threads.
        """
        rows, since_s = self.rows[self.learner], self._chapter.recut_s
        spans = [row for row in rows if isinstance(row, RatesRow) and (since_s is None or row.from_s >= since_s)]
        if not spans or self.begin.worker.framework != "torch":
            return None
        from_s, until_s = spans[0].from_s, spans[-1].until_s
        count = sum(from_s < lap.end_s <= until_s for lap in self._chapter.laps)
        if count < LEAST_AT_REST:
            return None
        waits = [row for row in rows if isinstance(row, WaitsRow) and from_s < row.until_s <= until_s]
        return sum(sum(row.waited_s.values()) + row.others_s for row in waits) / count

    def network(self) -> Network | None:
        """Network of the slowest worker at the end, for which every iteration waits."""
        newest = []
        for rows in self.rows:
            networks = [row.network for row in rows if isinstance(row, NetworkRow)]
            newest += networks[-1:]
        return min(newest, key=lambda network: network.bandwidth, default=None)

    def iteration_s(self) -> float:
        """Median of the newest iterations at rest; a median, because a user's job has other occasional work."""
        laps = self._chapter.laps
        periods = [lap.period_s for lap in laps[self._chapter.rests_from :]]
        if len(periods) < LEAST_AT_REST:
            raise UserError(f"{self.folder}: the job has {len(laps)} iterations on record; let it go on for longer")
        return median(periods[-NEWEST_LAPS:])

    def notes(self) -> Sequence[str]:
        """Return sentences on facts that differ from the prediction's assumptions."""
        notes = []
        if self.learned.barrier:
            notes.append(
                "the program looks at all gradients before it uses any, as clipping by their norm does; so it does in "
                "all predictions"
            )
        agent = self.end.agent if self.end is not None else None
        if agent is not None and agent.stepped_aside:
            notes.append(f"Prophet stepped aside in that job ({agent.stepped_aside})")
        if agent is not None and agent.given_back:
            notes.append(f"the job had torch's own reducer in the end, which was faster ({agent.given_back})")
        if self.begin.worker.framework != "torch":
            notes.append(f"predicted as a job of PyTorch, and it ran in {self.begin.worker.framework}")
        return notes

    @functools.cached_property
    def _chapter(self) -> Chapter:
        # The worker's own clock, as in the lines.
        return chapter_of(self.rows[self.learner], self.begin.unix_s)


def _profile(row: ProfileRow, name: str, folder: Path) -> Profile:
    columns = zip(row.gradient, row.bytes, row.generation_s, row.forward_s, strict=True)
    try:
        gradients = [GradientProfile(f"gradient{id_}", size, made_s, takes_s) for id_, size, made_s, takes_s in columns]
        return Profile(name, tuple(gradients), row.gradient)
    except (ValueError, UserError) as error:
        raise UserError(f"{folder}: what was learned of the job cannot be read ({error}); record it again") from None


def _costs(network: Network, engine: EngineSpec, workers: int) -> SimulatorConfig:
    """Return the costs of messages there. A push goes one way and its acknowledgement back. A ring has 2 (p - 1) steps,
    and only the delay of all of them together is known (simulate/collectives.py).
    """
    steps = 2 if engine.topology.through_servers else max(1, 2 * (workers - 1))
    return SimulatorConfig(overhead_s=network.overhead_s, latency_s=network.ack_delay_s / steps, burst=0)


def _through_servers(
    measured: float, links: LinkOptions, workers: int, servers: int, shared: int
) -> tuple[float, float, str]:
    """Return (rate of each host's link, rate of each server's link, note on assumptions).

    `measured` is a worker's rate while all send; `shared` is the number of workers on a host.
    """
    rate, server_rate = links.bandwidth, links.server_bandwidth
    if server_rate is None:
        alike = rate or measured * max(shared, workers / servers)
        note = (
            f"links of workers and servers are taken to be of one rate, {format_rate(alike)}; --bandwidth and "
            "--server-bandwidth say otherwise"
        )
        return alike, alike, note
    if rate is not None:
        return rate, server_rate, ""
    if measured < NARROW * server_rate * servers / workers:
        return measured * shared, server_rate, ""
    # The servers' links were measured, and a worker's link may have any higher rate.
    rate = max(measured * shared, server_rate)
    return rate, server_rate, f"workers' links are taken to be as wide as servers', {format_rate(rate)} (--bandwidth)"
