"""docs/reliability.md: each promise of Prophet, its test, and what the soak saw.

Rule of this file: what is kept of a soak, its verdicts, and the text of the page; nothing is run.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from tools import kept
from tools.markdown import shown, table
from tools.native_stress import PLAIN
from tools.soak_records import BYTEPS, DDP, PROPHETS, FaultRun, LongTraining, SoakData

PAGE = "../reliability.md"
"""Page beside the folder of results, since it is about what users are promised."""
NAME = "soak"
COMMAND = "make soak"
ENGINE_WORDS: Mapping[str, str] = {engine.name: engine.words for engine in (BYTEPS, DDP)}
CHECK_WORDS = {PLAIN: "none", "memory": "ASan and UBSan", "races": "TSan"}
ORDER = ("stock", PROPHETS[0], DDP.stock, PROPHETS[1])
"""Order of a fault's rows."""
ERROR_LETTERS = 230
NOT_RUN = f"not run yet: `{COMMAND}`"
NOT_MEASURED = kept.not_measured(COMMAND)
MEMORY = "[Memory](results/memory.md) has what a message costs in memory."
"""Text where long training was not measured."""


def right_weights(faults: Iterable[FaultRun]) -> set[str]:
    """Return the digests of the jobs without a fault: one, where all is well."""
    return {run.weights for run in faults if not run.fault and run.weights}


def outcome(run: FaultRun, right: set[str]) -> str:
    """Return a job's outcome, in words."""
    if run.error:
        after = "" if run.ended_after_s is None else f" {run.ended_after_s:.0f} s after the fault began"
        error = textwrap.shorten(run.error.removeprefix("repeat 1 of 1: ").removeprefix("hung: "), ERROR_LETTERS)
        trained = f"{_weights(run, right)}, then " if run.weights else ""
        return f"{trained}hung: {error}" if is_hang(run) else f"{trained}ended{after}: {error}"
    longest = "" if run.longest_iteration_s is None else f"; longest iteration {run.longest_iteration_s:.1f} s"
    return _weights(run, right) + longest


def _weights(run: FaultRun, right: set[str]) -> str:
    if not right:
        return "trained, with nothing to compare with"
    return f"{'right' if run.weights in right else 'OTHER'} weights"


def is_hang(run: FaultRun) -> bool:
    """True if the harness had to end it."""
    return "hung: " in run.error


def faults_of(data: SoakData) -> list[str]:
    """Return all that went wrong under Prophet, a line each. A hang of an engine alone is not counted."""
    lines = [f"start of {part.engine}: {line}" for part in data.starts if part.prophet for line in part.wrong]
    lines += [f"tasks, {part.check}: {line}" for part in data.tasks for line in part.wrong]
    for job in data.training:
        lines += [f"training under {job.policy}: {job.error}"] if job.error else []
        lines += [f"training under {job.policy}: {job.unfinished} tasks lost"] if job.unfinished else []
    right = right_weights(data.faults)
    lines += [f"jobs without a fault have {len(right)} different models"] if len(right) > 1 else []
    for run in data.faults:
        lost = right and run.weights not in right if run.weights else not run.error
        if run.policy in PROPHETS and (is_hang(run) or lost):
            lines.append(f"{run.fault or 'no fault'}, {run.policy}: {outcome(run, right)}")
    return lines


def page(results: Path) -> str:
    """Return the page, made from the kept data."""
    return text(kept_data(results), kept.note(results, "soak-starts"), kept.note(results, "soak-training"))


def kept_data(results: Path) -> SoakData:
    """Return what was kept of all parts that were run."""
    stored = kept.kept(results, NAME, SoakData)
    return SoakData() if stored is None else stored[1]


def text(data: SoakData, of_starts: str = "", of_training: str = "") -> str:
    """Return the page as Markdown; `of_starts` and `of_training` are observations besides their figures."""
    about = (
        "What Prophet promises of a job, the test that looks at it in each change, and what was seen where it was"
        f" tried for long. Made by `{COMMAND}`; each part below says when and where it was measured."
    )
    wrong = faults_of(data)
    faulty = "What went wrong under Prophet:\n\n" + "\n".join(f"- {line}" for line in wrong) if wrong else ""
    return kept.joined(
        "# Reliability",
        about,
        table(("promise", "test", "seen"), promises(data)),
        faulty,
        "## Starts",
        starts_text(data) if data.starts else NOT_MEASURED,
        of_starts,
        "## Tasks",
        tasks_text(data) if data.tasks else NOT_MEASURED,
        "## Long training",
        training_text(data) if data.training else f"{NOT_MEASURED} {MEMORY}",
        of_training,
        "## Faults",
        faults_text(data) if data.faults else NOT_MEASURED,
    )


def promises(data: SoakData) -> list[tuple[str, str, str]]:
    """Return the rows of the first table."""
    return [
        (
            "A job starts, and its weights are those without Prophet",
            _tests("net/test_real_jobs.py", "scripts/test_scripts.py", "tools/test_ddp_stress.py"),
            _seen_starts(data),
        ),
        (
            "A start costs little time beside the engine's own",
            "none: it is a matter of time",
            "; ".join(filter(None, (_p99(data, engine) for engine in ENGINE_WORDS))) or NOT_RUN,
        ),
        (
            "Every task passes through the hook once, whatever plans come and wherever it steps aside",
            _tests("native/test_sanitizers.py"),
            _seen_tasks(data),
        ),
        (
            "A job trains for as long as it likes: no hang, no growth of memory, no lost task",
            _tests("tools/test_soak.py"),
            _seen_training(data),
        ),
        (
            "A job goes on after what breaks for a while, to the same weights",
            _tests("tools/test_soak.py"),
            _seen_faults(data, gone=False),
        ),
        (
            "A job whose peer is gone ends with a line that says so (BytePS: where `PROPHET_STALL_S` is set)",
            _tests("net/test_start.py", "plugins/torch/test_ends.py"),
            _seen_faults(data, gone=True),
        ),
        (
            "Of an asynchronous job a worker, an aggregator or the coordinator may die: the others train to their end, "
            "and no update is in the model twice",
            _tests("net/test_asynchronous_deaths.py", "plugins/mlfabric/test_virtual_jobs.py"),
            "in the tests alone",
        ),
        (
            "An asynchronous job whose server died begins anew with its replica's model, which lacks no more than the "
            "bound; a replica that dies holds nobody up",
            _tests("net/test_replica.py", "plugins/mlfabric/test_copies.py", "plugins/mlfabric/test_replica.py"),
            "in the tests alone",
        ),
        (
            "A failure of Prophet is one warning, and the job goes on in the engine's own order",
            _tests("plugins/byteps/test_agent.py", "plugins/torch/test_agent.py"),
            "in the tests alone, and the steps aside among the tasks",
        ),
        (
            "Workers that differ all end at the start, with a line that says who has what",
            _tests("net/test_start.py", "plugins/torch/test_ends.py"),
            "in the tests alone",
        ),
    ]


def _tests(*names: str) -> str:
    return ", ".join(f"[{name}](../tests/{name})" for name in names)


def _seen_starts(data: SoakData) -> str:
    under = [part for part in data.starts if part.prophet]
    words = []
    for part in under:
        count = len(part.first_s) + sum(1 for line in part.wrong if not line.startswith("other"))
        words.append(f"{count} on {ENGINE_WORDS[part.engine]}, {len(part.wrong)} wrong")
    return "; ".join(words) or NOT_RUN


def _p99(data: SoakData, engine: str) -> str:
    times = {part.prophet: part.first_s for part in data.starts if part.engine == engine and part.first_s}
    if set(times) != {True, False}:
        return ""
    own, under = (f"{np.percentile(times[prophet], 99):.2f} s" for prophet in (False, True))
    return f"{ENGINE_WORDS[engine]}: p99 {under}, alone {own}"


def _seen_tasks(data: SoakData) -> str:
    words = [
        f"{part.tasks:,}{'' if part.check == PLAIN else f' under {CHECK_WORDS[part.check]}'}" for part in data.tasks
    ]
    wrong = sum(len(part.wrong) for part in data.tasks)
    return f"{', '.join(words)}: {wrong or 'none'} lost" if words else NOT_RUN


def _seen_training(data: SoakData) -> str:
    if not data.training:
        return NOT_RUN
    hours = sum(job.seconds for job in data.training) / 3600
    hangs = sum(bool(job.error) for job in data.training)
    return f"{hours:.2g} hours, {hangs or 'none'} hung or failed, {sum(j.unfinished for j in data.training)} tasks lost"


def _seen_faults(data: SoakData, *, gone: bool) -> str:
    right = right_weights(data.faults)
    mine = [run for run in data.faults if run.policy in PROPHETS and run.fault and ("killed" in run.fault) == gone]
    if not mine:
        return NOT_RUN
    jobs = f"{len(mine)} job{'' if len(mine) == 1 else 's'}"
    hung = sum(is_hang(run) for run in mine)
    if gone:
        return f"{jobs}, {sum(bool(run.error) for run in mine) - hung} ended so, {hung} hung"
    trained = sum(run.weights in right for run in mine)
    return f"{jobs}, {trained} with the same weights, {hung} hung"


def _measured(data: SoakData, part: str) -> str:
    measured = data.measured.get(part)
    load = f" The load average of its last minute was {data.load[part]:.1f}." if part in data.load else ""
    return "" if measured is None else measured.line() + load


def starts_text(data: SoakData) -> str:
    """Return the part about starts, of which there are some."""
    rows = []
    for part in data.starts:
        times = np.array(part.first_s or [np.nan])
        rows.append(
            (
                ENGINE_WORDS[part.engine],
                "yes" if part.prophet else "no",
                str(len(part.first_s)),
                str(part.two_optimizers),
                str(part.evaluations),
                str(len(part.wrong)),
                *(f"{np.percentile(times, percent):.2f}" for percent in (50, 99)),
                f"{times.max():.2f}",
            )
        )
    columns = (
        *("engine", "Prophet", "starts", "with two optimizers", "with an evaluation", "wrong"),
        *("median (s)", "p99 (s)", "longest (s)"),
    )
    about = (
        "Small jobs of two workers and six iterations on the loopback interface of one machine; the processes are"
        " forked from one that has imported PyTorch. The times are from there to the end of the slower worker's first"
        " iteration. A start is wrong that hangs, fails, or has other losses or weights than the engine alone."
    )
    return f"{_measured(data, 'starts')} {about}\n\n{table(columns, rows)}"


def tasks_text(data: SoakData) -> str:
    """Return the part about tasks, of which there are some."""
    rows = [
        (
            CHECK_WORDS[part.check],
            *(f"{number:,}" for number in (part.tasks, part.plans, part.suspensions, part.asides)),
            str(len(part.wrong)),
            f"{part.seconds:.0f}",
        )
        for part in data.tasks
    ]
    columns = ("check", "tasks", "plans swapped", "suspended", "stepped aside", "runs that were wrong", "seconds")
    about = (
        "The native hook with a stand-in for BytePS's core, under the threads that BytePS has. Every task must pass"
        " each of push, pull and copy once; plans are swapped at random meanwhile, BytePS is suspended or the hook"
        " steps aside with tasks under way, and at the end nothing may be left."
    )
    return f"{_measured(data, 'tasks')} {about}\n\n{table(columns, rows)}"


def training_text(data: SoakData) -> str:
    """Return the part about long training, of which there is some."""
    rows = []
    for job in data.training:
        worst = max((bytes_ for node, bytes_ in job.growth_bytes.items() if node.startswith("worker")), default=None)
        rows.append(
            (
                job.policy,
                f"{job.seconds / 60:.0f}",
                f"{job.iterations:,}",
                str(job.rates),
                str(job.recuts),
                shown(job.messages, ","),
                str(job.unfinished),
                "-" if worst is None else f"{worst * 1000:,.0f}",
                *(_per_million(job, role) for role in ("worker", "server")),
                job.error or "trained",
            )
        )
    columns = (
        *("policy", "minutes", "iterations", "changes of rate", "cuts", "messages of a worker", "unfinished"),
        *("worker: bytes a 1,000 iterations", "worker: bytes a million messages", "server: the same", "end"),
    )
    digests = {job.weights for job in data.training if job.weights}
    by_length = {(job.iterations, job.weights) for job in data.training if job.weights}
    alike = len(by_length) == len({iterations for iterations, _ in by_length}) and "workers differ" not in digests
    about = (
        "Training on scikit-learn's digits, two workers and a server on the testbed, each worker's rate changed at"
        " random between 50 and 400 Mbit/s. Growth is the slope of resident memory over the second half of a job, of"
        f" the worker that grows most. Jobs of one length have {'the same' if alike else 'OTHER'} weights."
    )
    return f"{_measured(data, 'training')} {about}\n\n{table(columns, rows)}"


def _per_million(job: LongTraining, role: str) -> str:
    """Return the growth in bytes a million messages of the role's process that grows most."""
    slopes = [bytes_ for node, bytes_ in job.growth_bytes.items() if node.startswith(role)]
    if not job.messages or not slopes:
        return "-"
    workers = sum(node.startswith("worker") for node in job.resident_bytes)
    messages = job.messages / job.iterations * (workers if role == "server" else 1)
    return f"{max(slopes) / messages * 1e6:,.0f}"


def faults_text(data: SoakData) -> str:
    """Return the part about faults, of which there are some."""
    right = right_weights(data.faults)
    rows = []
    places = {policy: place for place, policy in enumerate(ORDER)}
    groups = {(run.fault, run.policy) for run in data.faults}
    for fault, policy in sorted(groups, key=lambda group: (group[0], places.get(group[1], len(ORDER)))):
        mine = [run for run in data.faults if (run.fault, run.policy) == (fault, policy)]
        seen = list(dict.fromkeys(outcome(run, right) for run in mine))
        rows.append((fault or "none", policy, str(len(mine)), "; ".join(seen).replace("|", "/")))
    about = (
        "`configs/faults.yaml` ([its keys](experiments.md#faults)): training on scikit-learn's digits, two workers at"
        " 200 Mbit/s and a server on the testbed, times from the end of all workers' first iteration on. `prophet` has"
        " `PROPHET_STALL_S=20`. Right weights are those of the jobs without a fault, bit for bit. A job hangs in which"
        " nothing moves for 40 s; its engine would go on waiting. Where messages are dropped, ps-lite may not get out"
        " of its own last barrier: a role that leaves acknowledges nothing any more."
    )
    return f"{_measured(data, 'faults')} {about}\n\n{table(('fault', 'policy', 'jobs', 'what became of them'), rows)}"
