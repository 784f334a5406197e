"""Tests of who may go on when workers have to stay near each other."""

from __future__ import annotations

from prophet_mlfabric.leads import LeadBound


def test_a_lead_of_the_staleness_is_allowed_and_one_more_is_not() -> None:
    leads = LeadBound(2, 3)
    leads.heard(0, 2, 2)
    assert leads.waits(0) and leads.may_read(0)
    leads.heard(0, 3, 3)
    assert not leads.may_read(0), "workers 1 and 2 are in their first round"
    leads.heard(1, 1, 2)
    assert not leads.may_read(0)
    leads.heard(2, 1, 1)
    assert leads.may_read(0) and leads.may_read(2)
    assert not leads.waits(1)


def test_updates_stay_away_from_a_model_that_others_have_to_read_only_in_step() -> None:
    for staleness, goes in ((0, False), (1, True)):
        leads = LeadBound(staleness, 2)
        leads.heard(0, 0, 1)
        assert leads.may_send(0) == goes, "worker 1 has not read the first model"
        leads.heard(1, 0, 1)
        assert leads.may_send(0) and leads.may_send(1)


def test_for_those_that_are_gone_nobody_waits_until_they_are_back() -> None:
    leads = LeadBound(0, 2)
    leads.heard(0, 4, 4)
    assert not leads.may_read(0)
    leads.gone(1)
    assert leads.may_read(0)
    leads.lives(1)
    assert not leads.may_read(0)
    leads.absent({0})
    assert leads.may_read(0)
    leads.gone(0)
    assert leads.may_read(1) and not leads.may_send(0)
