"""Forward order, which every priority scheduler of the papers starts from."""

from __future__ import annotations

from collections.abc import Mapping

from prophet.core.profile import Profile


def forward_order(profile: Profile | None) -> Mapping[int, int]:
    """Rank of each gradient id: the first layer's first.

    Before a profile is known the order is empty, which the queue reads as "by id": the front end gives
    ids in forward order.
    """
    if profile is None:
        return {}
    return {gradient: rank for rank, gradient in enumerate(profile.gradient_ids)}
