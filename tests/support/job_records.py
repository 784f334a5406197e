"""Files of jobs that nobody ran: a record (PROPHET_RECORD) on a virtual clock, and an experiment's folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from prophet_scheduler.core.arena import profile_under
from prophet_scheduler.core.cut import Cut, learning_cut
from prophet_scheduler.core.event_record import EventRecord, save_record
from prophet_scheduler.core.events import EVENT_DTYPE, EventKind, QueueKind
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.status import AgentStatus
from prophet_scheduler.lab.jobs.record import Mark, WorkerRecord, write_record
from prophet_scheduler.lab.records import Results, write_results
from prophet_scheduler.policies.algorithms.sequence import backward_order, iteration_s
from prophet_scheduler.policies.algorithms.stock import stock_iteration_s
from prophet_scheduler.watch.observer import Observer
from prophet_scheduler.watch.recorder import as_line
from prophet_scheduler.watch.rows import RecordRow
from prophet_scheduler.watch.status import Predicted, WorkerName
from prophet_scheduler.watch.training import TrainingLog
from support.plain_wire import played
from support.profiles import resnet50
from support.results import cell, failed, iterated

NETWORK = Network(31.25e6, 0.5e-3)
PROFILE = resnet50(25_600_000, backward_s=0.6, forward_s=0.3)


class RecordedJob:
    """Worker whose observer has a turn after each iteration. The first worker learns."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.now = 100.0 + rank
        self.agent = AgentStatus("prophet", "", 0, 0.0, 4_096_000, 2 << 20, network=NETWORK, arena=True)
        self.log = TrainingLog()
        worker = WorkerName("train-29500", rank, "ddp", workers=2, local_rank=rank)
        self.observer = Observer(worker, self.log, lambda: self.agent, all_reduce_ranks=2, clock=lambda: self.now)
        self.observer.record_into(folder)
        self.predicted = Predicted()
        self.learns = rank == 0

    def take_up(self, cut: Cut, predicted_s: float | None = None) -> None:
        """Put this cut in force from here on."""
        known = self.agent
        if known.cut:
            reason = f"predicted {predicted_s:.4g} s an iteration" if predicted_s else ""
            known = replace(known, recuts=known.recuts + 1, plans=known.plans + 1, recut_reason=reason)
        self.agent = replace(known, cut=cut.segments)
        stock_s = stock_iteration_s(PROFILE, NETWORK, ranks=2)
        self.predicted = Predicted(predicted_s, stock_s, cut.segments if predicted_s else ())
        self.blocks = profile_under(PROFILE, cut)

    def iterate(self, count: int) -> float:
        """Run iterations. Return the time of one, in seconds."""
        took_s = 0.0
        for _ in range(count):
            blocks = self.blocks
            sent = played(blocks, NETWORK, backward_order(len(blocks.gradients)))
            rows = []
            for place, gradient in enumerate(blocks.gradients):
                ends_s = self.now + sent.ends_s[place]
                times = (self.now + gradient.generation_s, ends_s - NETWORK.transfer_s(gradient.size_bytes), ends_s)
                for kind, at in zip(EventKind, times, strict=True):
                    rows.append((at, blocks.ids[place], gradient.size_bytes, 0, QueueKind.PUSH, kind, 0))
            took_s = iteration_s(blocks, sent)
            self.log.iteration_ended(0, self.now + blocks.backward_s)
            for place in (0, 1, 5):
                self.log.waiting(f"layer{place}.weight", self.now + 0.6)
                self.log.over(self.now + 0.6 + 0.02 * (place + 1))
            self.now += took_s
            events = np.array(rows, EVENT_DTYPE)
            events = events[np.argsort(events["time_s"], kind="stable")]
            self.observer.turn(self.now, events, self.predicted, profile=blocks if self.learns else None)
        return took_s


def write_job_record(folder: Path, iterations: int = 6) -> float:
    """Record two workers, each with an unknown job's first cut and then another. Return the last iteration time."""
    took_s = 0.0
    for rank in range(2):
        job = RecordedJob(folder, rank)
        job.take_up(learning_cut(PROFILE.total_bytes))
        job.iterate(iterations)
        job.take_up(Cut.uniform(1 << 20), predicted_s=1.2)
        took_s = job.iterate(iterations)
        job.observer.close()
    return took_s


def write_rows(folder: Path, *workers: Sequence[RecordRow]) -> Path:
    """Write a record with these lines of each worker, by rank."""
    for rank, rows in enumerate(workers):
        (folder / f"worker{rank}.jsonl").write_text("".join(map(as_line, rows)), encoding="utf-8")
    return folder


def write_experiment(folder: Path, **more: Any) -> None:
    """Write a folder as `prophet run` does: prophet with a record of transfers, stock without, and a failed policy."""
    point = cell(stock=iterated(1.7, 1.7, 2.0), prophet=iterated(0.9, 0.8, 1.0), broken=failed("it hung"))
    config: Any = {"name": "small", "job": {"kind": "replay", "iterations": 4}}
    results = Results(schema=2, config=config, repeats=1, cells=[point])
    marks = [Mark(10.0 + n, 10.3 + n, 10.9 + n) for n in range(5)]
    for name in ("stock", "prophet"):
        run = folder / "runs" / "cell0" / f"{name}-repeat1"
        run.mkdir(parents=True)
        write_record(WorkerRecord([1.0] * 4, marks), run / "worker0.json")
    rows = [
        (mark.backward + 0.1 * step, id_, 4096, 0, queue, kind, 0)
        for mark in marks
        for queue in QueueKind
        for id_ in range(3)
        for step, kind in enumerate(EventKind)
    ]
    events = np.array(sorted(rows), EVENT_DTYPE)
    save_record(EventRecord(events), run / "worker0.events.npz")
    status = {
        **{"policy": "prophet", "stepped_aside": "", "plans": 2, "agent_cpu_s": 0.1, "partition_bytes": 4096},
        **{"push_credit": 8192, "arena": True, "recuts": 1, "last_recut_s": 12.0, "refused": ["128KiB: no names"]},
        **{"recut_reason": "predicted 0.95 s an iteration", "recut_predicted_s": 0.95},
        **{"cut": [{"start": 0, "block_bytes": 8192}], **more},
    }
    (run / "worker0.status.json").write_text(json.dumps(status))
    write_results(results, folder / "results.json")
