"""The coordinator of a job with a replica: grants, updates held back, and orders for copies.

Rates are 100 bytes per second, updates have 100 bytes and the norm 1, and the bound is 4.
"""

from __future__ import annotations

from dataclasses import replace

from prophet_mlfabric import messages as msg
from prophet_mlfabric.coordination import CHECK_S, Addressed, Coordination, Terms
from prophet_mlfabric.lag import RETRY_S

TERMS = Terms(rate=100.0, dead_s=10.0, lease_s=30.0, divergence_bound=4.0)


def hello(worker: int, incarnation: int = 1) -> msg.Hello:
    """Return a worker's Hello; worker 0 keeps the replica."""
    return msg.Hello(
        tenant="job", worker=worker, incarnation=incarnation, node=f"machine{worker}", replicates=worker == 0
    )


class Job:
    """A job on a clock that the test sets."""

    def __init__(self, workers: int) -> None:
        self.coordination = Coordination(TERMS, epoch=7)
        self.now_s = 0.0
        self.said: list[Addressed] = []
        for worker in range(workers):
            self.said += self.coordination.join(hello(worker), 0.0)
        self.turn()

    def turn(self, after_s: float = 0.0) -> None:
        self.now_s += after_s
        self.said += self.coordination.turn(self.now_s)

    def hear(self, worker: int, request: msg.Ask | msg.Done | msg.Copied | msg.Bye) -> None:
        self.said += self.coordination.receive(worker, request, self.now_s)
        self.turn()

    def ask(self, worker: int, update: int, norm: float = 1.0) -> None:
        self.hear(worker, msg.Ask(update=update, size_bytes=100, version=0, norm=norm))

    def done(self, worker: int, update: int, norm: float = 1.0) -> None:
        self.hear(worker, msg.Done(update=update, version=0, size_bytes=100, norm=norm))

    def grants(self) -> list[tuple[int, int]]:
        """Return (worker, update) for each grant since the last call."""
        found = [(worker, said.update) for worker, said in self.said if isinstance(said, msg.Grant)]
        self.said = [(worker, said) for worker, said in self.said if not isinstance(said, msg.Grant)]
        return found

    def copies(self) -> list[tuple[int, msg.Copy]]:
        """Return the copies that were ordered since the last call."""
        found = [(worker, said) for worker, said in self.said if isinstance(said, msg.Copy)]
        self.said = [(worker, said) for worker, said in self.said if not isinstance(said, msg.Copy)]
        return found

    def copied(self, reason: str = "") -> None:
        """Answer the newest order."""
        worker, copy = self.copies()[-1]
        self.hear(worker, msg.Copied(number=copy.number, reason=reason))

    def trained(self, worker: int, update: int) -> None:
        """Ask for an update, which is granted, and finish it."""
        self.ask(worker, update)
        assert self.grants() == [(worker, update)]
        self.now_s += 1.0
        self.done(worker, update)


def begun(workers: int = 2) -> Job:
    """Return a job whose replica has the first model."""
    job = Job(workers)
    job.copied()
    return job


def test_no_update_goes_before_the_first_copy() -> None:
    job = Job(2)
    ((worker, copy),) = job.copies()
    assert (worker, copy.bound) == (0, 4.0)
    job.ask(1, 0)
    assert job.grants() == []
    job.hear(0, msg.Copied(number=copy.number))
    assert job.grants() == [(1, 0)]


def test_an_update_above_the_rest_of_the_bound_and_all_later_ones_wait_for_a_copy() -> None:
    job = begun()
    job.trained(0, 0)
    assert job.copies() == []
    job.trained(0, 1)
    ((worker, copy),) = job.copies()
    job.ask(0, 2, norm=2.5)
    job.now_s += 1.0
    job.ask(1, 0, norm=0.5)
    job.turn(1.0)
    assert job.grants() == [], "2 are there, 2.5 and all behind them wait"
    job.hear(worker, msg.Copied(number=copy.number))
    job.turn(2.0)
    assert job.grants() == [(0, 2), (1, 0)]
    lag = job.coordination.lag
    assert lag.greatest == 3.0 and lag.copies == 2


def test_a_copy_has_the_updates_counted_before_its_order() -> None:
    job = begun()
    job.done(0, 0, norm=3.0)
    job.done(1, 0, norm=0.5)
    lag = job.coordination.lag
    assert lag.lag == 3.5, "it is not there yet"
    job.copied()
    assert (lag.lag, lag.copies) == (0.5, 2), "what came after the order may not be in it"


def test_a_waiting_update_brings_the_copy_forward_if_there_is_anything_new() -> None:
    job = begun(3)
    job.ask(0, 0, norm=1.5)
    job.ask(1, 0, norm=3.0)
    job.turn(1.0)
    assert job.grants() == [(0, 0)]
    assert job.copies() == [], "what is under way has to be applied first"
    job.done(0, 0, norm=1.5)
    assert len(job.copies()) == 1, "less than half of the bound is there"


def test_an_update_above_the_bound_goes_alone_with_one_line() -> None:
    job = begun()
    job.trained(0, 0)
    job.ask(0, 1, norm=5.0)
    assert job.grants() == []
    job.copied()
    assert job.grants() == [(0, 1)]
    job.done(0, 1, norm=5.0)
    job.copied()
    job.ask(0, 2, norm=6.0)
    assert job.grants() == [(0, 2)]
    (line,) = job.coordination.lag.notices
    assert line.startswith("an update has the norm 5, which alone is above the divergence bound 4: ")
    assert job.coordination.lag.greatest == 6.0, "so much may have been lost"


def test_a_new_job_starts_without_a_copy_and_with_new_numbers() -> None:
    job = Job(1)
    ((_, first),) = job.copies()
    job.hear(0, msg.Copied(number=first.number))
    job.hear(0, msg.Bye())
    job.said += job.coordination.join(hello(0, incarnation=2), job.now_s)
    job.turn()
    ((_, second),) = job.copies()
    assert second.number != first.number


def test_unreported_updates_of_a_lost_worker_count() -> None:
    job = begun()
    job.ask(0, 0, norm=3.0)
    assert job.grants() == [(0, 0)]
    job.said += job.coordination.join(hello(0, incarnation=2), job.now_s)
    assert job.coordination.lag.lag == 3.0
    job.ask(1, 0, norm=1.5)
    assert job.grants() == []
    job.copied()
    assert job.grants() == [(1, 0)]


def test_an_unreachable_replica_holds_no_update_back_and_is_retried() -> None:
    job = Job(2)
    job.ask(0, 0, norm=100.0)
    assert job.grants() == []
    job.copied("worker 0: Connection refused")
    assert job.grants() == [(0, 0)]
    job.turn(RETRY_S - 1.0)
    assert job.copies() == []
    job.turn(1.0)
    ((worker, copy),) = job.copies()
    job.hear(worker, msg.Copied(number=copy.number, reason="refused"))
    lag = job.coordination.lag
    assert lag.notices == [
        "no copy of the model reaches the replica (worker 0: Connection refused): updates go on without it"
    ]
    assert lag.failed == 2 and lag.greatest == 0.0
    job.turn(RETRY_S)
    job.copied()
    assert lag.notices[1:] == ["the replica has a copy of the model again"]
    job.ask(1, 0, norm=100.0)
    assert job.grants() == [], "it is bounded again"


def test_a_replica_needs_a_divergence_bound() -> None:
    ((_, said),) = Coordination(replace(TERMS, divergence_bound=None), 7).join(hello(0), 0.0)
    assert isinstance(said, msg.Denied) and "start it with --divergence-bound" in said.text


def test_an_unanswered_order_is_repeated_until_its_worker_ends() -> None:
    job = Job(2)
    ((_, first),) = job.copies()
    job.turn(CHECK_S)
    assert job.copies() == [(0, first)]
    job.hear(0, msg.Bye())
    job.ask(1, 0, norm=100.0)
    assert (job.grants(), job.copies()) == ([(1, 0)], [])
    job.hear(0, msg.Copied(number=first.number))
    assert job.coordination.lag.copies == 0
