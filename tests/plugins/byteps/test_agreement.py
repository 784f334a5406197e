"""Settings that all workers must share: rows, pages and topics over a sum that the test makes."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_byteps import agreement
from prophet_byteps.agreement import (
    PAGE_BYTES,
    ROW_BYTES,
    SLOTS,
    START,
    Agreement,
    difference,
    encode_row,
    make_page,
    page_count,
    rows_of,
)
from prophet_scheduler.frontends.ending import STALLED, WRONG
from support.ending import ProcessEnded, end_process
from support.exchanges import Line, Server, summed


def member_of(server: Server, rank: int) -> Agreement:
    return Agreement(Line(server, rank), rank, server.workers, end_process)


def members(server: Server) -> list[Agreement]:
    return [member_of(server, rank) for rank in range(server.workers)]


@pytest.fixture
def server() -> Iterator[Server]:
    """Return a server of two workers, to which each may send a page once."""
    server = Server(2)
    yield server
    assert len(set(server.sent)) == len(server.sent), "a page travels once"


@given(st.text(max_size=400))
def test_a_row_has_its_length_whatever_it_says(text: str) -> None:
    row = encode_row(text)
    assert len(row) == ROW_BYTES
    assert difference([row, encode_row(text)]) == ""


@given(st.integers(1, 70), st.data())
def test_summed_pages_have_everyones_row(workers: int, data: st.DataObject) -> None:
    texts = data.draw(st.lists(st.text("abc", max_size=5), min_size=workers, max_size=workers))
    pages = [bytes(PAGE_BYTES) for _ in range(page_count(workers))]
    for rank, text in enumerate(texts):
        number, page = make_page(rank, text)
        pages[number] = summed((pages[number], page))
    rows = rows_of(pages, workers)
    assert rows == [encode_row(text) for text in texts]
    assert bool(difference(rows)) == (len(set(texts)) > 1)


def test_the_line_says_who_has_what() -> None:
    rows = [encode_row(text) for text in ("p3", "fifo", "p3", "p3", "p3")]
    line = difference(rows)
    assert line == ("the workers of this job differ, and must be alike: workers 0, 2-4: p3; worker 1: fifo")


def test_texts_that_differ_after_their_cut_differ() -> None:
    long = "x" * 300
    line = difference([encode_row(long + "1"), encode_row(long + "2")])
    assert "worker 0: xxx" in line
    shown = [part.rsplit("(", 1)[1].split(")")[0] for part in line.split("; ")[:2]]
    assert shown[0] != shown[1], "nobody could tell them apart"


@pytest.mark.parametrize("row", [bytes(ROW_BYTES), b"\x01\x02" * (ROW_BYTES // 2)])
def test_a_row_that_prophet_did_not_write_is_named(row: bytes) -> None:
    assert "worker 1: not running this Prophet" in difference([encode_row("p3"), row])
    assert difference([row, row])


def test_workers_that_agree_settle_when_the_last_has_proposed() -> None:
    group = members(Server(3))
    for member in group[:2]:
        member.propose(START, "p3")
        assert not member.settled(START)
    group[2].propose(START, "p3")
    assert all(member.settled(START) and member.poll() for member in group)


def test_workers_that_differ_end_whether_they_settle_or_not(server: Server) -> None:
    group = members(server)
    for member, text in zip(group, ("p3", "fifo"), strict=True):
        member.propose("layout", text)
    for member in group:
        with pytest.raises(ProcessEnded) as ended:
            member.poll()
        assert ended.value.status == WRONG
        assert "worker 0: layout: p3; worker 1: layout: fifo" in ended.value.line


def test_numbers_do_not_hang_on_the_size_of_a_job_or_on_its_tensors() -> None:
    """Tensors of the program come after all slots, so workers with other tensors still meet."""
    declared = []
    for workers in (2, 16, 17, 256):
        server = Server(workers)
        member = member_of(server, 0)
        declared.append(list(server.declared[0]))
        for topic in range(SLOTS):
            member.propose(f"optimizer {topic}", "three tensors")
        assert server.declared[0] == declared[0]
        member.propose("one more", "three tensors")
        assert len(server.declared[0]) == len(declared[0]) + 16
    assert all(names == declared[0] for names in declared)


def test_the_same_text_once_more_sends_nothing_and_another_never_uses_a_name_twice(server: Server) -> None:
    group = members(server)
    for text in ("three tensors", "three tensors", "four tensors"):
        for member in group:
            member.propose("layout", text)
        assert all(member.settled("layout") for member in group)
    assert len(server.sent) == 2 * 2


def test_a_reserved_topic_keeps_its_place(server: Server) -> None:
    group = members(server)
    for member in group:
        member.reserve("first")
        member.reserve("second")
        assert member.poll(), "nothing is open yet"
    for member, order in zip(group, (("first", "second"), ("second", "first")), strict=True):
        for topic in order:
            member.propose(topic, "same")
    assert all(member.settled(topic) for member in group for topic in ("first", "second"))


def test_topics_in_different_orders_are_a_difference(server: Server) -> None:
    group = members(server)
    group[0].propose("generator", "same")
    group[1].propose("critic", "same")
    with pytest.raises(ProcessEnded, match="worker 0: generator: same; worker 1: critic: same"):
        group[0].poll()


def test_topics_are_proposed_again_after_a_resume(server: Server) -> None:
    group = members(server)
    for member in group:
        for text in ("three tensors", "four tensors"):
            member.propose("layout", text)
        member.poll()
    server.sent.clear()
    server.pages.clear()
    newcomer = member_of(server, 1)
    newcomer.propose("layout", "four tensors")
    group[0].renew(0, 2)
    assert group[0].settled("layout")
    assert newcomer.settled("layout")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Agreement:
    """Return one of two workers; the other one never answers, and time passes by itself."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + 1.0))
    monkeypatch.setattr(agreement, "_active", None)
    monkeypatch.setattr(agreement, "_stall_s", None)
    return member_of(Server(2), 0)


def test_settling_alone_ends_where_a_stall_is_to_end(alone: Agreement, caplog: pytest.LogCaptureFixture) -> None:
    agreement.activate(alone, stall_s=100.0)
    agreement.propose("layout", "three tensors")
    with pytest.raises(ProcessEnded) as ended:
        agreement.settle("layout")
    assert ended.value.status == STALLED
    assert "waited 100 s (PROPHET_STALL_S) for all workers to say what they have for layout" in ended.value.line
    assert "three tensors" in ended.value.line
    assert len(caplog.records) == 1
    assert "waited 30 s for all workers" in caplog.text


def test_all_workers_are_at_their_end_when_the_last_one_is(server: Server) -> None:
    workers = members(server)
    for worker in workers:
        assert not any(each.all_leave() for each in workers)
        worker.leave()
        worker.leave()
    assert all(worker.all_leave() for worker in workers)


def test_a_worker_whose_engine_has_ended_waits_for_nobody_until_it_resumes(server: Server) -> None:
    worker, _ = members(server)
    worker.leave()
    assert not worker.all_leave()
    worker.ended()
    assert worker.all_leave()
    worker.renew(0, 2)
    assert not worker.all_leave()


def test_a_job_of_one_worker_agrees_with_itself() -> None:
    agreement.activate(None)
    agreement.reserve("layout")
    agreement.propose("layout", "three tensors")
    agreement.settle("layout")
    assert agreement.poll()
