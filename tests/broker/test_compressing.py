"""`compression.type`: what is stored in which codec."""

from __future__ import annotations

import pytest

from headrace.broker.compressing import CODECS, OPENED_BYTES, in_codec
from headrace.core.errors import ApiError, ErrorCode
from headrace.storage.settings import StorageSettings
from headrace.storage.topic_config import TopicConfig
from headrace.wire import batch

ITEMS = [(b"key %d" % number, b"value" * 30) for number in range(50)]


def config(**given: str) -> TopicConfig:
    return TopicConfig.of({name.replace("_", "."): text for name, text in given.items()}, StorageSettings())


def sent(codec: int, items: list[tuple[bytes, bytes]] = ITEMS) -> tuple[bytes, list[batch.BatchHeader]]:
    data = batch.build(items, timestamp_ms=1, codec=codec, producer_id=3, producer_epoch=0, base_sequence=0)
    return data, batch.check(data, max_batch_bytes=1 << 30)


@pytest.mark.parametrize("wanted", CODECS)
@pytest.mark.parametrize("codec", range(5))
def test_a_batch_is_stored_in_the_codec_of_its_topic(codec: int, wanted: str) -> None:
    data, headers = sent(codec)
    made, found = in_codec(data, headers, config(compression_type=wanted))
    assert batch.codec_of(found[0]) == CODECS[wanted]
    assert batch.check(made, max_batch_bytes=1 << 30) == found
    assert list(batch.records(made, found[0])) == list(batch.records(data, headers[0]))
    assert (made is data) == (codec == CODECS[wanted])


@pytest.mark.parametrize(("wanted", "low", "high"), [("gzip", 1, 9), ("zstd", 1, 19)])
def test_a_level_is_heeded(wanted: str, low: int, high: int) -> None:
    items = [(b"%d" % n, b"%d %d %d" % (n * 7919 % 1009, n * n, n)) for n in range(2000)]
    sizes = [
        len(
            in_codec(*sent(0, items), config(compression_type=wanted, **{f"compression_{wanted}_level": str(level)}))[0]
        )
        for level in (low, high)
    ]
    assert sizes[1] < sizes[0]


def test_a_batch_that_grows_too_large_is_refused() -> None:
    data, headers = sent(4)
    assert headers[0].size < 2000
    with pytest.raises(ApiError) as caught:
        in_codec(data, headers, config(compression_type="uncompressed", max_message_bytes="2000"))
    assert caught.value.code is ErrorCode.message_too_large


def test_a_batch_that_opens_to_too_much_stays_as_it_came() -> None:
    data, headers = sent(4, [(b"k", bytes(OPENED_BYTES))])
    assert in_codec(data, headers, config(compression_type="gzip"))[0] == data
