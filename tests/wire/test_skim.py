"""Records looked at without being opened are the same records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ApiError, ErrorCode
from headrace.wire import batch
from headrace.wire.records import seal

ITEMS = st.lists(
    st.tuples(st.none() | st.binary(max_size=80), st.none() | st.binary(max_size=200)), min_size=1, max_size=12
)
CODECS = st.integers(0, 4)
HEADERS = st.sampled_from([(), (("h", b"1"),), (("naïve", None), ("h", b"x" * 100))])


def made(items: list[tuple[bytes | None, bytes | None]], **options: object) -> tuple[bytes, batch.BatchHeader]:
    data = batch.build(items, timestamp_ms=1_000_000, base_offset=500, **options)  # type: ignore[arg-type]
    return data, next(batch.headers(data))


def glimpses(data: bytes, header: batch.BatchHeader) -> tuple[bytes, list[batch.Glimpse]]:
    payload = batch.payload_of(data, header)
    return payload, [glimpse for found in batch.skim(payload, header, at_once=5) for glimpse in found]


@given(ITEMS, CODECS, HEADERS)
def test_a_glimpse_tells_what_the_record_tells(items, codec, headers) -> None:
    data, header = made(items, codec=codec, headers=headers)
    _, found = glimpses(data, header)
    opened = [(r.timestamp, r.offset, r.key, r.value is not None) for r in batch.records(data, header)]
    assert [glimpse[3:] for glimpse in found] == opened


@given(ITEMS, CODECS, HEADERS, st.data())
def test_what_is_kept_is_kept_whole_and_nothing_else_is(items, codec, headers, data) -> None:
    content, header = made(items, codec=codec, headers=headers, producer_id=5, producer_epoch=1, base_sequence=9)
    payload, found = glimpses(content, header)
    kept = [glimpse for glimpse in found if data.draw(st.booleans())]
    horizon_ms = data.draw(st.none() | st.integers(0, 2**62))
    again = batch.repack(header, payload, kept, horizon_ms=horizon_ms)
    after = next(batch.headers(again))
    assert batch.crc_matches(again, after)
    offsets = {glimpse[4] for glimpse in kept}
    assert list(batch.records(again, after)) == [r for r in batch.records(content, header) if r.offset in offsets]
    same = ("base_offset", "last_offset_delta", "leader_epoch", "producer_id", "producer_epoch", "base_sequence")
    assert [getattr(after, name) for name in same] == [getattr(header, name) for name in same]
    assert batch.codec_of(after) == (codec if kept else 0)
    assert after.count == len(kept)
    assert (batch.horizon_of(after) is None) == (horizon_ms is None)
    if horizon_ms is not None:
        assert batch.horizon_of(after) == min(horizon_ms, 2**61)


@given(st.binary(max_size=120), st.integers(1, 20))
def test_whatever_the_bytes_they_are_records_or_corrupt(payload: bytes, count: int) -> None:
    data = seal(
        payload,
        base_offset=0,
        leader_epoch=0,
        attributes=0,
        last_offset_delta=count - 1,
        base_timestamp=0,
        max_timestamp=0,
        producer=(-1, -1, -1),
        count=count,
    )
    header = next(batch.headers(data))
    try:
        _, found = glimpses(data, header)
    except ApiError as error:
        assert error.code is ErrorCode.corrupt_message
        return
    assert len(found) == count
    assert found[-1][1] == len(payload)


@given(ITEMS, CODECS, CODECS)
def test_a_batch_is_the_same_in_another_codec(items, codec, other) -> None:
    data, header = made(items, codec=codec, producer_id=5, producer_epoch=1, base_sequence=9)
    again = batch.recompress(data, header, other, level=None, max_bytes=1 << 20)
    after = next(batch.headers(again))
    assert batch.crc_matches(again, after)
    assert batch.codec_of(after) == other
    assert list(batch.records(again, after)) == list(batch.records(data, header))
    assert after[6:] == header[6:]


def test_a_bomb_is_not_opened_to_be_recompressed() -> None:
    data, header = made([(b"k", bytes(1 << 20))], codec=4)
    with pytest.raises(ApiError):
        batch.recompress(data, header, 0, level=None, max_bytes=1 << 19)
