"""Fair shares of a network without control. Hand-computed cases and properties."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from prophet_mlfabric.studies.transports import fair_rates

rates = st.integers(1, 20).map(float)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(4, 7)), min_size=1, max_size=8), st.lists(rates, min_size=8))
def test_fair_rates_fill_one_link_of_every_flow_and_exceed_none(
    pairs: list[tuple[int, int]], limits: list[float]
) -> None:
    paths, capacities = np.array(pairs), np.array(limits[:8])
    shares = fair_rates(paths, capacities)
    load = np.bincount(paths.ravel(), np.repeat(shares, 2), 8)
    assert (load <= capacities * (1 + 1e-9)).all()
    for flow, path in enumerate(paths):
        # Max-min: each flow has a full link on which nobody has more.
        assert any(
            load[link] >= capacities[link] * (1 - 1e-9)
            and all(shares[flow] >= shares[o] * (1 - 1e-9) for o in range(len(pairs)) if link in paths[o])
            for link in path
        )
