"""A worker's side of the talk, by hand. The bound is 2 seconds."""

from __future__ import annotations

import math
from typing import TypeAlias

import pytest

from prophet_mlfabric import messages as msg
from prophet_mlfabric.conversation import ANEW, AWAY, BEAT_S, Conversation, Outcome, Permission
from prophet_scheduler.core.errors import UserError

HELLO = msg.Hello(tenant="job", worker=0, incarnation=1, node="machine")
TOKEN = "a token of the tests"
ASK = msg.Ask(update=0, size_bytes=100, version=0)
DONE = msg.Done(update=0, version=0, size_bytes=100)
SUM = msg.Ask(update=5, sum=True)
WELCOME = msg.Welcome(epoch=1, version=0)


Said: TypeAlias = list[object]
"""What `take` returns, without the futures."""


def turn(talk: Conversation, now_s: float) -> tuple[list[msg.Request], Said]:
    talk.turn(now_s)
    messages, results = talk.take()
    return messages, [result for _, result in results]


def welcomed(bound_s: float = 2.0) -> Conversation:
    talk = Conversation(HELLO, TOKEN, bound_s, 0.0)
    turn(talk, 0.0)
    talk.receive(WELCOME, 0.0)
    turn(talk, 0.0)
    return talk


def asked() -> Conversation:
    talk = welcomed()
    talk.ask(0, 100, 0, 1.0, 0.0)
    assert turn(talk, 0.0) == ([ASK], [])
    return talk


def went(aggregator: int | None = None) -> Conversation:
    talk = asked()
    address = "" if aggregator is None else "a:1"
    talk.receive(msg.Grant(update=0, aggregator=aggregator, address=address, version=0), 0.0)
    assert turn(talk, 0.0) == ([], [Permission(0, True, "", aggregator, 0, True, address)])
    return talk


def away() -> Conversation:
    talk = asked()
    assert turn(talk, 2.0)[1] == [Permission(0, True, AWAY, None, 0, False)]
    return talk


def test_it_says_hello_and_proves_that_it_has_the_token() -> None:
    talk = Conversation(HELLO, TOKEN, 2.0, 0.0)
    assert turn(talk, 0.0) == ([HELLO], [])
    talk.receive(msg.Challenge(nonce="ab" * 32), 0.1)
    (hello,), _ = turn(talk, 0.1)
    assert isinstance(hello, msg.Hello) and msg.proves(TOKEN, "ab" * 32, hello)
    assert not talk.welcomed
    talk.receive(WELCOME, 0.2)
    assert talk.welcomed


def test_a_welcome_for_what_it_was_before_is_none() -> None:
    talk = Conversation(HELLO, TOKEN, 2.0, 0.0)
    turn(talk, 0.0)
    talk.receive(msg.Challenge(nonce="ab" * 32), 0.1)
    turn(talk, 0.1)
    talk.aggregates("a:1")
    talk.receive(WELCOME, 0.2)
    assert not talk.welcomed
    assert turn(talk, 0.2)[0] == [HELLO.model_copy(update={"sums_at": "a:1"})]
    talk.receive(msg.Challenge(nonce="ab" * 32), 0.3)
    talk.receive(WELCOME, 0.4)
    assert talk.welcomed


def test_what_is_asked_before_the_welcome_is_said_after_it() -> None:
    talk = Conversation(HELLO, TOKEN, 2.0, 0.0)
    talk.ask(0, 100, 0, 1.0, 0.0)
    assert turn(talk, 0.0) == ([HELLO], [])
    talk.receive(WELCOME, 0.5)
    assert turn(talk, 0.5) == ([ASK], [])


def test_an_update_starts_when_its_grant_says() -> None:
    talk = asked()
    talk.receive(msg.Grant(update=0, start_s=0.25, version=4), 0.1)
    assert turn(talk, 0.1) == ([], [])
    assert talk.next_s == 0.35
    assert turn(talk, 0.35) == ([], [Permission(0, True, "", None, 4, True)])
    assert talk.sending
    talk.done(0, 100, 1.0)
    assert turn(talk, 1.0) == ([DONE], [])
    assert not talk.sending
    talk.receive(msg.Applied(update=0, version=6, delay=6), 1.1)
    assert turn(talk, 1.1) == ([], [Outcome(0, True, 6, 6)])
    assert talk.version == 6


def test_a_dropped_update_has_its_outcome_at_once() -> None:
    talk = asked()
    talk.receive(msg.Grant(update=0, dropped=True, reason="too late", version=4), 0.1)
    expected: Said = [Permission(0, False, "too late", None, 4, True), Outcome(0, False, 4, None, "too late")]
    assert turn(talk, 0.1) == ([], expected)


def test_it_asks_again_until_it_is_answered_and_an_answer_makes_it_wait() -> None:
    talk = asked()
    assert talk.next_s == 0.5
    assert turn(talk, 0.5)[0] == [ASK]
    talk.receive(msg.Wait(update=0), 1.9)
    for quarter in range(3, 8):
        assert turn(talk, quarter / 2) == ([ASK], [])
    assert turn(talk, 3.9) == ([], [Permission(0, True, AWAY, None, 0, False)])


def test_no_update_waits_for_ever_however_often_it_is_told_to() -> None:
    talk = Conversation(HELLO, TOKEN, 2.0, 0.0, longest_s=10.0)
    talk.receive(WELCOME, 0.0)
    talk.ask(0, 100, 0, 1.0, 0.0)
    results: Said = []
    for second in range(11):
        talk.receive(msg.Wait(update=0), float(second))
        assert not results
        results += turn(talk, float(second))[1]
    assert results == [Permission(0, True, "it has waited for 10 s", None, 0, False)]
    assert not talk.away


def test_while_the_coordinator_is_away_nothing_waits_and_it_is_told_later() -> None:
    talk = away()
    assert talk.away
    talk.done(0, 100, 2.5)
    assert turn(talk, 2.5) == ([], [Outcome(0, True, 0, None, AWAY)])
    talk.ask(1, 100, 0, 1.0, 2.6)
    assert turn(talk, 2.6) == ([], [Permission(1, True, AWAY, None, 0, False)])
    # It knocks, and says of which coordinator it has its version.
    assert turn(talk, talk.next_s)[0] == [HELLO.model_copy(update={"epoch": 1})]
    talk.receive(msg.Welcome(epoch=2, version=3), 5.0)
    assert turn(talk, 5.0) == ([DONE], [])
    assert (talk.away, talk.version) == (False, 3)
    talk.done(1, 100, 5.1)
    assert turn(talk, 5.1)[0] == [msg.Done(update=1, version=0, size_bytes=100)]


def test_time_in_which_the_own_link_was_busy_is_no_silence() -> None:
    talk = asked()
    for tenth in range(1, 31):  # a model is read for three seconds
        talk.excuse(0.1)
        assert turn(talk, tenth / 10)[1] == []
    assert turn(talk, 4.9)[1] == []
    assert turn(talk, 5.01)[1] == [Permission(0, True, AWAY, None, 0, False)]


def test_a_link_that_is_always_busy_is_no_reason_to_wait_for_ever_and_an_answer_begins_it_anew() -> None:
    talk = asked()
    talk.excuse(100.0)
    assert turn(talk, 9.9)[1] == []
    talk.receive(msg.Wait(update=0), 9.9)
    talk.excuse(100.0)
    assert turn(talk, 19.8)[1] == []
    assert turn(talk, 19.91)[1] == [Permission(0, True, AWAY, None, 0, False)]


def test_a_link_that_is_busy_before_anything_waits_excuses_nothing_of_what_comes() -> None:
    talk = welcomed()
    talk.excuse(1.0)
    talk.ask(0, 100, 0, 1.0, 10.0)
    assert turn(talk, 11.9)[1] == []
    assert turn(talk, 12.0)[1] == [Permission(0, True, AWAY, None, 0, False)]


def test_it_waits_from_the_ask_to_the_grant_and_from_the_end_of_the_push_to_its_answer() -> None:
    talk = welcomed()
    assert not talk.waits
    talk.ask(0, 100, 0, 1.0, 0.0)
    assert talk.waits
    talk.receive(msg.Grant(update=0, version=0), 0.0)
    turn(talk, 0.0)
    assert not talk.waits
    talk.done(0, 100, 1.0)
    assert talk.waits
    talk.receive(msg.Applied(update=0, version=1, delay=1), 1.0)
    assert not talk.waits


def test_while_the_coordinator_is_away_nothing_begins_to_be_summed() -> None:
    talk = asked()
    talk.ask(1, 100, 0, 1.0, 0.0)
    talk.receive(msg.Grant(update=0, aggregator=4, address="a:1", start_s=3.0, version=0), 0.0)
    assert turn(talk, 2.0)[1] == [Permission(number, True, AWAY, None, 0, False) for number in (0, 1)]


def test_a_done_that_nobody_hears_ends_at_the_bound_and_is_kept() -> None:
    talk = went()
    talk.done(0, 100, 1.0)
    assert turn(talk, 1.0)[0] == [DONE]
    assert turn(talk, 1.5)[0] == [DONE]
    assert turn(talk, 3.0)[1] == [Outcome(0, True, 0, None, AWAY)]
    talk.receive(WELCOME, 9.0)
    assert turn(talk, 9.0)[0] == [DONE]
    talk.receive(msg.Applied(update=0, version=1, delay=1), 9.1)
    assert turn(talk, 9.1) == ([], [])
    talk.receive(WELCOME, 9.2)
    assert turn(talk, 9.2)[0] == []


def test_a_coordinator_that_was_started_anew_is_asked_again() -> None:
    talk = asked()
    talk.receive(msg.Challenge(nonce="ab" * 32), 0.6)
    turn(talk, 0.6)
    talk.receive(msg.Welcome(epoch=2, version=0), 0.7)
    assert turn(talk, 0.7) == ([ASK], [])


def test_a_member_of_a_sum_hears_what_became_of_it() -> None:
    talk = went(aggregator=4)
    assert turn(talk, 0.5)[0] == [ASK]  # still there?
    talk.done(0, 100, 0.6)  # not its to say
    talk.receive(msg.Applied(update=0, version=3, delay=2), 1.0)
    assert turn(talk, 1.0)[1] == [Outcome(0, True, 3, 2)]
    talk = went(aggregator=4)
    talk.receive(msg.Lost(update=0, reason="worker 4 died"), 1.0)
    assert turn(talk, 1.0)[1] == [Outcome(0, False, 0, None, "worker 4 died")]
    talk = went(aggregator=4)
    assert turn(talk, 2.0)[1] == [Outcome(0, False, 0, None, AWAY)]
    talk = went(aggregator=4)
    talk.receive(msg.Welcome(epoch=2, version=0), 1.0)
    assert turn(talk, 1.0)[1] == [Outcome(0, False, 0, None, ANEW)]


def test_an_aggregator_says_when_it_has_all_and_when_it_has_pushed() -> None:
    talk = welcomed()
    talk.receive(msg.Collect(number=5, members=((0, 1), (2, 3))), 0.1)
    assert turn(talk, 0.1)[1] == [msg.Collect(number=5, members=((0, 1), (2, 3)))]
    talk.collected(5, 0.2)
    assert turn(talk, 0.2)[0] == [SUM]
    talk.receive(msg.Grant(update=5, sum=True, start_s=0.1, version=2), 0.3)
    assert turn(talk, 0.3) == ([], [])
    assert turn(talk, 0.4)[1] == [Permission(5, True, "", None, 2, True, sum=True)]
    talk.done(5, 100, 1.0, sum=True)
    assert turn(talk, 1.0)[0] == [msg.Done(update=5, sum=True, size_bytes=100)]
    assert turn(talk, 1.5)[0] == [msg.Done(update=5, sum=True, size_bytes=100)]
    talk.receive(msg.Applied(update=5, sum=True, version=4), 1.6)
    assert turn(talk, 1.9) == ([], [Outcome(5, True, 4, 0, sum=True)])
    assert talk.version == 4


def test_what_is_to_be_copied_is_handed_on_and_what_came_of_it_is_said() -> None:
    talk = Conversation(HELLO, TOKEN, 2.0, 0.0)
    turn(talk, 0.0)
    talk.copied(4, "")
    assert turn(talk, 0.01) == ([], []), "it has not been let in: it will be asked again"
    talk.receive(WELCOME, 0.02)
    turn(talk, 0.02)
    for _ in range(2):
        talk.receive(msg.Copy(number=5, bound=2.5), 0.1)
        assert turn(talk, 0.1) == ([], [msg.Copy(number=5, bound=2.5)])
    talk.copied(5, "x" * 1000)
    assert turn(talk, 0.2)[0] == [msg.Copied(number=5, reason="x" * msg.MOST_REASON)]


def test_a_sum_goes_in_arrival_order_where_the_coordinator_is_away_and_not_at_all_where_nothing_is_left() -> None:
    talk = welcomed()
    talk.collected(5, 0.0)
    turn(talk, 0.0)
    assert turn(talk, 2.0)[1] == [Permission(5, True, AWAY, None, 0, False, sum=True)]
    talk.collected(6, 2.1)
    assert turn(talk, 2.1)[1] == [Permission(6, True, AWAY, None, 0, False, sum=True)]
    talk = welcomed()
    talk.collected(5, 0.0)
    talk.receive(msg.Collect(number=5, members=()), 0.1)
    why = "nothing is left to sum"
    nothing = [Permission(5, False, why, None, 0, True, sum=True), Outcome(5, False, 0, None, why, sum=True)]
    assert turn(talk, 0.1)[1] == [msg.Collect(number=5, members=()), *nothing]


def test_a_sum_of_which_the_coordinator_knows_nothing_is_given_up() -> None:
    talk = welcomed()
    talk.collected(5, 0.0)
    turn(talk, 0.0)
    talk.receive(msg.Denied(text="there is none", update=5, sum=True), 0.1)
    assert turn(talk, 0.1)[1] == [
        Permission(5, False, "there is none", None, 0, True, sum=True),
        Outcome(5, False, 0, None, "there is none", sum=True),
    ]
    # One that was pushed already: its members say what became of it, and nobody is away for that.
    talk.collected(6, 0.2)
    talk.receive(msg.Grant(update=6, sum=True, version=0), 0.3)
    turn(talk, 0.3)
    talk.done(6, 100, 0.4, sum=True)
    turn(talk, 0.4)
    talk.receive(msg.Denied(text="there is none", update=6, sum=True), 0.5)
    assert turn(talk, 0.9) == ([], [Outcome(6, True, 0, None, "there is none", sum=True)])
    assert turn(talk, 2.9)[0] == [msg.Beat()] and not talk.away


def test_a_lost_update_that_is_in_the_model_after_all_is_told_once_it_can_be() -> None:
    talk = went(aggregator=4)
    talk.receive(msg.Lost(update=0, reason="worker 4 died"), 0.1)
    turn(talk, 0.1)
    talk.done(0, 100, 0.2)
    talk.done(0, 100, 0.2)
    assert turn(talk, 0.2) == ([DONE], [])
    talk.receive(msg.Applied(update=0, version=1, delay=1), 0.3)
    assert turn(talk, 0.3) == ([], []) and talk.version == 1
    talk = went(aggregator=4)
    assert turn(talk, 2.0)[1] == [Outcome(0, False, 0, None, AWAY)]
    talk.done(0, 100, 2.1)
    assert turn(talk, 2.1) == ([], [])
    talk.receive(msg.Welcome(epoch=2, version=0), 3.0)
    assert turn(talk, 3.0)[0] == [DONE]


def test_it_waits_for_others_as_long_as_it_is_told_to_and_no_longer_than_the_bound_in_silence() -> None:
    talk = welcomed()
    clock = msg.Clock(rounds=3, models=3)
    talk.clock(3, 3, 0.0)
    assert turn(talk, 0.0) == ([clock], [])
    for half in range(1, 9):
        assert turn(talk, half / 2) == ([clock], [])
        talk.receive(msg.Proceed(rounds=3, now=False), half / 2)
    talk.receive(msg.Proceed(rounds=2, now=True), 4.1)
    assert turn(talk, 4.1) == ([], []), "of an earlier round"
    talk.receive(msg.Proceed(rounds=3, now=True), 4.2)
    assert turn(talk, 4.2) == ([], [True])
    talk.clock(3, 4, 4.3)
    assert turn(talk, 4.3) == ([msg.Clock(rounds=3, models=4)], [])
    talk.clock(4, 4, 4.4)
    turn(talk, 4.4)
    assert turn(talk, 6.4)[1] == [False] and talk.away
    talk.clock(5, 5, 6.5)
    assert turn(talk, 6.5) == ([], [False])
    talk.receive(msg.Welcome(epoch=2, version=0), 7.0)
    assert turn(talk, 7.0)[0] == [msg.Clock(rounds=5, models=5)], "a new coordinator has to know"


def test_at_the_end_it_asks_who_still_works() -> None:
    talk = welcomed()
    talk.leave(0.0)
    assert turn(talk, 0.0) == ([msg.Bye()], [])
    talk.receive(msg.Parting(working=1, died=(1,)), 0.1)
    assert talk.died is None
    assert turn(talk, 0.5)[0] == turn(talk, 1.0)[0] == [msg.Bye()], "and says nothing else"
    talk.receive(msg.Parting(working=0, died=(1,)), 1.1)
    assert talk.died == (1,)
    assert not talk.away
    turn(talk, 3.1)
    assert talk.away


def test_a_refusal_of_the_worker_is_kept_and_one_of_an_update_lets_it_go() -> None:
    talk = Conversation(HELLO, TOKEN, 2.0, 0.0)
    talk.receive(msg.Denied(text="tenant job: the token is wrong"), 0.0)
    assert (talk.refused, talk.away) == ("tenant job: the token is wrong", True)
    talk = asked()
    talk.receive(msg.Denied(text="too many", update=0), 0.1)
    ((permission),) = turn(talk, 0.1)[1]
    assert isinstance(permission, Permission) and permission.goes and not permission.coordinated
    assert not talk.away and permission.reason == "too many"


def test_it_says_that_it_lives_and_its_rates_again_to_a_new_coordinator() -> None:
    talk = welcomed()
    assert turn(talk, BEAT_S)[0] == [msg.Beat()]
    assert talk.next_s == 2 * BEAT_S
    talk.report(1e9)
    assert turn(talk, 1.1)[0] == [msg.Beat(up=1e9)]
    talk.receive(msg.Welcome(epoch=2, version=0), 1.2)
    assert turn(talk, 1.2)[0] == [msg.Beat(up=1e9)]


def test_what_comes_late_or_twice_changes_nothing() -> None:
    talk = away()
    talk.receive(msg.Grant(update=0, dropped=True, reason="too late", version=0), 2.1)
    talk.receive(msg.Grant(update=9, version=0), 2.1)
    talk.receive(msg.Applied(update=9, version=1, delay=1), 2.1)
    talk.receive(msg.Lost(update=9, reason="no"), 2.1)
    assert turn(talk, 2.1) == ([], [])
    talk = went()
    talk.receive(msg.Grant(update=0, version=0), 0.1)
    talk.receive(msg.Lost(update=0, reason="it is late"), 0.1)
    assert turn(talk, 0.1) == ([], [])
    talk.done(0, 100, 0.2)
    talk.done(0, 100, 0.2)
    assert turn(talk, 0.2)[0] == [DONE]


@pytest.mark.parametrize(("size", "version", "norm"), [(-1, 0, 1.0), (1, -1, 1.0), (1, 0, -1.0), (1, 0, math.nan)])
def test_numbers_that_cannot_be_are_one_line(size: int, version: int, norm: float) -> None:
    talk = welcomed()
    with pytest.raises(UserError, match="give numbers of 0 or more"):
        talk.ask(0, size, version, norm, 0.0)
    assert turn(talk, 0.0) == ([], [])
