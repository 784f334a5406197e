"""Tests of how jobs of DistributedDataParallel end under Prophet: as they do without, and never by hanging."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.programs import run_together, without_switches

CHECKOUT = Path(__file__).parents[3]
RANKS = Path(__file__).with_name("end_ranks.py")
LOST = (
    "lost_before_it_shards",
    "lost_of_three_before_it_shards",
    "first_lost_before_it_shards",
    "first_lost_of_a_mesh",
    "lost_before_its_module",
    "lost_as_it_meets",
    "lost_as_it_connects",
)
TOLD = ("told_to_end_as_it_meets", "told_to_end_as_its_group_is_named", "told_to_end_as_it_shards")
BESIDE_PLAIN = (
    *("killed_in_backward", "killed_in_forward", "killed_in_two_phases", "says", "comes_late", "few_descriptors"),
    *("fewer_and_fewer_descriptors", "no_descriptor_in_mid_job", "making_fails", "destroyed", "leaves_first"),
    *("leaves_at_once", "one_more", "fork_reads"),
)
"""Cases that also run without Prophet, under a name with `:plain`."""
NAMES = (
    *LOST,
    *TOLD,
    *BESIDE_PLAIN,
    *(f"{name}:plain" for name in BESIDE_PLAIN),
    *("killed_of_three", "first_killed_of_three", "killed_of_five", "saves_after_a_death", "late", "without"),
    *("cannot_connect", "no_descriptor_at_the_first_rank", "earlier_life", "differing", "differing_fusion"),
    *("no_place", "other_models", "asking_fails", "loading_fails", "only_made", "hook_fails"),
    *("one_fails", "one_more_destroyed", "aborted", "forks", "interrupted", "interrupted_and_kept"),
)
AT_A_TIME = 2
"""Number of cases at a time, since they mostly wait."""
LIMIT_S = 1500.0
SLACK_S = 10.0
"""Longest time that a process takes to end on a busy machine; a rank that waits for another takes a minute."""
TIMEOUT_S = 8.0
"""Timeout of the process group of the case `late`; even on a busy machine, ranks begin less far apart than that."""
PEER = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
"""Words of gloo for the loss of another rank."""


@dataclass(frozen=True)
class Rank:
    """End of one rank. `status` is None if it hung."""

    status: int | None
    after_s: float
    log: str

    def printed(self, what: str) -> str:
        """Return the line that begins with `what`."""
        return next(line for line in self.log.splitlines() if line.startswith(what))


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run all cases, each in a folder of the one that is returned."""
    folder = tmp_path_factory.mktemp("ends")
    command = [sys.executable, str(RANKS), str(folder)]
    environ = without_switches() | {"PYTHONPATH": str(CHECKOUT)}
    commands = [[*command, *NAMES[first::AT_A_TIME]] for first in range(AT_A_TIME)]
    run_together(commands, [environ] * AT_A_TIME, LIMIT_S)
    return folder


def ranks(ends: Path, name: str) -> list[Rank]:
    folder = ends / name
    rows = json.loads((folder / "ends.json").read_text())
    return [Rank(**row, log=(folder / f"rank{rank}.log").read_text()) for rank, row in enumerate(rows)]


@pytest.mark.parametrize("name", NAMES)
def test_no_rank_hangs(ends: Path, name: str) -> None:
    for rank in ranks(ends, name):
        assert rank.status is not None, rank.log


@pytest.mark.parametrize("name", ["killed_in_backward", "killed_in_forward", "killed_in_two_phases"])
def test_a_killed_rank_ends_the_others_with_torchs_error_no_later_than_without_prophet(ends: Path, name: str) -> None:
    survivor, plain = ranks(ends, name)[0], ranks(ends, f"{name}:plain")[0]
    assert survivor.status == plain.status == 1
    assert any(words in survivor.log for words in PEER), survivor.log
    assert survivor.after_s < plain.after_s + SLACK_S


@pytest.mark.parametrize("name", LOST)
def test_who_begins_does_not_wait_for_a_rank_that_has_ended(ends: Path, name: str) -> None:
    survivors = [rank for rank in ranks(ends, name) if rank.status != -9]
    assert len(survivors) == len(ranks(ends, name)) - 1
    for survivor in survivors:
        assert survivor.status == 1, survivor.log
        assert any(words in survivor.log for words in PEER), survivor.log
        assert survivor.after_s < 2 * SLACK_S


@pytest.mark.parametrize("name", TOLD)
def test_an_exception_of_the_programs_signal_handler_comes_through_prophet(ends: Path, name: str) -> None:
    survivor, told = ranks(ends, name)
    assert (survivor.status, told.status) == (1, 1), survivor.log + told.log
    assert "RuntimeError: told to end" in told.log and "Prophet:" not in told.log
    assert any(words in survivor.log for words in PEER), survivor.log
    assert survivor.after_s < 2 * SLACK_S


def test_after_a_death_the_program_gets_torchs_error_once_and_then_what_there_is(ends: Path) -> None:
    survivor = ranks(ends, "saves_after_a_death")[0]
    assert survivor.status == 0, survivor.log
    assert any(words in survivor.printed("caught") for words in PEER), survivor.log
    saved = [line for line in survivor.log.splitlines() if line.startswith("saved")]
    assert len(saved) == 4
    assert all(set(json.loads(line.removeprefix("saved"))) <= {4, 5} for line in saved), survivor.log
    lost = [line for line in survivor.log.splitlines() if "rank 1 (127.0.0.1) was lost, in iteration" in line]
    assert 1 <= len(lost) <= 2, survivor.log  # a line for each model of which something was under way
    assert all("the model is at step" in line for line in lost)
    assert any(words in survivor.printed("again") for words in PEER), "training cannot go on"


@pytest.mark.parametrize(
    ("name", "dead", "survivors"),
    [("killed_of_three", 1, [0, 2]), ("killed_of_five", 1, [0, 2, 3, 4]), ("first_killed_of_three", 0, [1])],
)
def test_survivors_name_the_rank_that_died(ends: Path, name: str, dead: int, survivors: list[int]) -> None:
    """In a ring of five, some ranks see only the end of its neighbours. The store dies with the first of three."""
    line = f"Prophet: rank {dead} (127.0.0.1) was lost, in iteration 6 of Sequential, waiting for the gradient of "
    for survivor in map(ranks(ends, name).__getitem__, survivors):
        assert survivor.printed("Prophet: ").startswith(line), survivor.log
        assert "TCPStore" not in survivor.log, "nobody asks a store that is gone"


def test_the_process_groups_timeout_holds_for_prophets_transfers_too(ends: Path) -> None:
    waiting = ranks(ends, "late")[0]
    assert waiting.status == 1
    assert re.search(r"Prophet: still waiting for the gradient of .+ after 2 s: rank 1 is late$", waiting.log, re.M)
    # Several transfers are under way: the first to time out closes the connection, as another one may report.
    assert f"Timed out waiting {TIMEOUT_S * 1e3:.0f}ms" in waiting.log or "Application timeout" in waiting.log
    assert re.search(r": rank 1 is late, in iteration \d of Sequential, waiting for the gradient of ", waiting.log)
    assert waiting.after_s < TIMEOUT_S + SLACK_S


def test_a_rank_without_prophet_ends_the_others_with_one_line(ends: Path) -> None:
    with_it, without_it = ranks(ends, "without")
    assert with_it.status == 2
    assert "rank 1 has not announced its settings" in with_it.printed("Prophet: ")
    assert without_it.status == 1, "by torch's own error"
    assert any(words in without_it.log for words in PEER), without_it.log


def weights(rank: Rank) -> list[str]:
    return [line for line in rank.log.splitlines() if line.startswith("weights")]


@pytest.mark.parametrize("name", ["comes_late", "few_descriptors", "fewer_and_fewer_descriptors"])
def test_a_start_that_torch_makes_is_made(ends: Path, name: str) -> None:
    for scheduled, plain in zip(ranks(ends, name), ranks(ends, f"{name}:plain"), strict=True):
        assert scheduled.status == plain.status == 0, scheduled.log
        assert weights(scheduled) == weights(plain) != []


def test_a_rank_that_is_late_is_named_while_the_others_wait(ends: Path) -> None:
    line = ranks(ends, "comes_late")[0].printed("Prophet: rank 1 has not made this module")
    assert line.endswith("waiting for it up to 60 s, as torch would")


@pytest.mark.parametrize(
    ("name", "why"),
    [("few_descriptors", "rank 1 .*descriptors"), ("cannot_connect", "rank 0 .*no such interface")],
)
def test_where_one_rank_cannot_connect_all_keep_torchs_reducer(ends: Path, name: str, why: str) -> None:
    assert [rank.status for rank in ranks(ends, name)] == [0, 0]
    logs = "".join(rank.log for rank in ranks(ends, name))
    (line,) = [line for line in logs.splitlines() if "keeps DistributedDataParallel as it is" in line]
    assert re.search(why, line), line


@pytest.mark.parametrize(
    ("name", "why"), [("no_descriptor_in_mid_job", "rank 1"), ("no_descriptor_at_the_first_rank", "rank 0")]
)
def test_where_one_rank_cannot_connect_in_mid_job_all_go_on_in_one_phase(ends: Path, name: str, why: str) -> None:
    both, plain = ranks(ends, name), ranks(ends, "no_descriptor_in_mid_job:plain")
    for scheduled, stock in zip(both, plain, strict=True):
        assert scheduled.status == stock.status == 0, scheduled.log
        assert weights(scheduled) == weights(stock) != []
    lines = [line for rank in both for line in rank.log.splitlines() if line.startswith("Prophet: ")]
    assert len(lines) == 1, lines
    assert re.fullmatch(
        rf"Prophet: .* goes on without rounds in two phases: "
        rf"({why} cannot: .*(open files|descrip).*|another rank cannot connect)",
        lines[0],
    )


def test_what_an_earlier_life_has_left_is_not_read(ends: Path) -> None:
    for rank in ranks(ends, "earlier_life"):
        assert rank.status == 0, rank.log
        assert "Prophet" not in rank.log and len(weights(rank)) == 1


@pytest.mark.parametrize("name", ["differing", "differing_fusion"])
def test_ranks_with_different_settings_say_so_each(ends: Path, name: str) -> None:
    for number, rank in enumerate(ranks(ends, name)):
        assert rank.status == 2
        line = rank.printed("Prophet: the ranks of this job differ")
        assert f"rank {1 - number} has" in line
        if name == "differing_fusion":
            other, own = ("on", "off") if number == 0 else ("off", "on")
            assert line.index(f"fusion {other}") < line.index(f"fusion {own}")


def test_a_file_that_cannot_be_written_ends_each_rank_before_the_job_and_not_after(ends: Path) -> None:
    for rank in ranks(ends, "no_place"):
        assert rank.status == 2
        assert rank.log == f"Prophet: PROPHET_STATUS_OUT: {ends / 'no_place' / 'mark'} is not a folder; name another\n"


def test_what_all_ranks_would_say_the_first_says_once_and_names_the_module(ends: Path) -> None:
    first, second = ranks(ends, "says")
    assert (first.status, second.status) == (0, 0), first.log
    assert [line for line in first.log.splitlines() if not line.startswith("weights")] == [
        "Prophet: Sequential (module 2) goes on with DistributedDataParallel as it is: says.<locals>.hook is "
        "registered for its gradients",
        "Prophet: updates are made within step(), none of them late: OwnStep has a step() that is not of torch.optim",
        "Prophet: 0.weight of Sequential (module 3) was replaced or moved to another type or device after "
        "DistributedDataParallel was made: its gradients count as zeros, where torch may find them in its bucket",
    ]
    assert second.log == f"{first.printed('weights')}\n", "nothing else"
    assert [rank.printed("weights") for rank in ranks(ends, "says:plain")] == [first.printed("weights")] * 2


def test_ranks_that_no_launcher_has_numbered_leave_a_status_each(ends: Path) -> None:
    files = sorted((ends / "says").glob("status*"))
    assert len(files) == 2, files
    assert not any(json.loads(file.read_text())["stepped_aside"] for file in files)


def test_different_models_are_torchs_error(ends: Path) -> None:
    assert [rank.status for rank in ranks(ends, "other_models")] == [1, 1]
    assert "appears not to match sizes" in "".join(rank.log for rank in ranks(ends, "other_models"))


FAILS = {
    "making_fails": "keeps DistributedDataParallel as it is: rank 0 says that Prophet failed there: ValueError",
    "asking_fails": "since Prophet failed there: AttributeError: made for a test",
}


@pytest.mark.parametrize("name", FAILS)
def test_where_prophet_fails_on_one_rank_all_keep_torchs_reducer(ends: Path, name: str) -> None:
    done, plain = ranks(ends, name), ranks(ends, "making_fails:plain")
    assert [rank.status for rank in done] == [0, 0], done[0].log + done[1].log
    for rank in done:
        assert rank.printed("reducer") == "reducer Reducer"
        assert rank.printed("weights") == plain[0].printed("weights")
    assert [rank.log.count(FAILS[name]) for rank in done] == [1, 0]


def test_where_prophet_cannot_be_loaded_it_is_one_warning_and_training_goes_on(ends: Path) -> None:
    done, plain = ranks(ends, "loading_fails"), ranks(ends, "making_fails:plain")
    assert [rank.status for rank in done] == [0, 0], done[0].log
    for rank in done:
        assert rank.log.count("Prophet: stays off: ModuleNotFoundError: ") == 1
        assert rank.printed("weights") == plain[0].printed("weights")


def test_an_exception_in_a_hook_comes_through_and_the_next_forward_is_refused_as_by_torch(ends: Path) -> None:
    for rank in ranks(ends, "hook_fails"):
        assert rank.status == 0, rank.log
        assert rank.printed("caught") == "caught made for a test"
        assert rank.printed("then").startswith("then Expected to have finished reduction in the prior iteration")


def test_a_rank_that_fails_ends_the_others_too(ends: Path) -> None:
    other, failing = ranks(ends, "one_fails")
    assert "ValueError: made for a test" in failing.log
    assert (other.status, failing.status) == (1, 1)
    assert any(words in other.log for words in PEER), other.log
    assert max(other.after_s, failing.after_s) < 2 * SLACK_S


@pytest.mark.parametrize("name", ["only_made", "forks"])
def test_a_rank_may_end_as_soon_as_its_module_is_made_and_a_fork_with_averages_under_way(ends: Path, name: str) -> None:
    assert [rank.status for rank in ranks(ends, name)] == [0, 0], ranks(ends, name)[0].log


@pytest.mark.parametrize("name", ["destroyed", "leaves_first", "leaves_at_once", "fork_reads"])
def test_what_is_under_way_at_the_end_or_at_a_fork_arrives(ends: Path, name: str) -> None:
    told, plain = ranks(ends, name), ranks(ends, f"{name}:plain")
    assert [rank.status for rank in told] == [0, 0], told[0].log + told[1].log
    assert [rank.log for rank in told] == [rank.log for rank in plain]


@pytest.mark.parametrize("name", ["one_more", "one_more:plain", "one_more_destroyed"])
def test_averages_that_never_come_are_an_error_also_where_nobody_looks(ends: Path, name: str) -> None:
    more, other = ranks(ends, name)
    assert (more.status, other.status) == (1, 0), more.log
    assert any(words in more.log for words in PEER), more.log


def test_who_waits_when_groups_are_aborted_gets_an_error(ends: Path) -> None:
    aborting = ranks(ends, "aborted")[0]
    assert aborting.printed("error") == "error the process group was aborted", aborting.log
    assert aborting.after_s < 2 * SLACK_S, "it does not wait for the other, which waits for its end"


def test_an_interrupt_ends_all_ranks(ends: Path) -> None:
    for rank in ranks(ends, "interrupted"):
        # Each rank gets a signal of its own: if another has ended by then, it is told of that first.
        assert rank.status == -2 or (rank.status == 1 and any(words in rank.log for words in PEER)), rank.log
        assert rank.after_s < 2 * SLACK_S + 5.0


def test_weights_can_be_kept_after_an_interrupt(ends: Path) -> None:
    first, second = ranks(ends, "interrupted_and_kept")
    assert (first.status, second.status) == (0, 0), first.log
    assert first.printed("weights") == second.printed("weights")


def test_no_child_that_evaluates_waits_for_a_lock_or_a_thread_of_its_parent(tmp_path: Path) -> None:
    command = [sys.executable, "-P", str(RANKS.with_name("fork_soak.py")), "60"]
    environ = without_switches() | {"PYTHONPATH": str(CHECKOUT)}
    result = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    assert "silent 0 statuses [0, 0]" in result.stdout, result.stdout + result.stderr
