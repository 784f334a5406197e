"""The network as policies see it."""

from __future__ import annotations

import pytest

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.network import Network


def test_a_network_is_checked() -> None:
    with pytest.raises(UserError, match="must be above 0"):
        Network(0.0)
    with pytest.raises(UserError, match="must be 0 or more"):
        Network(1.0, overhead_s=-1.0)
