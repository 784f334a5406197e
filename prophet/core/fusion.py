"""Which small gradients travel together, as the front end decides it before the first push.

Rule of this file: a pure function of sizes. All workers compute it for themselves, and the simulator too.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

FUSE_BELOW_BYTES = 32 * 1024
"""A gradient smaller than this may share a tensor: its message costs more than its bytes."""
FUSE_TOTAL_BYTES = 256 * 1024
"""No fused tensor is larger: less than one partition, so it never delays an urgent gradient by much."""
FUSE_SPAN_BYTES = 1024 * 1024
"""Gradients that share a tensor lie this near each other, counted in the larger gradients between them:
the tensor leaves when its most urgent member is ready, and the others must not wait long for that."""


def fuse(sizes: Sequence[int], kinds: Sequence[Hashable | None]) -> list[list[int]]:
    """Which gradients travel together, as lists of positions, the most urgent list first.

    `sizes` are bytes in forward order; only gradients of equal `kinds` share a tensor, and None never does.
    All workers must come to the same answer, so it depends on nothing but the arguments.
    """
    buckets: list[list[int]] = []
    open_bucket: dict[Hashable, tuple[list[int], int, int]] = {}
    passed = 0
    for position, (size, kind) in enumerate(zip(sizes, kinds, strict=True)):
        if size >= FUSE_BELOW_BYTES or kind is None:
            passed += size
            buckets.append([position])
            continue
        members, total, since = open_bucket.get(kind, ([], 0, passed))
        if not members or total + size > FUSE_TOTAL_BYTES or passed - since > FUSE_SPAN_BYTES:
            members, total, since = [], 0, passed
            buckets.append(members)
        members.append(position)
        open_bucket[kind] = (members, total + size, since)
    return buckets
