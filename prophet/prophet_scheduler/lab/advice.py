"""Advice on making a job faster: its iteration time as it is, and with one change at a time.

Rule of this file: pure, from a situation to predictions and advice; other files named advice_*.py create situations.
Each change yields another situation, and the simulator predicts both. A measured run gives the simulator's error for
this job, and predictions on the same engine are scaled by it. Times are seconds, rates bits per second.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from statistics import median

import numpy as np

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.engines.registry import engine_of, engines, scheduled_engine
from prophet_scheduler.engines.spec import EngineSpec, role_of
from prophet_scheduler.lab.cluster_config import FSDP2, ClusterConfig, SimulatorConfig
from prophet_scheduler.lab.config import Cell
from prophet_scheduler.lab.contenders import Contender, choose_policies
from prophet_scheduler.lab.job_config import ReplayJob
from prophet_scheduler.lab.records import Advice, Suggestion
from prophet_scheduler.lab.results import compute_s, lower_bound
from prophet_scheduler.lab.simulated import prepared, run_planned

ITERATIONS, WARMUP = 40, 28
"""Number of iterations of a prediction, as in the runs that compared the simulator with real jobs."""
WORTH = 0.05
"""Minimum gain worth suggesting, as a share: nobody buys a network for less."""
COMPRESSED_RATE = 0.8e9
"""Gradient bytes per second that torch's PowerSGD of rank 1 processes on one core, measured for three models."""
AVERAGED_EVERY = 4
"""Number of iterations per average in local SGD, as in torch's documentation of PeriodicModelAverager."""
HELD_BACK = 0.05
"""Share of an iteration spent waiting above which the network holds a job back."""
ERRORS_FILE = Path(__file__).with_name("simulator-errors.json")
"""Real over simulated iteration times, which `make pages` writes from stored experiments that were run both ways
(docs/results/validation.md)."""


@dataclass(frozen=True)
class Situation:
    """One job on one cluster under one contender.

    `workers_per_host` workers share a link, that of a worker in the cluster. `batch` is the batch size as a multiple of
    the job's own. `waits`: the program needs all averages before it uses any. `assumed` has sentences on unknown facts.
    `low_rank_bytes` are the bytes that PowerSGD of rank 1 sends for each gradient, empty if unknown.
    """

    cell: Cell
    contender: Contender
    workers_per_host: int = 1
    batch: float = 1.0
    waits: bool = False
    assumed: tuple[str, ...] = ()
    low_rank_bytes: tuple[int, ...] = ()

    @property
    def profile(self) -> Profile:
        """Profile of the job."""
        assert self.cell.profile is not None  # advice_sources.py and advice_observed.py see to it
        return self.cell.profile

    @property
    def engine(self) -> EngineSpec:
        return self.contender.engine

    @property
    def served(self) -> bool:
        """True if gradients go through servers."""
        return self.engine.topology.through_servers

    @property
    def sharded(self) -> bool:
        return self.cell.simulator.exchange == FSDP2

    @property
    def plain_ddp(self) -> bool:
        """True if the job is plain DDP, where torch's hooks could replace the averaging of whole gradients."""
        plain = self.contender.policy is None and self.cell.job.compression == "none"
        return plain and self.engine is engines()["ddp"] and not self.sharded

    def on(self, **cluster: object) -> Situation:
        return replace(self, cell=replace(self.cell, cluster=self.cell.cluster.model_copy(update=cluster)))

    def simulated(self, **config: object) -> Situation:
        return replace(self, cell=replace(self.cell, simulator=self.cell.simulator.model_copy(update=config)))

    def with_gradients(self, gradients: Iterable[GradientProfile]) -> Situation:
        return replace(self, cell=replace(self.cell, profile=replace(self.profile, gradients=tuple(gradients))))

    def under(self, base: str) -> Situation:
        return replace(self, contender=contender_of(base))


@dataclass(frozen=True)
class JobChange:
    """Possible change of a job. `of` returns the changed situation, or None if the change does not apply."""

    name: str
    words: str
    of: Callable[[Situation], Situation | None]
    note: str = ""
    """Effects that the prediction leaves out."""


def _faster_links(role: str, factor: float, now: Situation) -> Situation | None:
    bandwidth = now.cell.cluster.bandwidth
    rates = ((node, bandwidth.rate(node)) for node in now.cell.cluster.nodes if role_of(node) == role)
    faster = {node: rate * factor for node, rate in rates if rate is not None}
    if role == "worker":
        bandwidth = replace(bandwidth, changes=tuple((at_s, rate * factor) for at_s, rate in bandwidth.changes))
    elif not now.served:
        return None
    return now.on(bandwidth=bandwidth.with_rates(faster)) if faster else None


def _another_server(now: Situation) -> Situation | None:
    cluster = now.cell.cluster
    bandwidth = cluster.bandwidth.with_rates({f"server{cluster.servers}": cluster.bandwidth.rate("server0")})
    return now.on(servers=cluster.servers + 1, bandwidth=bandwidth) if now.served else None


def _half_precision(now: Situation) -> Situation | None:
    half = now.cell.job.model_copy(update={"compression": "fp16"})
    return replace(now, cell=replace(now.cell, job=half)) if now.cell.job.compression == "none" else None


def _larger_batch(now: Situation) -> Situation:
    rows = now.profile.gradients
    longer = (replace(row, generation_s=2 * row.generation_s, forward_s=2 * row.forward_s) for row in rows)
    return replace(now.with_gradients(longer), batch=2 * now.batch)


def _low_rank(now: Situation) -> Situation | None:
    if not (now.plain_ddp and now.low_rank_bytes):
        return None
    return now.with_gradients(
        replace(row, size_bytes=size, forward_s=row.forward_s + row.size_bytes / COMPRESSED_RATE)
        for row, size in zip(now.profile.gradients, now.low_rank_bytes, strict=True)
    )


def _local_sgd(now: Situation) -> Situation | None:
    """Return the job with an exchange of all parameters every AVERAGED_EVERY iterations, spread evenly over them."""
    if not now.plain_ddp:
        return None
    late_s = now.profile.backward_s
    return now.with_gradients(
        replace(row, size_bytes=max(1, row.size_bytes // AVERAGED_EVERY), generation_s=late_s)
        for row in now.profile.gradients
    )


def _shards_on_hosts(now: Situation) -> Situation | None:
    shards = now.workers_per_host
    as_now = shards in (1, now.cell.cluster.workers, now.cell.simulator.shards)
    return now.simulated(shards=shards) if now.sharded and not as_now else None


def _not_sharded(now: Situation) -> Situation | None:
    whole = now.simulated(exchange=SimulatorConfig().exchange, shards=None, keep=False)
    return whole if now.sharded else None


def _with_prophet(now: Situation) -> Situation | None:
    base = now.engine.called_here("prophet")
    return None if base == now.contender.base else now.under(base)


def _on_ddp(now: Situation) -> Situation | None:
    ddp = engines()["ddp"]
    if now.engine is ddp or now.cell.cluster.workers < 2:
        return None
    base = ddp.called_here(now.contender.base)
    return now.under(base if ddp.variant(base) is not None else ddp.called_here("prophet"))


def _on_byteps(now: Situation) -> Situation | None:
    byteps, cluster = scheduled_engine(), now.cell.cluster
    if now.engine is byteps or now.sharded:
        return None
    # BytePS recommends as many servers as workers; assume servers on machines like the workers'.
    links = {f"server{place}": cluster.bandwidth.rate(f"worker{place}") for place in range(cluster.workers)}
    bandwidth = cluster.bandwidth.with_rates(links)
    return now.on(servers=cluster.workers, bandwidth=bandwidth).under(now.contender.policy or byteps.stock)


CHANGES: Sequence[JobChange] = (
    JobChange("prophet", "the same under Prophet", _with_prophet),
    JobChange("twice-the-rate", "twice the rate of workers' links", partial(_faster_links, "worker", 2.0)),
    JobChange("faster-servers", "twice the rate of servers' links", partial(_faster_links, "server", 2.0)),
    JobChange("another-server", "another server", _another_server),
    JobChange(
        "half-precision",
        "half precision on the wire",
        _half_precision,
        "conversion time, and the effect of rounding on the model",
    ),
    JobChange(
        "larger-batch",
        "twice the batch",
        _larger_batch,
        "that larger batches compute more efficiently, and their effect on the model",
    ),
    JobChange("low-rank", "PowerSGD of rank 1", _low_rank, "the effect of the approximation on the model"),
    JobChange(
        "local-sgd",
        f"local SGD, averages every {AVERAGED_EVERY} iterations",
        _local_sgd,
        "the effect on the result of models that drift apart",
    ),
    JobChange(
        "kept",
        "parameters kept after forward",
        lambda now: now.simulated(keep=True) if now.sharded and not now.cell.simulator.keep else None,
        "the memory for them",
    ),
    JobChange("shards-on-hosts", "HSDP, shards within a host", _shards_on_hosts, "the memory of larger shards"),
    JobChange("replicas", "DDP in place of FSDP2", _not_sharded, "the memory of whole parameters and their state"),
    JobChange("ddp", "DDP in place of BytePS", _on_ddp),
    JobChange("parameter-servers", "BytePS in place of DDP", _on_byteps),
    JobChange(
        "fewer-workers-a-host",
        "half as many workers per host",
        lambda now: replace(now, workers_per_host=-(-now.workers_per_host // 2)) if now.workers_per_host > 1 else None,
    ),
)
"""All changes, in display order."""


def contender_of(name: str) -> Contender:
    """Return the policy or engine variant of this name, such as `prophet` or `ddp-gloo`. Raises UserError."""
    (contender,) = choose_policies((), [name])
    return contender


def predicted_s(situation: Situation) -> float:
    """Return the simulated median iteration time. Raises UserError for an unsupported contender or cluster."""
    cell, contender = on_its_links(situation), situation.contender
    planned = prepared(cell, contender, waits=situation.waits, on_host=situation.workers_per_host)
    if planned is None:
        raise UserError(f"{contender.name} cannot be simulated, {contender.engine.unsimulated}")
    return float(np.median(run_planned(planned).iteration_s(WARMUP)))


def cell_of(
    profile: Profile, contender: Contender, cluster: ClusterConfig, simulator: SimulatorConfig, *, half: bool = False
) -> Cell:
    """Return the cell of a prediction for a job with this profile. `half`: gradients are sent in half precision."""
    job = ReplayJob(kind="replay", iterations=ITERATIONS, warmup=WARMUP, compression="fp16" if half else "none")
    setting = {"bandwidth": cluster.bandwidth.default}
    return Cell(setting, job, cluster, (contender,), profile, simulator, contender.engine)


def on_its_links(situation: Situation) -> Cell:
    """Return the cell with each worker's share of its host's link.

    With servers, each worker on a host pushes its own gradients. A ring by rank crosses a host's link once each way,
    however many workers the host has.
    """
    if situation.workers_per_host > 1 and situation.served:
        situation = _faster_links("worker", 1 / situation.workers_per_host, situation) or situation
    return replace(situation.cell, policies=(situation.contender,), engine=situation.engine)


def prediction_error(base: str) -> tuple[float, float] | tuple[None, None]:
    """Return the median and maximum deviation of real from simulated times of `base`, a policy or variant, as shares of
    the latter. If `base` was never compared, they are those of all others on its engine; None if there are none.
    """
    ratios = _ratios()
    alike = [base] if base in ratios else [other for other in ratios if _engine_of(other) == _engine_of(base)]
    off = [abs(ratio - 1) for other in alike for ratio in ratios[other]]
    return (median(off), max(off)) if off else (None, None)


def _engine_of(base: str) -> str:
    return FSDP2 if base.startswith(FSDP2) else engine_of(base).name


@cache
def _ratios() -> Mapping[str, Sequence[float]]:
    """Return the ratios of real to simulated time, by policy or variant, one per cell."""
    ratios: Mapping[str, Sequence[float]] = json.loads(ERRORS_FILE.read_text(encoding="utf-8"))
    return ratios


def advise(
    situation: Situation,
    measured_s: float | None = None,
    *,
    predict: Callable[[Situation], float] = predicted_s,
    changes: Sequence[JobChange] = CHANGES,
) -> Advice:
    """Predict the situation and each of `changes` that applies. `measured_s` is the real iteration time, if known.

    Raises UserError if the situation itself cannot be predicted; changes that cannot be predicted are left out.
    """

    def error(of: Situation) -> tuple[float, float] | tuple[None, None]:
        policy = f"-{of.contender.policy}" if of.contender.policy else ""
        return prediction_error(f"{FSDP2}{policy}" if of.sharded else of.contender.base)

    simulated_s = predict(situation)
    now_s = simulated_s if measured_s is None else measured_s
    suggestions = []
    for change in changes:
        if (changed := change.of(situation)) is None:
            continue
        try:
            changed_s = predict(changed)
        except UserError:
            continue
        usual, worst = error(changed)
        if same_engine := changed.engine is situation.engine:
            changed_s *= now_s / simulated_s
        gain = changed.batch / situation.batch * now_s / changed_s
        suggestions.append(
            Suggestion(
                change=change.name,
                words=change.words,
                iteration_s=changed_s,
                gain=gain,
                helps=gain - 1 >= max(WORTH, 0.0 if usual is None or same_engine else usual),
                error=usual,
                worst_error=worst,
                leaves_out=change.note,
            )
        )
    cell = on_its_links(situation)
    computing_s = compute_s(cell)
    assert computing_s is not None  # the situation has a profile
    waits = max(0.0, 1 - computing_s / now_s)
    usual, worst = error(situation)
    return Advice(
        job=situation.profile.name,
        policy=situation.contender.name,
        setting={"bandwidth": cell.cluster.bandwidth.default},
        workers=cell.cluster.workers,
        servers=cell.cluster.servers if situation.served else 0,
        iteration_s=now_s,
        simulated_s=simulated_s,
        measured_s=measured_s,
        error=usual,
        worst_error=worst,
        computing_s=computing_s,
        # The bound assumes links that no other worker uses.
        bound_s=None if situation.sharded and situation.workers_per_host > 1 else lower_bound(cell),
        waits=waits,
        network_holds_back=waits > HELD_BACK,
        suggestions=suggestions,
        assumed=situation.assumed,
    )
