"""Sessions in a line, and the plan that a turn of one comes to."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from prophet_scheduler.core.plan import Plan
from prophet_scheduler.policies import get_policy
from prophet_scheduler.session.messages import SessionTerms, TakeUp, Turn
from prophet_scheduler.session.session import Session


def session(policy: str = "prophet", monitor_s: float = 5.0, **terms: Any) -> Session:
    """Return a session with these Terms."""
    return Session(get_policy(policy), SessionTerms(monitor_s, **terms))


def plan_at(subject: Session, now: float, events: NDArray[Any], **turn: Any) -> Plan | None:
    """Return the plan that the session takes up in this Turn, if any."""
    plans = [each.plan for each in subject.on(Turn(now, events, **turn)) if isinstance(each, TakeUp)]
    assert len(plans) <= 1
    return plans[0] if plans else None
