"""A job with something amiss: where.py CASE SCRIPT [ARGUMENT ...]

Rule of this file: one function a case, which changes what the case is about and then runs the script as it is.
"""

from __future__ import annotations

import os
import runpy
import sys

SCRIPT = sys.argv[2]
RANK = os.environ["DMLC_WORKER_ID"]


def run(*arguments: str) -> None:
    sys.argv = [SCRIPT, *arguments]
    runpy.run_path(SCRIPT, run_name="__main__")


def patience_is_short(steps: str) -> None:
    """It waits 4 s where it would wait 30; stock BytePS knows nothing of it."""
    if "BYTEPS_SCHEDULER" in os.environ:
        from prophet_byteps import exchange

        vars(exchange)["START_LIMIT_S"] = 4.0
    run(steps)


def worker_1_has_an_unknown_byteps(*arguments: str) -> None:
    """Prophet's hook takes over a function that this one lacks."""
    from prophet_byteps import library

    if RANK == "1":
        library._NEEDED += (b"_ZN6byteps6common7UnknownEv\0",)
    run(*arguments)


def workers_want_other_sizes(lives: str) -> None:
    """As where each has kept something else of its network; that of worker 0 decides."""
    from prophet_byteps.learning import KeptPushes

    size = {"0": 256 << 10, "1": 64 << 10}[RANK]
    KeptPushes.size = lambda self: size  # type: ignore[method-assign]
    run(lives)


def worker_1_is_wider(steps: str) -> None:
    """Without a broadcast, which BytePS cannot do with tensors of different lengths."""
    import byteps.torch

    byteps.torch.broadcast_parameters = lambda *args, **kwargs: None
    run(steps, "1024" if RANK == "0" else "1025")


def worker_1_dies(steps: str) -> None:
    """After its steps, without a word; worker 0 has more of them than it will ever do."""
    run(steps if RANK == "1" else "1000")
    os._exit(7)


def worker_1_dies_before_it_sends(steps: str) -> None:
    """It has started as all do; worker 0 broadcasts, and BytePS waits for all workers to have the first tensor."""
    import byteps.torch

    from prophet_byteps import agreement

    def die(*args: object, **kwargs: object) -> None:
        # Or worker 0 would wait for what this one has to say of its optimizer, which may have left or not.
        agreement.wait(agreement.at_rest, "worker 0")
        os._exit(7)

    if RANK == "1":
        byteps.torch.broadcast_parameters = die
    run(steps)


def a_gluon_worker_1_dies_before_it_sends(*arguments: str) -> None:
    """BytePS's trainer broadcasts parameters with push_pull, when all have said what they train."""
    import byteps.mxnet

    if RANK == "1":
        byteps.mxnet.byteps_push_pull = lambda *args, **kwargs: os._exit(7)
    run(*arguments)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[3:])
