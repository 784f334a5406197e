"""Ranks that run the cases of end_cases.py and start_cases.py: `end_ranks.py FOLDER CASE...`, or CASE:plain for one
without Prophet.

The process forks each case's ranks once torch and most of Prophet are imported, one case after another. Ranks write to
FOLDER/CASE/rankN.log; FOLDER/CASE/ends.json has, by rank, the exit status (null for one that hung) and the seconds
until then, counted from the case's mark.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import torch.distributed as dist
from end_cases import CASES, LIMIT_S
from start_cases import CASES as STARTS

import prophet_scheduler.session.session  # noqa: F401  # Or most ranks would import these, each for itself.
from tools.ports import free_port

RANKS = 2
MORE_RANKS = {
    **{"killed_of_three": 3, "first_killed_of_three": 3, "killed_of_five": 5},
    **{"lost_of_three_before_it_shards": 3, "first_lost_of_a_mesh": 4, "fewer_and_fewer_descriptors": 3},
}
"""Number of ranks, in cases with more than RANKS."""
KEEPS_THE_STORE = ("killed_of_five",)
"""Cases in which no rank has the store, as torchrun's agent has it."""
TIMEOUTS = {"late": 8.0}


def run_rank(case: str, plain: bool, rank: int, port: int) -> None:
    """The life of one rank; it ends as any process does."""
    log = os.open(f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank))
    os.environ["WORLD_SIZE"] = str(MORE_RANKS.get(case, RANKS))
    policy = "p3" if case == "differing" and rank == 1 else "prophet"
    if not plain and not (case == "without" and rank == 1):
        os.environ.update(PROPHET_SCHEDULER=policy, PROPHET_CACHE="off", PROPHET_QUIET="1")
        if case == "differing_fusion":
            os.environ["PROPHET_FUSION"] = str(rank)
        if case == "no_place":
            os.environ["PROPHET_STATUS_OUT"] = "mark/status.json"
        if case == "says":
            os.environ["PROPHET_STATUS_OUT"] = "status.json"
        import prophet_fsdp.autoload  # noqa: F401, as the line in site-packages does; it imports that of prophet_ddp
    if case != "no_place":
        dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUTS.get(case, 60.0)))
    (CASES | STARTS)[case](rank)


def keep_store(port: int) -> int:
    """Starts a process that has the store, whose threads must not be there when ranks are forked. Returns its id."""
    pid = os.fork()
    if pid == 0:
        store = vars(dist)["TCPStore"]("127.0.0.1", port, None, True, wait_for_workers=False)
        while store is not None:
            signal.pause()
    return pid


def run(case: str, plain: bool) -> None:
    """Run one case, in the folder where the process is."""
    port = free_port()
    keeper = None
    if case in KEEPS_THE_STORE:
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = str(True)
        keeper = keep_store(port)
    pids: dict[int, int] = {}
    ranks = range(MORE_RANKS.get(case, RANKS))
    for rank in ranks:
        pid = os.fork()
        if pid == 0:
            run_rank(case, plain, rank, port)
            raise SystemExit(0)
        pids[pid] = rank
    ended: dict[int, tuple[int | None, float]] = {}
    limit_s = time.monotonic() + LIMIT_S
    while pids and time.monotonic() < limit_s:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in pids:
            rank = pids.pop(pid)
            ended[rank] = os.waitstatus_to_exitcode(status), time.monotonic()
            Path(f"ended{rank}").touch()
        else:
            time.sleep(0.005)
    for pid, rank in pids.items():
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        ended[rank] = None, time.monotonic()
    since = float(Path("mark").read_text()) if Path("mark").exists() else 0.0
    rows = [{"status": status, "after_s": at - since} for status, at in (ended[rank] for rank in ranks)]
    Path("ends.json").write_text(json.dumps(rows))
    if keeper is not None:
        os.kill(keeper, signal.SIGKILL)
        os.waitpid(keeper, 0)
        del os.environ["TORCHELASTIC_USE_AGENT_STORE"]


def main() -> None:
    gc.freeze()  # otherwise the end of each rank would look at all that was imported
    for name in sys.argv[2:]:
        folder = Path(sys.argv[1], name)
        folder.mkdir()
        os.chdir(folder)
        case, _, plain = name.partition(":")
        run(case, bool(plain))


if __name__ == "__main__":
    main()
