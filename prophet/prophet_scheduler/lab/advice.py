"""Advice on a faster job: its iteration time as it is, and with one change.

Rule of this file: pure, from a situation to predictions and advice. advice_sources.py makes a situation, and
advice_recorded.py makes one from a job's own record. Times are seconds, rates bits per second.

Each change makes another situation, and the simulator predicts both. A measured run gives the simulator's error for
this job, and predictions on the same engine are scaled by it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from pydantic_core import to_jsonable_python

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.engines.registry import engines, scheduled_engine
from prophet_scheduler.engines.spec import role_of
from prophet_scheduler.lab.advice_record import Advice, Suggestion
from prophet_scheduler.lab.cluster_config import Bandwidth, ClusterConfig
from prophet_scheduler.lab.config import Cell
from prophet_scheduler.lab.contenders import Contender, choose_policies
from prophet_scheduler.lab.job_config import ReplayJob
from prophet_scheduler.lab.results import compute_s, lower_bound
from prophet_scheduler.lab.simulated import run_planned
from prophet_scheduler.lab.simulated_ddp import prepared
from prophet_scheduler.lab.simulator_config import FSDP2, SimulatorConfig
from prophet_scheduler.lab.simulator_error import PredictionError

ITERATIONS, WARMUP = 40, 28
"""Iterations of a prediction, as in the runs that compared the simulator with real ones."""
WORTH = 0.05
"""Minimum gain, as a share: nobody buys a network for less."""
COMPRESSED_RATE = 0.8e9
"""Bytes of gradients per second that torch's PowerSGD of rank 1 handles on one core, measured for three models."""
AVERAGED_EVERY = 4
"""Iterations between two averages of local SGD, as in torch's documentation of PeriodicModelAverager."""
HELD_BACK = 0.05
"""Share of waiting in an iteration above which the network holds a job back."""


@dataclass(frozen=True)
class Situation:
    """One job on one cluster under one contender.

    `workers_per_host` workers share each worker's link of the cluster. `batch` is a worker's samples in an iteration,
    as a multiple of the job's own. `waits`: the program reads all averages before it uses any. `assumed` has sentences
    on its unknown facts. `low_rank_bytes` is what PowerSGD of rank 1 sends of each gradient, empty if unknown.
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
        """Profile of the job. Raises UserError if there is none."""
        if self.cell.profile is None:
            raise UserError("there is no profile of this job to predict anything from")
        return self.cell.profile


@dataclass(frozen=True)
class JobChange:
    """One possible change of a job. `of` returns the changed situation, or None if the change does not apply."""

    name: str
    words: str
    of: Callable[[Situation], Situation | None]
    note: str = ""
    """Effects that the prediction leaves out."""


def _faster_links(role: str, factor: float, situation: Situation) -> Situation | None:
    cluster = situation.cell.cluster
    bandwidth = cluster.bandwidth
    ours = [node for node in cluster.nodes if role_of(node) == role]
    if all(bandwidth.rate(node) is None for node in ours):
        return None
    if role == "server" and not situation.contender.engine.topology.through_servers:
        return None
    workers = role == "worker"
    nodes = {
        node: rate * factor if rate is not None and role_of(node) == role else rate
        for node, rate in bandwidth.nodes.items()
    }
    default = bandwidth.default * factor if workers and bandwidth.default is not None else bandwidth.default
    changes = tuple((at_s, rate * factor if workers else rate) for at_s, rate in bandwidth.changes)
    return _on(situation, bandwidth=Bandwidth(default, nodes, changes))


def _another_server(situation: Situation) -> Situation | None:
    if not situation.contender.engine.topology.through_servers:
        return None
    cluster = situation.cell.cluster
    rate = cluster.bandwidth.rate("server0")
    added = {} if rate is None else {f"server{cluster.servers}": rate}
    bandwidth = replace(cluster.bandwidth, nodes={**cluster.bandwidth.nodes, **added})
    return _on(situation, servers=cluster.servers + 1, bandwidth=bandwidth)


def _half_precision(situation: Situation) -> Situation | None:
    job = situation.cell.job
    if job.compression != "none":
        return None
    return replace(situation, cell=replace(situation.cell, job=job.model_copy(update={"compression": "fp16"})))


def _larger_batch(situation: Situation) -> Situation:
    gradients = situation.profile.gradients
    longer = tuple(replace(g, generation_s=2 * g.generation_s, forward_s=2 * g.forward_s) for g in gradients)
    cell = replace(situation.cell, profile=replace(situation.profile, gradients=longer))
    return replace(situation, cell=cell, batch=2 * situation.batch)


def _low_rank(situation: Situation) -> Situation | None:
    if not (_plain_ddp(situation) and situation.low_rank_bytes):
        return None
    gradients = situation.profile.gradients
    pressed = [replace(each, forward_s=each.forward_s + each.size_bytes / COMPRESSED_RATE) for each in gradients]
    return _sending(situation, situation.low_rank_bytes, pressed)


def _local_sgd(situation: Situation) -> Situation | None:
    """Return the job with an exchange of all parameters in one of AVERAGED_EVERY iterations, spread over them all."""
    if not _plain_ddp(situation):
        return None
    gradients = situation.profile.gradients
    late = [replace(gradient, generation_s=situation.profile.backward_s) for gradient in gradients]
    return _sending(situation, [max(1, gradient.size_bytes // AVERAGED_EVERY) for gradient in gradients], late)


def _plain_ddp(situation: Situation) -> bool:
    """True if torch's own hooks could replace the averaging of whole gradients."""
    return (
        situation.contender.engine is engines()["ddp"]
        and not _sharded(situation)
        and situation.contender.policy is None
        and situation.cell.job.compression == "none"
    )


def _sharded(situation: Situation) -> bool:
    return situation.cell.simulator.exchange == FSDP2


def _kept(situation: Situation) -> Situation | None:
    if not _sharded(situation) or situation.cell.simulator.keep:
        return None
    return _simulated(situation, keep=True)


def _shards_on_hosts(situation: Situation) -> Situation | None:
    on_host = situation.workers_per_host
    if not _sharded(situation) or on_host in (1, situation.cell.cluster.workers, situation.cell.simulator.shards):
        return None
    return _simulated(situation, shards=on_host)


def _not_sharded(situation: Situation) -> Situation | None:
    if not _sharded(situation):
        return None
    return _simulated(situation, exchange=SimulatorConfig().exchange, shards=None, keep=False)


def _sending(situation: Situation, sizes: Sequence[int], gradients: Sequence[GradientProfile]) -> Situation:
    rows = zip(gradients, sizes, strict=True)
    profile = replace(situation.profile, gradients=tuple(replace(row, size_bytes=size) for row, size in rows))
    return replace(situation, cell=replace(situation.cell, profile=profile))


def _fewer_workers_a_host(situation: Situation) -> Situation | None:
    if situation.workers_per_host == 1:
        return None
    return replace(situation, workers_per_host=(situation.workers_per_host + 1) // 2)


def _with_prophet(situation: Situation) -> Situation | None:
    base = situation.contender.engine.called_here("prophet")
    return None if base == situation.contender.base else _under(situation, base)


def _on_ddp(situation: Situation) -> Situation | None:
    ddp = engines()["ddp"]
    if situation.contender.engine is ddp or situation.cell.cluster.workers < 2:
        return None
    base = ddp.called_here(situation.contender.base)
    return _under(situation, base if ddp.variant(base) is not None else ddp.called_here("prophet"))


def _on_byteps(situation: Situation) -> Situation | None:
    byteps = scheduled_engine()
    if situation.contender.engine is byteps or _sharded(situation):
        return None
    # BytePS advises as many servers as workers; here they are on machines like the workers'.
    cluster = situation.cell.cluster
    links = {f"server{place}": cluster.bandwidth.rate(f"worker{place}") for place in range(cluster.workers)}
    bandwidth = replace(cluster.bandwidth, nodes={**cluster.bandwidth.nodes, **links})
    base = situation.contender.policy or byteps.stock
    return _under(_on(situation, servers=cluster.workers, bandwidth=bandwidth), base)


CHANGES: Sequence[JobChange] = (
    JobChange("prophet", "the same under Prophet", _with_prophet),
    JobChange("twice-the-rate", "twice the rate of workers' links", partial(_faster_links, "worker", 2.0)),
    JobChange("faster-servers", "twice the rate of servers' links", partial(_faster_links, "server", 2.0)),
    JobChange("another-server", "another server", _another_server),
    JobChange(
        "half-precision",
        "half precision on the wire",
        _half_precision,
        "the time of converting, and what rounding does to the model",
    ),
    JobChange(
        "larger-batch",
        "twice the batch",
        _larger_batch,
        "that a processor computes large batches better, and what they do to the model",
    ),
    JobChange("low-rank", "PowerSGD of rank 1", _low_rank, "what the approximation does to the model"),
    JobChange(
        "local-sgd",
        f"local SGD, averages every {AVERAGED_EVERY} iterations",
        _local_sgd,
        "what models that drift apart do to the result",
    ),
    JobChange("kept", "parameters kept after forward", _kept, "the memory that they take"),
    JobChange("shards-on-hosts", "HSDP, shards within a host", _shards_on_hosts, "the memory of larger shards"),
    JobChange("replicas", "DDP in place of FSDP2", _not_sharded, "the memory of whole parameters and their state"),
    JobChange("ddp", "DDP in place of BytePS", _on_ddp),
    JobChange("parameter-servers", "BytePS in place of DDP", _on_byteps),
    JobChange("fewer-workers-a-host", "half as many workers a host", _fewer_workers_a_host),
)
"""Changes in the order of their display."""


def contender_of(name: str) -> Contender:
    """Return a policy or an engine's variant by its name, such as `prophet` or `ddp-gloo`. Raises UserError."""
    (contender,) = choose_policies((), [name], "torch")
    return contender


def predicted_s(situation: Situation) -> float:
    """Return the simulator's median iteration time. Raises UserError for a contender or cluster it does not know."""
    cell = on_its_links(situation)
    contender = replace(situation.contender, warmup=None)
    planned = prepared(cell, contender, waits=situation.waits, workers_per_host=situation.workers_per_host)
    if planned is None:
        raise UserError(f"{contender.name} cannot be simulated, {contender.engine.unsimulated}")
    return float(np.median(run_planned(planned).iteration_s(WARMUP)))


def cell_of(
    profile: Profile, contender: Contender, cluster: ClusterConfig, simulator: SimulatorConfig, *, half: bool = False
) -> Cell:
    """Return the cell of a job with this profile. `half`: gradients travel in half precision."""
    job = ReplayJob(kind="replay", compression="fp16" if half else "none")
    setting = {"bandwidth": cluster.bandwidth.default}
    return Cell(setting, job, cluster, (contender,), profile, simulator, contender.engine)


def on_its_links(situation: Situation) -> Cell:
    """Return the cell with each worker's own part of its link and a prediction's length.

    Workers on the same host each push their own gradients to the servers. A ring by rank crosses a host's link once
    each way, for any number of workers on it.
    """
    if situation.workers_per_host > 1 and situation.contender.engine.topology.through_servers:
        situation = _faster_links("worker", 1 / situation.workers_per_host, situation) or situation
    real = situation.cell.job
    job = ReplayJob(
        kind="replay",
        iterations=ITERATIONS,
        warmup=WARMUP,
        seed=real.seed,
        compression=real.compression,
        clip_norm=real.clip_norm if isinstance(real, ReplayJob) else 0.0,
    )
    return replace(situation.cell, job=job, policies=(situation.contender,), engine=situation.contender.engine)


def advise(
    situation: Situation,
    measured_s: float | None = None,
    *,
    predict: Callable[[Situation], float] = predicted_s,
    error_of: Callable[[str], PredictionError] = lambda base: PredictionError(),
    changes: Sequence[JobChange] = CHANGES,
) -> Advice:
    """Predict the situation and every one of `changes` that applies. `measured_s` is the real iteration time.

    `error_of` returns the error of predictions for a contender's base. Raises UserError if the situation itself cannot
    be predicted; changes that cannot be predicted are left out.
    """

    def known_error(changed: Situation) -> PredictionError:
        policy = f"-{changed.contender.policy}" if changed.contender.policy else ""
        return error_of(f"{FSDP2}{policy}" if _sharded(changed) else changed.contender.base)

    simulated_s = predict(situation)
    now_s = simulated_s if measured_s is None else measured_s
    scale = now_s / simulated_s
    suggestions = []
    for change in changes:
        changed = change.of(situation)
        if changed is None:
            continue
        try:
            changed_s = predict(changed)
        except UserError:
            continue
        same_engine = changed.contender.engine is situation.contender.engine
        changed_s *= scale if same_engine else 1.0
        gain = changed.batch / situation.batch * now_s / changed_s
        error = known_error(changed)
        needed = max(WORTH, 0.0 if error.usual is None or same_engine else error.usual)
        suggestions.append(
            Suggestion(
                change=change.name,
                words=change.words,
                iteration_s=changed_s,
                gain=gain,
                helps=gain - 1 >= needed,
                error=error.usual,
                worst_error=error.worst,
                leaves_out=change.note,
            )
        )
    cell = on_its_links(situation)
    computing_s = compute_s(cell)
    assert computing_s is not None  # the situation has a profile
    waits = max(0.0, 1 - computing_s / now_s)
    error = known_error(situation)
    return Advice(
        job=situation.profile.name,
        policy=situation.contender.name,
        setting=to_jsonable_python(situation.cell.setting),
        workers=cell.cluster.workers,
        servers=cell.cluster.servers if cell.engine.topology.through_servers else 0,
        iteration_s=now_s,
        simulated_s=simulated_s,
        measured_s=measured_s,
        error=error.usual,
        worst_error=error.worst,
        computing_s=computing_s,
        # The bound is of links that no other worker uses.
        bound_s=None if _sharded(situation) and situation.workers_per_host > 1 else lower_bound(cell),
        waits=waits,
        network_holds_back=waits > HELD_BACK,
        suggestions=suggestions,
        assumed=situation.assumed,
    )


def _on(situation: Situation, **cluster: object) -> Situation:
    changed = situation.cell.cluster.model_copy(update=cluster)
    return replace(situation, cell=replace(situation.cell, cluster=changed))


def _simulated(situation: Situation, **config: object) -> Situation:
    changed = situation.cell.simulator.model_copy(update=config)
    return replace(situation, cell=replace(situation.cell, simulator=changed))


def _under(situation: Situation, base: str) -> Situation:
    return replace(situation, contender=contender_of(base))
