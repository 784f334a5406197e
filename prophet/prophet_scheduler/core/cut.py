"""A cut: the borders between the blocks of a job's gradients.

Rule of this file: pure functions of sizes. All workers and the simulator make the same blocks from the same cut.

The *arena* holds the gradients one after another in forward order, gradient 0 first. Its places are byte offsets over
gradients of all kinds. A block is the unit of transfer, a range of gradients of one kind: a slice of a large gradient,
several small gradients, or both. It is ready when its most urgent gradient is generated. Its average is used when that
gradient's layer is next computed.

A cut gives the size of blocks along the arena: a list of segments, each with its start and the size of its blocks. No
block crosses the start of a segment. Engines that can send blocks of any size also accept `Borders`, where each segment
is one block.
"""

from __future__ import annotations

import bisect
import itertools
import struct
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

UNIT_BYTES = 4096
"""Unit of segment starts, block sizes and block ids."""
MOST_BLOCK_BYTES = 4_096_000
"""Maximum size of blocks that go through servers: BytePS's own partition size, so that a block is one partition."""
MOST_SEGMENT_BYTES = 0xFFFF * UNIT_BYTES
"""Maximum block size in any cut, for which its code has 16 bits."""
EARLY_ROUNDS = 32
"""Number of first rounds in a job after each of which workers check for a new cut."""
RECUT_ROUNDS = 4
"""Number of rounds between two such checks later."""
MOST_SEGMENTS = 339
"""Maximum number of segments that fits in a page of the workers (Cut.encode)."""
LEARNING_BLOCKS = 724
"""Number of blocks in the arena if all have the smallest first size. The largest first size is four times that: about
256 such blocks fill the arena, which is probably near the best size.
"""
LEAST_LEARNING_BYTES, MOST_LEARNING_BYTES = 128 << 10, 512 << 10
LEARNING_STRETCHES = 16
LEAST_STRETCH_BYTES = 1 << 20
"""Minimum length of a segment in the learning cut."""

ITEM_BYTES = 16
"""Alignment of Borders' blocks within a gradient, so that no element is split."""

_COUNT = struct.Struct("<H")
_SEGMENT = struct.Struct("<IH")
_BORDERS = 0xFFFF
"""Segment count that marks an encoded cut as Borders."""
_BORDER_COUNT = struct.Struct("<I")


@dataclass(frozen=True)
class Segment:
    """Stretch of blocks of `block_bytes` from `start` on, in bytes from the beginning of the arena."""

    start: int
    block_bytes: int


@dataclass(frozen=True)
class Cut:
    """Segments ordered by start, the first at 0. Raises ValueError if they are invalid."""

    segments: tuple[Segment, ...]

    def __post_init__(self) -> None:
        starts = [segment.start for segment in self.segments]
        if not starts or starts[0] != 0 or any(b <= a for a, b in itertools.pairwise(starts)):
            raise ValueError(f"segments start at {starts}; the first must start at 0, and each after the one before")
        if len(starts) > MOST_SEGMENTS:
            raise ValueError(f"{len(starts)} segments; at most {MOST_SEGMENTS} can be agreed on")
        for segment in self.segments:
            if segment.start % UNIT_BYTES or segment.start // UNIT_BYTES >= 1 << 32:
                raise ValueError(f"a segment starts at {segment.start}; it must be a multiple of {UNIT_BYTES} bytes")
            size = segment.block_bytes
            if not UNIT_BYTES <= size <= MOST_SEGMENT_BYTES or size % UNIT_BYTES:
                raise ValueError(
                    f"blocks of {size} bytes; the size must be a multiple of {UNIT_BYTES}, at most {MOST_SEGMENT_BYTES}"
                )

    @classmethod
    def uniform(cls, block_bytes: int) -> Cut:
        """Return the cut into blocks of `block_bytes`, rounded down to a valid size."""
        units = max(1, min(block_bytes, MOST_SEGMENT_BYTES) // UNIT_BYTES)
        return cls((Segment(0, units * UNIT_BYTES),))

    def block_bytes_at(self, place: int) -> int:
        """Return the size of blocks at a place in the arena, both in bytes."""
        return self.segments[bisect.bisect_right(self.segments, place, key=lambda s: s.start) - 1].block_bytes

    def next_start(self, place: int) -> int | None:
        """Return the start of the next segment after `place`; None if there is none."""
        after = bisect.bisect_right(self.segments, place, key=lambda s: s.start)
        return self.segments[after].start if after < len(self.segments) else None

    def typical_bytes(self, total_bytes: int) -> int:
        """Return the byte-weighted median block size of an arena of `total_bytes`."""
        ends = [*(segment.start for segment in self.segments[1:]), max(total_bytes, self.segments[-1].start)]
        lengths: dict[int, int] = {}
        for segment, end in zip(self.segments, ends, strict=True):
            covered = max(0, min(end, total_bytes) - segment.start)
            lengths[segment.block_bytes] = lengths.get(segment.block_bytes, 0) + covered
        passed = 0
        for size, length in sorted(lengths.items()):
            passed += length
            if passed and 2 * passed >= total_bytes:
                return size
        return self.segments[0].block_bytes

    def encode(self) -> bytes:
        """Return the cut as bytes for `decode`, which ignores any bytes after them."""
        rows = (_SEGMENT.pack(s.start // UNIT_BYTES, s.block_bytes // UNIT_BYTES) for s in self.segments)
        return _COUNT.pack(len(self.segments)) + b"".join(rows)

    @classmethod
    def decode(cls, data: bytes) -> Cut | None:
        """Return the cut encoded in `data`, or None for zeros (none was written). Raises ValueError if damaged."""
        try:
            (count,) = _COUNT.unpack_from(data)
            if count == _BORDERS:
                return _decode_borders(data)
            rows = [_SEGMENT.unpack_from(data, _COUNT.size + place * _SEGMENT.size) for place in range(count)]
        except struct.error:
            raise ValueError("a cut is cut short") from None
        return Cut(tuple(Segment(start * UNIT_BYTES, size * UNIT_BYTES) for start, size in rows)) if count else None


@dataclass(frozen=True)
class Refusal:
    """A cut that an engine cannot apply to its job, and `why` in a few words.

    `any_new` is True if it cannot apply any other new cut either.
    """

    cut: Cut
    why: str
    any_new: bool = False

    def covers(self, cut: Cut, total_bytes: int) -> bool:
        """Return True if a new `cut` of gradients of `total_bytes` in total is impossible too.

        Equal or smaller blocks need at least as much of the scarce resource (keys, names, room).
        """
        return self.any_new or cut.typical_bytes(total_bytes) <= self.cut.typical_bytes(total_bytes)


@dataclass(frozen=True)
class Borders(Cut):
    """A cut with borders at any place of the arena. Gradients of one kind between two borders form one block.

    For engines that accept blocks of any size, as long as no element is split. A segment's `block_bytes` is its length.
    """

    def __post_init__(self) -> None:
        places = [segment.start for segment in self.segments]
        ends = [segment.start + segment.block_bytes for segment in self.segments]
        if not places or places[0] != 0 or places[1:] != ends[:-1] or any(s.block_bytes < 1 for s in self.segments):
            raise ValueError(f"borders at {places}; the first must be at 0, and each after the one before")

    @classmethod
    def at(cls, places: Iterable[int], total_bytes: int) -> Borders:
        """Return the cut with blocks that start at 0 and at these places, in bytes. Ignore places outside the arena."""
        inner = sorted({place for place in places if 0 < place < total_bytes})
        borders = [0, *inner, max(total_bytes, 1)]
        return cls(tuple(Segment(start, stop - start) for start, stop in itertools.pairwise(borders)))

    @classmethod
    def of_gradients(cls, sizes: Sequence[int]) -> Borders:
        """Return the cut with one block per gradient. `sizes` are bytes, in forward order."""
        return cls.at(arena_places(sizes), sum(sizes))

    def encode(self) -> bytes:
        places = [segment.start for segment in self.segments]
        places.append(places[-1] + self.segments[-1].block_bytes)
        count = len(self.segments)
        return _COUNT.pack(_BORDERS) + _BORDER_COUNT.pack(count) + struct.pack(f"<{count + 1}Q", *places)


def _decode_borders(data: bytes) -> Borders:
    (count,) = _BORDER_COUNT.unpack_from(data, _COUNT.size)
    if not count:
        raise ValueError("a cut has no borders")
    places = struct.unpack_from(f"<{count + 1}Q", data, _COUNT.size + _BORDER_COUNT.size)
    return Borders(tuple(Segment(start, stop - start) for start, stop in itertools.pairwise(places)))


class Piece(NamedTuple):
    """Bytes `start` to `stop` of gradient number `gradient`."""

    gradient: int
    start: int
    stop: int


@dataclass(frozen=True)
class Block:
    """Unit of transfer: consecutive pieces in the memory of their kind.

    `id` is the place of its first byte in the arena (ids_at). Ids rise in forward order, and a place has about the same
    id under every cut.
    """

    id: int
    pieces: tuple[Piece, ...]

    @property
    def size_bytes(self) -> int:
        return sum(piece.stop - piece.start for piece in self.pieces)


def learning_cut(total_bytes: int, sizes: Sequence[int] | None = None) -> Cut:
    """Return the first cut of a job that has learned nothing yet, for `total_bytes` of gradients. Its segments have
    blocks of `sizes` in turn, by default the size that is probably best and two smaller ones.

    A single size could not separate the cost per message from the cost per byte. Each size appears both early and late
    in backward, so that a change over time is not mistaken for an effect of size.
    """
    own = sizes_in_turn(total_bytes) if sizes is None else sizes
    least = max(LEAST_STRETCH_BYTES, *own)
    if sizes is None:
        # Blocks of a size lie where a cut of that size alone has them. A change to it then makes fewer new blocks.
        length = (max(1, total_bytes // LEARNING_STRETCHES // least) - 1 | 1) * least
        stretches = max(1, total_bytes // length)
    else:
        stretches = max(1, min(LEARNING_STRETCHES, total_bytes // least))
        length = -(-total_bytes // stretches // UNIT_BYTES) * UNIT_BYTES
    in_turn = itertools.islice(itertools.cycle(own), stretches)
    return Cut(tuple(Segment(place * length, size) for place, size in enumerate(in_turn)))


def sizes_in_turn(
    total_bytes: int, blocks: int = LEARNING_BLOCKS, largest: int = 4, most: int = MOST_LEARNING_BYTES
) -> tuple[int, ...]:
    """Return the sizes of a job's first blocks. The first is the smallest, at most `most`, and for the front of
    forward; about `blocks` blocks of it fill the arena. The last is `largest` times as large.
    """
    wanted = 1 << max(1, total_bytes // blocks).bit_length() - 1
    least = min(max(wanted, LEAST_LEARNING_BYTES), most)
    return tuple(least * factor for factor in (1, 4, 2, largest))


def arena_places(sizes: Iterable[int]) -> list[int]:
    """Return the byte offset of each gradient in the arena, and the end of the last one."""
    places = [0]
    for size in sizes:
        places.append(places[-1] + size)
    return places


def ids_at(places: Iterable[int]) -> list[int]:
    """Return the ids of blocks at these places (ascending bytes): the place in UNIT_BYTES, or else the next free id."""
    ids: list[int] = []
    for place in places:
        ids.append(max(place // UNIT_BYTES, ids[-1] + 1 if ids else 0))
    return ids


def ids_taken(sizes: Sequence[int]) -> int:
    """Return the exclusive upper limit of block ids for gradients of these sizes, under any cut."""
    return sum(sizes) // UNIT_BYTES + len(sizes) + 1


def blocks_of(sizes: Sequence[int], kinds: Sequence[Hashable | None], cut: Cut) -> list[Block]:
    """Return the blocks of a cut, most urgent first.

    `sizes` are bytes in forward order. Gradients of equal kinds may share a block. A gradient of kind None shares with
    none, and is cut only at multiples of UNIT_BYTES from its beginning (with Borders, of ITEM_BYTES).
    """
    places = arena_places(sizes)
    done = _between_borders(sizes, kinds, cut) if isinstance(cut, Borders) else _by_size(sizes, kinds, cut)
    done.sort()
    ids = ids_at(places[pieces[0].gradient] + pieces[0].start for pieces in done)
    return [Block(id_, tuple(pieces)) for id_, pieces in zip(ids, done, strict=True)]


def _by_size(sizes: Sequence[int], kinds: Sequence[Hashable | None], cut: Cut) -> list[list[Piece]]:
    places = arena_places(sizes)
    done: list[list[Piece]] = []
    begun: dict[Hashable, _Begun] = {}
    for gradient, (size, kind) in enumerate(zip(sizes, kinds, strict=True)):
        key: Hashable = ("alone", gradient) if kind is None else ("kind", kind)
        at = 0
        while at < size:
            block = begun.get(key)
            # Offset in this gradient at which the block must end; the gradient's size if it need not end here.
            last = size if block is None or block.ends is None else min(size, block.ends - places[gradient])
            if last < size:
                last = max(0, last - last % UNIT_BYTES)
            if block is None or last <= at:
                # A block whose start was rounded down still belongs to the segment that starts with it.
                place = places[gradient] + at + UNIT_BYTES - 1
                block = begun[key] = _Begun([], cut.block_bytes_at(place), cut.next_start(place))
                done.append(block.pieces)
                continue
            stop = min(last, at + block.room)
            block.pieces.append(Piece(gradient, at, stop))
            block.room -= stop - at
            if block.room == 0:
                del begun[key]
            at = stop
    return done


@dataclass
class _Begun:
    """A block with room for `room` more bytes, which must end at the start of the next segment, `ends`."""

    pieces: list[Piece]
    room: int
    ends: int | None


def _between_borders(sizes: Sequence[int], kinds: Sequence[Hashable | None], cut: Borders) -> list[list[Piece]]:
    places = arena_places(sizes)
    starts = [segment.start for segment in cut.segments]
    blocks: dict[Hashable, list[Piece]] = {}
    for gradient, (size, kind) in enumerate(zip(sizes, kinds, strict=True)):
        key: Hashable = ("alone", gradient) if kind is None else ("kind", kind)
        at = 0
        number = bisect.bisect_right(starts, places[gradient]) - 1
        while at < size:
            number += 1
            stop = size
            if number < len(starts) and starts[number] - places[gradient] < size:
                stop = starts[number] - places[gradient]
                stop -= stop % ITEM_BYTES
            if stop > at:
                blocks.setdefault((key, number), []).append(Piece(gradient, at, stop))
                at = stop
    return list(blocks.values())


class PageRounds:
    """Counter of rounds on one worker. Each of the first EARLY_ROUNDS, and then every RECUT_ROUNDS-th, ends with a
    page, in which the deciding worker tells all others its choice. All workers count alike.

    The `tried` rounds after a decision also end with a page. The first of these pages is late: it is sent when the next
    round begins, so that it reports on the whole first round. Then no second bad round follows.
    """

    def __init__(self, tried: int = 0) -> None:
        self.ended = 0
        """Number of completed rounds."""
        self._tried = self._since = tried

    def round_ends(self) -> bool:
        """Record the end of a round. Return True if it ends with a page."""
        self.ended += 1
        self._since += 1
        early = self.ended <= EARLY_ROUNDS or self._since <= self._tried
        return not self.late and (early or self.ended % RECUT_ROUNDS == 0)

    @property
    def late(self) -> bool:
        """True if the page of the last round must be sent before the next one begins."""
        return self._tried > 0 and self._since == 1

    def taken_up(self) -> None:
        """Record that a decision takes effect in the next round."""
        self._since = 0
