"""Cuts: which bytes travel together, whatever the sizes, kinds and segments, and which rounds end with a page."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_scheduler.core.cut import (
    EARLY_ROUNDS,
    ITEM_BYTES,
    MOST_BLOCK_BYTES,
    MOST_SEGMENT_BYTES,
    RECUT_ROUNDS,
    UNIT_BYTES,
    Borders,
    Cut,
    PageRounds,
    Segment,
    blocks_of,
    ids_taken,
    learning_cut,
)

KIB = 1024


def cut(*segments: tuple[int, int]) -> Cut:
    return Cut(tuple(Segment(start, size) for start, size in segments))


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    starts = draw(st.lists(st.integers(1, 200), unique=True, max_size=6))
    sizes = draw(st.lists(st.integers(1, 64), min_size=len(starts) + 1, max_size=len(starts) + 1))
    return Cut(tuple(Segment(a * UNIT_BYTES, s * UNIT_BYTES) for a, s in zip([0, *sorted(starts)], sizes, strict=True)))


GRADIENTS = st.lists(st.tuples(st.integers(1, 300_000), st.sampled_from(["float32", "float64", None])), max_size=30)


def test_small_gradients_travel_together_and_large_ones_in_slices() -> None:
    blocks = blocks_of([1000, 3000, 200 * KIB], ["f"] * 3, Cut.uniform(128 * KIB))
    assert [[piece.gradient for piece in block.pieces] for block in blocks] == [[0, 1, 2], [2]]
    assert blocks[0].size_bytes == 128 * KIB


def test_no_block_goes_across_the_start_of_a_segment() -> None:
    blocks = blocks_of([1 << 20], ["f"], cut((0, 128 * KIB), (200 * KIB, 512 * KIB)))
    starts = [block.pieces[0].start for block in blocks]
    assert starts == [0, 128 * KIB, 200 * KIB, 712 * KIB]


def test_the_start_of_a_segment_within_a_gradient_is_rounded_down_from_the_beginning_of_the_gradient() -> None:
    blocks = blocks_of([40, 64 * KIB], ["f", "f"], cut((0, 512 * KIB), (32 * KIB, 512 * KIB)))
    assert [block.pieces for block in blocks] == [((0, 0, 40), (1, 0, 28 * KIB)), ((1, 28 * KIB, 64 * KIB),)]


def test_kinds_do_not_mix_and_what_is_alone_stays_alone() -> None:
    blocks = blocks_of([100, 100, 100, 100], ["a", "b", None, "a"], Cut.uniform(4096))
    assert [[piece.gradient for piece in block.pieces] for block in blocks] == [[0, 3], [1], [2]]
    assert [block.id for block in blocks] == [0, 1, 2]


@given(GRADIENTS, cuts())
def test_every_byte_is_in_one_block(gradients: list[tuple[int, str | None]], a_cut: Cut) -> None:
    sizes = [size for size, _ in gradients]
    kinds = [kind for _, kind in gradients]
    blocks = blocks_of(sizes, kinds, a_cut)
    pieces = sorted(piece for block in blocks for piece in block.pieces)
    expected = [0] * len(sizes)
    for piece in pieces:
        assert piece.start == expected[piece.gradient] and piece.stop > piece.start
        expected[piece.gradient] = piece.stop
    assert expected == sizes
    for block in blocks:
        assert len({kinds[piece.gradient] for piece in block.pieces}) == 1
        largest = max(segment.block_bytes for segment in a_cut.segments)
        assert 0 < block.size_bytes <= largest
        for before, after in itertools.pairwise(block.pieces):
            # They follow one another in the memory of their kind.
            assert before.stop == sizes[before.gradient] and after.start == 0
            assert all(kinds[g] != kinds[after.gradient] for g in range(before.gradient + 1, after.gradient))
    ids = [block.id for block in blocks]
    assert ids == sorted(set(ids)) and (not ids or ids[-1] < ids_taken(sizes))
    assert [block.pieces[0] for block in blocks] == sorted(block.pieces[0] for block in blocks)


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=10), cuts())
def test_gradients_that_stay_alone_are_cut_at_whole_units(units: list[int], a_cut: Cut) -> None:
    sizes = [unit * 100 + 2 for unit in units]
    for block in blocks_of(sizes, [None] * len(sizes), a_cut):
        (piece,) = block.pieces
        assert piece.start % UNIT_BYTES == 0


@given(cuts())
def test_a_cut_survives_being_encoded(a_cut: Cut) -> None:
    assert Cut.decode(a_cut.encode().ljust(2048, b"\0")) == a_cut


def test_nothing_decodes_as_none_and_half_a_cut_is_refused() -> None:
    assert Cut.decode(bytes(64)) is None
    with pytest.raises(ValueError, match="cut short"):
        Cut.decode(Cut.uniform(4096).encode()[:4])


@pytest.mark.parametrize(
    ("segments", "wrong"),
    [
        ([], "must start at 0"),
        ([(4096, 4096)], "must start at 0"),
        ([(0, 4096), (8192, 4096), (8192, 4096)], "after the one before"),
        ([(0, 4096), (100, 4096)], "multiple of 4096"),
        ([(0, 5000)], "blocks of 5000"),
        ([(0, MOST_SEGMENT_BYTES + 4096)], "at most"),
    ],
)
def test_impossible_cuts_are_refused(segments: list[tuple[int, int]], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        cut(*segments)


def test_one_size_is_rounded_to_what_a_cut_allows() -> None:
    assert Cut.uniform(1).segments[0].block_bytes == UNIT_BYTES
    largest = Cut.uniform(1 << 40)
    assert largest.segments[0].block_bytes == MOST_SEGMENT_BYTES and Cut.decode(largest.encode()) == largest
    assert Cut.uniform(10_000).segments[0].block_bytes == 8192


@pytest.mark.parametrize(
    ("total", "likely"),
    [(5 << 20, 512 << 10), (25_600_000, 512 << 10), (240_000_000, 1 << 20), (574_000_000, 2 << 20), (1 << 33, 2 << 20)],
)
def test_half_of_a_jobs_first_blocks_have_its_likely_size_and_the_others_smaller_ones(total: int, likely: int) -> None:
    cut = learning_cut(total)
    shares = dict.fromkeys((likely // 4, likely // 2, likely), 0)
    ends = [*(segment.start for segment in cut.segments[1:]), total]
    for segment, end in zip(cut.segments, ends, strict=True):
        shares[segment.block_bytes] += end - segment.start
    assert cut.block_bytes_at(0) == likely // 4, "forward needs it first"
    assert shares[likely] == pytest.approx(total / 2, rel=0.25)
    assert min(shares.values()) > total / 8


@pytest.mark.parametrize("total", [25_600_000, 102_228_128, 574_000_000])
def test_a_change_to_the_likely_size_finds_half_of_its_blocks_there(total: int) -> None:
    first = learning_cut(total)
    likely = max(segment.block_bytes for segment in first.segments)
    had = {(block.id, block.size_bytes) for block in blocks_of([total], ["f"], first)}
    wanted = {(block.id, block.size_bytes) for block in blocks_of([total], ["f"], Cut.uniform(likely))}
    assert sum(size for _, size in had & wanted) > 0.4 * total


@pytest.mark.parametrize("total", [1, 4096, 1 << 20, (1 << 20) + 1])
def test_a_job_of_few_bytes_begins_with_one_size(total: int) -> None:
    assert learning_cut(total) == Cut.uniform(128 << 10)


@pytest.mark.parametrize(
    ("units", "total", "size"),
    [
        ([(0, 3)], 100, 3),
        ([(0, 3)], 0.25, 3),
        ([(0, 1), (10, 8)], 100, 8),
        ([(0, 1), (90, 8)], 100, 1),
        ([(0, 1), (90, 8)], 20, 1),
        ([(0, 9), (30, 1), (60, 4)], 90, 4),
        ([(0, 9), (30, 1)], 0, 9),
    ],
)
def test_the_size_of_a_cut_is_the_median_byte_s(units: list[tuple[int, int]], total: float, size: int) -> None:
    a_cut = cut(*((start * UNIT_BYTES, block * UNIT_BYTES) for start, block in units))
    assert a_cut.typical_bytes(int(total * UNIT_BYTES)) == size * UNIT_BYTES


BORDERS = st.lists(st.integers(0, 400_000), max_size=30)


@given(GRADIENTS, BORDERS)
def test_blocks_between_borders_are_all_bytes_once_and_divide_no_element(
    rows: list[tuple[int, str | None]], places: list[int]
) -> None:
    sizes, kinds = [size for size, _ in rows], [kind for _, kind in rows]
    borders = Borders.at(places, sum(sizes))
    blocks = blocks_of(sizes, kinds, borders)
    assert [block.id for block in blocks] == sorted({block.id for block in blocks})
    covered: dict[int, list[tuple[int, int]]] = {}
    for block in blocks:
        of_kind = [gradient for gradient, kind in enumerate(kinds) if kind == kinds[block.pieces[0].gradient]]
        for before, after in itertools.pairwise(block.pieces):
            # One after another in the memory of their kind, and each kind of its own where there is none.
            assert kinds[before.gradient] is not None
            assert of_kind.index(after.gradient) == of_kind.index(before.gradient) + 1
            assert (before.stop, after.start) == (sizes[before.gradient], 0)
        for gradient, start, stop in block.pieces:
            assert start % ITEM_BYTES == 0 and (stop % ITEM_BYTES == 0 or stop == sizes[gradient])
            covered.setdefault(gradient, []).append((start, stop))
    for gradient, size in enumerate(sizes):
        spans = sorted(covered[gradient])
        assert (spans[0][0], spans[-1][1]) == (0, size)
        assert all(before[1] == after[0] for before, after in itertools.pairwise(spans))


def test_borders_are_exact_and_blocks_as_large_as_they_say() -> None:
    sizes = [4, 8, 3 * MOST_BLOCK_BYTES, 20, 1000]
    blocks = blocks_of(sizes, ["f"] * 5, Borders.at([4, 12, 12 + 64, 12 + sizes[2]], sum(sizes)))
    assert [[tuple(piece) for piece in block.pieces] for block in blocks] == [
        [(0, 0, 4)],
        [(1, 0, 8)],
        [(2, 0, 64)],
        [(2, 64, sizes[2])],
        [(3, 0, 20), (4, 0, 1000)],
    ]


def test_a_border_within_an_element_is_at_its_beginning() -> None:
    blocks = blocks_of([6, 100], ["f", "f"], Borders.at([6 + 39, 6 + 47], 106))
    assert [[tuple(piece) for piece in block.pieces] for block in blocks] == [[(0, 0, 6), (1, 0, 32)], [(1, 32, 100)]]


def test_gradients_by_themselves_are_whole() -> None:
    sizes = [4, 0, 9_000_000, 4]
    blocks = blocks_of(sizes, ["f", "d", "f", None], Borders.of_gradients(sizes))
    assert [block.pieces for block in blocks] == [((0, 0, 4),), ((2, 0, 9_000_000),), ((3, 0, 4),)]


@given(BORDERS, st.integers(0, 1 << 40))
def test_borders_come_back_from_their_bytes(places: list[int], total: int) -> None:
    borders = Borders.at(places, total)
    assert Cut.decode(borders.encode() + b"what follows") == borders
    with pytest.raises(ValueError, match="short"):
        Cut.decode(borders.encode()[:-1])


def test_borders_are_not_a_cut_of_the_same_segments() -> None:
    """The one has a block in each segment whatever comes, the other blocks of its size."""
    assert Borders((Segment(0, UNIT_BYTES),)) != Cut.uniform(UNIT_BYTES)


@pytest.mark.parametrize("segments", [(), ((4, 8),), ((0, 8), (4, 8)), ((0, 8), (12, 8)), ((0, 0),)])
def test_borders_that_cannot_be_are_refused(segments: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ValueError, match="borders at"):
        Borders(tuple(Segment(*segment) for segment in segments))


REGULAR = [
    *range(1, EARLY_ROUNDS + 1),
    *range(EARLY_ROUNDS + RECUT_ROUNDS, EARLY_ROUNDS + 4 * RECUT_ROUNDS, RECUT_ROUNDS),
]


def pages(rounds: PageRounds, taken_up_before: int = 0) -> list[int]:
    """Return the rounds that end with a page, if a decision is taken up before one of them."""
    found = []
    for number in range(1, EARLY_ROUNDS + 4 * RECUT_ROUNDS):
        if number == taken_up_before:
            rounds.taken_up()
        found += [number] if rounds.round_ends() else []
    return found


def test_a_jobs_first_rounds_and_then_every_few_end_with_a_page() -> None:
    assert EARLY_ROUNDS % RECUT_ROUNDS == 0
    assert pages(PageRounds()) == pages(PageRounds(tried=3)) == REGULAR


def test_a_decision_is_tried_in_some_rounds_more_the_first_of_which_is_late() -> None:
    first = EARLY_ROUNDS + RECUT_ROUNDS + 1
    assert pages(PageRounds(), first) == REGULAR
    assert pages(PageRounds(tried=3), first) == sorted({*REGULAR, first + 1, first + 2})
    late = EARLY_ROUNDS + 2 * RECUT_ROUNDS
    assert pages(PageRounds(tried=3), late) == sorted({*REGULAR, late + 1, late + 2} - {late})
    rounds = PageRounds(tried=3)
    rounds.taken_up()
    assert (rounds.round_ends(), rounds.late) == (False, True)
    assert (rounds.round_ends(), rounds.late) == (True, False)
