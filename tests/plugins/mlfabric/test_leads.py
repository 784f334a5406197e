"""Tests of who may go on when workers have to stay near each other."""

from __future__ import annotations

from prophet_mlfabric.leads import LeadBound


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
