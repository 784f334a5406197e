"""What a message costs: the slope of the samples, by hand, and the page."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest

from prophet_scheduler.core.errors import UserError
from tools import kept, memory
from tools.builds import ManyGradientsJob, Marks
from tools.provenance import Provenance


def run_that_grows(worker: int, server: int, last: int = 10_000) -> memory.Samples:
    """30 MB at the start, more by so many bytes an iteration, and 50 MB made once in the first iterations."""
    iterations = list(range(20, last + 1, 20))
    resident = {
        role: [30_000_000 + growth * n + (50_000_000 if n > 40 else 0) for n in iterations]
        for role, growth in (("worker", worker), ("server", server))
    }
    return memory.Samples("released", "prophet", 16, iterations, resident)


def test_the_messages_of_an_iteration() -> None:
    assert memory.messages(ManyGradientsJob(4, 262_144, 1), 131_072) == 16
    assert memory.messages(ManyGradientsJob(4, 262_145, 1), 131_072) == 24
    assert memory.messages(ManyGradientsJob(4, 262_144, 1), 4_096_000) == 8


def test_growth_is_counted_a_message_and_after_the_start() -> None:
    run = run_that_grows(16 * 700, 32 * 900)
    assert run.message_bytes("worker") == pytest.approx(700)
    assert run.message_bytes("server") == pytest.approx(900), "a server has the messages of both workers"
    assert run_that_grows(0, 0).message_bytes("worker") == pytest.approx(0, abs=1e-6)
    assert run_that_grows(1, 1, last=60).message_bytes("worker") is None


def test_a_run_that_ended_early_has_no_later_samples() -> None:
    run = run_that_grows(1000, 1000, last=1_200)
    assert run.at("worker", 1_000) == 81_000_000
    assert run.at("worker", 2_500) is None
    assert memory.Samples("released", "stock", 8).at("worker", 100) is None


def test_a_sample_an_iteration_until_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    run = memory.Samples("corrected", "stock", 8)
    with subprocess.Popen(["sleep", "60"]) as process:
        processes = dict.fromkeys(memory.ROLES.values(), process)
        assert [run.look(Marks(True, n), processes) for n in (0, 1, 1, 2)] == [None] * 4
        monkeypatch.setattr(memory, "MOST_BYTES", 1.0)
        assert run.look(Marks(True, 3), processes) is not None
        process.kill()
    assert run.iterations == [1, 2, 3]
    assert all(len(run.resident[role]) == 3 and min(run.resident[role]) > 0 for role in memory.ROLES)


def test_the_page_has_a_row_for_each_process(tmp_path: Path) -> None:
    (tmp_path / "kept.json").write_text(json.dumps(asdict(run_that_grows(11_200, 28_800, 1_200))), encoding="utf-8")
    provenance = Provenance("2026-01-02", "abc1234", "a machine", 2)
    kept.keep(tmp_path, "memory", list[memory.Samples], [memory.load(tmp_path / "kept.json")], provenance)
    page = memory.page(tmp_path)
    assert provenance.line() in page
    rows = [line for line in page.splitlines() if line.startswith("| released")]
    assert rows == [
        "| released | prophet | worker | 16 | 81 | 86 | 91 | - | - | - | 1,200 | 700 |",
        "| released | prophet | server | 32 | 83 | 94 | 109 | - | - | - | 1,200 | 900 |",
    ]


def test_a_kept_run_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "kept.json").write_text("{")
    with pytest.raises(UserError, match=r"kept\.json: cannot be read"):
        memory.load(tmp_path / "kept.json")
