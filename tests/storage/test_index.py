"""Sparse indexes: what is found through them, and that they are never trusted blindly."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.index import Extent, Index, decode


def filled(entries: int) -> tuple[Index, Extent]:
    index = Index()
    for number in range(entries):
        index.offsets.append(100 + 10 * number)
        index.positions.append(4096 * number)
        index.times.append(1000 + number // 2)
    return index, Extent(100, 100 + 10 * entries, 4096 * entries, 1000, 990, 2000, gapped=entries % 2 == 0)


@given(st.integers(0, 50))
def test_what_is_stored_is_loaded(entries: int) -> None:
    index, extent = filled(entries)
    loaded = decode(*index.encode(extent), 100)
    assert loaded is not None
    assert loaded[1] == extent
    assert (loaded[0].offsets, loaded[0].positions, loaded[0].times) == (index.offsets, index.positions, index.times)


@given(st.integers(0, 20), st.booleans(), st.integers(0), st.integers(0, 7))
def test_a_flipped_bit_makes_an_index_worthless(entries: int, of_times: bool, at: int, bit: int) -> None:
    index, extent = filled(entries)
    contents = [bytearray(content) for content in index.encode(extent)]
    damaged = contents[of_times]
    damaged[at % len(damaged)] ^= 1 << bit
    assert decode(bytes(contents[0]), bytes(contents[1]), 100) is None


@given(st.integers(0, 20), st.integers(0))
def test_a_torn_index_is_worthless(entries: int, at: int) -> None:
    offsets, times = filled(entries)[0].encode(filled(entries)[1])
    assert decode(offsets[: at % len(offsets)], times, 100) is None
    assert decode(offsets, times[: at % len(times)], 100) is None


def test_files_that_do_not_belong_together_are_worthless() -> None:
    offsets, times = filled(5)[0].encode(filled(5)[1])
    older = filled(4)[0].encode(filled(4)[1])
    assert decode(offsets, older[1], 100) is None
    assert decode(offsets, times, 101) is None
    assert decode(None, times, 100) is None
    assert decode(offsets, None, 100) is None


def test_blocks_are_found_by_offset_and_by_time() -> None:
    index, _ = filled(4)
    assert [index.block_of_offset(offset) for offset in (0, 100, 109, 110, 135, 999)] == [0, 0, 0, 1, 3, 3]
    assert [index.block_of_time(time) for time in (0, 1000, 1001, 1002)] == [0, 0, 2, 4]
