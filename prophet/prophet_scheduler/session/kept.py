"""Results of a job, kept for its next start, and the test of whether they still hold.

Rule of this file: values and their JSON, no file and no clock; frontends/warm.py does the I/O. Sizes are in bytes,
times in seconds.

A job that starts again is usually the same job on the same network. So its first plan comes from the kept results,
until its own measurements replace them. If the two are far apart, the job or the network has changed, and the kept
results are dropped.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from prophet_scheduler.core.choice import ArmName
from prophet_scheduler.core.cut import MOST_SEGMENT_BYTES, Cut, Segment, arena_places, ids_at
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.events import UNPROFILED_GRADIENT
from prophet_scheduler.core.files import parse_json
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.core.units import MOST

KEPT_SCHEMA = 1
FAR_APART = 1.5
"""Ratio between measured and kept times above which they belong to different jobs or networks."""
SAME_BYTES = 0.02
"""Maximum relative difference in bytes between a file's profile and the job, since some buffers are not gradients."""


class Believed(NamedTuple):
    """Belief about an arm (session/choosing.py): seconds per iteration, and their relative error."""

    cut: Cut
    way: str
    barrier: bool
    iteration_s: float
    error: float

    @property
    def name(self) -> ArmName:
        return ArmName(self.cut, self.way, self.barrier)


@dataclass(frozen=True)
class Kept:
    """A job's `profile` with the ids of its blocks, its `network` and `cut` if known, and the beliefs about the arms
    that it has tried.
    """

    profile: Profile
    network: Network | None = None
    cut: Cut | None = None
    believed: tuple[Believed, ...] = ()


def kept_name(sizes: Sequence[int], where: Mapping[str, str]) -> str:
    """Return a file name for the job with gradients of `sizes` (bytes, in forward order) in the place `where`."""
    text = json.dumps([list(sizes), sorted(where.items())])
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def kept_to_json(kept: Kept) -> str:
    """Return the JSON text for `kept_from_json`."""
    profile = kept.profile
    rows = [
        [id_, g.size_bytes, round(g.generation_s, 7), round(g.forward_s, 7)]
        for id_, g in zip(profile.gradient_ids, profile.gradients, strict=True)
    ]
    record = {
        "schema": KEPT_SCHEMA,
        "network": dataclasses.asdict(kept.network) if kept.network else None,
        "cut": _rows(kept.cut) if kept.cut else None,
        "believed": [[_rows(one.cut), *one[1:]] for one in kept.believed],
        "profile": rows,
    }
    return json.dumps(record, separators=(",", ":")) + "\n"


def kept_from_json(text: str, most: int = MOST_SEGMENT_BYTES) -> Kept:
    """Parse the text of `kept_to_json`, with blocks of at most `most` bytes; raise ValueError with a one-line message
    for any other text.
    """
    try:
        record: Any = parse_json(text)
        if not isinstance(record, dict) or record.get("schema") != KEPT_SCHEMA:
            raise ValueError(f"it is not of schema {KEPT_SCHEMA}")
        network, cut = record["network"], record["cut"]
        gradients = tuple(
            GradientProfile(f"gradient{int(id_)}", int(size), float(generation_s), float(forward_s))
            for id_, size, generation_s, forward_s in record["profile"]
        )
        ids = tuple(int(row[0]) for row in record["profile"])
        if len(set(ids)) < len(ids) or not 0 <= min(ids, default=0) <= max(ids, default=0) < UNPROFILED_GRADIENT:
            raise ValueError("its ids are none of a job's")
        if max((gradient.size_bytes for gradient in gradients), default=0) >= 1 << 63:
            raise ValueError("its gradients are larger than any")
        kept = Kept(
            Profile("kept", gradients, ids),
            _network(**network) if network is not None else None,
            _cut(cut) if cut is not None else None,
            tuple(_believed(*row) for row in record.get("believed", ())),
        )
        cuts = [one.cut for one in kept.believed] + ([kept.cut] if kept.cut else [])
        if max((segment.block_bytes for cut in cuts for segment in cut.segments), default=0) > most:
            raise ValueError(f"it has blocks of more than {most} bytes")
        return kept
    except (LookupError, TypeError, AttributeError, OverflowError, UserError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _rows(cut: Cut) -> list[list[int]]:
    return [[segment.start, segment.block_bytes] for segment in cut.segments]


def _cut(rows: Sequence[Sequence[int]]) -> Cut:
    return Cut(tuple(Segment(int(start), int(size)) for start, size in rows))


def _believed(rows: Sequence[Sequence[int]], way: str, barrier: bool, iteration_s: float, error: float) -> Believed:
    one = Believed(_cut(rows), str(way), bool(barrier), float(iteration_s), float(error))
    if not (1e-6 < one.iteration_s < MOST and 0 <= one.error < MOST):
        raise ValueError(f"it has iterations of {one.iteration_s} s")
    return one


def _network(**numbers: float) -> Network:
    network = Network(**{key: float(value) for key, value in numbers.items()})
    if not 1 <= 8 * network.bandwidth <= MOST:
        raise ValueError(f"its network has {network.bandwidth} bytes per second")
    return network


def with_ids_of_the_job(profile: Profile, sizes: Sequence[int], arena: bool) -> Profile | None:
    """Return a profile from a file with the job's ids; None if it belongs to another job.

    `sizes` are the sizes of the job's gradients, in forward order. In an `arena`, ids are places, so the profile's
    entries may be the job's gradients or the blocks of any cut.
    """
    own = [gradient.size_bytes for gradient in profile.gradients]
    if arena:
        if abs(sum(own) - sum(sizes)) > SAME_BYTES * sum(sizes):
            return None
        ids = ids_at(arena_places(own)[:-1])
    elif own == list(sizes):
        ids = list(range(len(own)))
    else:
        return None
    return dataclasses.replace(profile, ids=tuple(ids))


class Prior:
    """Kept results, used until the job has measured its own or contradicted them."""

    def __init__(self, kept: Kept) -> None:
        self.kept = kept
        self.dropped = ""
        """Reason for dropping the kept results; empty as long as nothing contradicts them."""
        self.over = False
        """True if the kept results were dropped, or if the job has measured everything itself."""

    def fill(self, profile: Profile | None, network: Network | None) -> tuple[Profile | None, Network | None]:
        """Return the profile and network to plan from, given those measured so far."""
        if self.over:
            return profile, network
        kept = self.kept
        if network is not None and kept.network is not None:
            # Roughly the job's usual block size.
            size = kept.profile.total_bytes / len(kept.profile.gradients)
            self._compare("a block takes", network.transfer_s(size), kept.network.transfer_s(size))
        if profile is not None and not self.dropped:
            self._compare("backward takes", profile.backward_s, kept.profile.backward_s)
        self.over = bool(self.dropped) or (profile is not None and network is not None)
        if self.over:
            return profile, network
        return profile or kept.profile, network or kept.network

    def _compare(self, what: str, measured_s: float, kept_s: float) -> None:
        if max(measured_s, kept_s) > FAR_APART * min(measured_s, kept_s):
            self.dropped = f"{what} {measured_s:.3g} s, but {kept_s:.3g} s in the last run"
