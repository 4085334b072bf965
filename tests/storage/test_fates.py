"""What compaction is told about transactions."""

from __future__ import annotations

from headrace.storage.fates import Fates
from headrace.wire import batch


def header(
    offset: int, producer_id: int = 9, *, transactional: bool = True, control: bool = False
) -> batch.BatchHeader:
    data = batch.build(
        [(b"k", b"v")],
        timestamp_ms=1,
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=transactional,
        control=control,
    )
    return next(batch.headers(data))


def marker(offset: int, producer_id: int = 9) -> batch.BatchHeader:
    return header(offset, producer_id, control=True)


def test_only_what_lies_before_its_marker_is_aborted() -> None:
    fates = Fates([(10, 15, 9), (30, 35, 9)])
    assert [fates.is_aborted(header(offset)) for offset in (5, 10, 12)] == [False, True, True]
    assert not fates.is_aborted(header(13, producer_id=8)), "another producer's"
    assert not fates.is_aborted(header(14, transactional=False))
    assert not fates.ends_nothing(marker(15))
    assert [fates.is_aborted(header(offset)) for offset in (20, 30, 40)] == [False, True, False]


def test_a_marker_counts_only_what_came_since_the_one_before() -> None:
    fates = Fates([])
    fates.is_aborted(header(1))
    assert not fates.ends_nothing(marker(2))
    assert fates.ends_nothing(marker(4)), "what it ended is gone"
    fates.is_aborted(header(5, producer_id=8))
    assert fates.ends_nothing(marker(6))
    assert not fates.ends_nothing(marker(7, producer_id=8))


def test_a_list_that_tells_of_a_marker_that_is_gone_does_no_harm() -> None:
    fates = Fates([(10, 15, 9)])
    assert not fates.is_aborted(header(20))
    assert not fates.ends_nothing(marker(21))
