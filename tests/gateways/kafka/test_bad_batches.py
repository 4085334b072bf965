"""What a producer may get wrong: batches, acks, sequences. Nothing of it may reach the log."""

from __future__ import annotations

import itertools
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest
from crc32c import crc32c

from headrace.core.errors import ErrorCode
from headrace.testing.peer import Peer
from headrace.wire import layout
from headrace.wire.batch import build
from headrace.wire.codecs import compress

NUMBERS = itertools.count(1)
NOW_MS = 1_700_000_000_000


@pytest.fixture
def topic(peer: Peer) -> str:
    return fresh_topic(peer)


def fresh_topic(peer: Peer, **configs: str) -> str:
    name = f"batches-{next(NUMBERS)}"
    create(peer, name, **configs)
    return name


def create(peer: Peer, name: str, **configs: str) -> None:
    rows = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    wanted = {"name": name, "num_partitions": 1, "replication_factor": 1, "configs": rows}
    assert peer.call(19, 7, {"topics": [wanted], "timeout": 5000}).topics[0].error_code == ErrorCode.none


def produce(peer: Peer, topic: str, records: bytes | None, *, acks: int = -1, version: int = 9) -> Any:
    rows = [{"index": 0, "records": records}]
    request = {"acks": acks, "timeout": 5000, "topic_data": [{"name": topic, "partition_data": rows}]}
    return peer.call(0, version, request).responses[0].partition_responses[0]


def end_of(peer: Peer, topic: str) -> int:
    request = {"replica_id": -1, "topics": [{"name": topic, "partitions": [{"partition_index": 0, "timestamp": -1}]}]}
    return peer.call(2, 7, request).topics[0].partitions[0].offset


def altered(at: int, form: str, value: int, *, seal: bool = True, count: int = 3, **options: Any) -> bytes:
    """A batch with one field of its header changed; with `seal` its checksum is right all the same."""
    data = bytearray(build([(b"k", b"v")] * count, timestamp_ms=NOW_MS, **options))
    struct.pack_into(form, data, at, value)
    if seal:
        struct.pack_into(">I", data, layout.CRC_AT, crc32c(bytes(data[layout.ATTRIBUTES_AT :])))
    return bytes(data)


def plain(**options: Any) -> bytes:
    return build([(b"k", b"v")] * 3, timestamp_ms=NOW_MS, **options)


BAD: dict[str, tuple[Callable[[], bytes | None], ErrorCode]] = {
    "no records": (lambda: None, ErrorCode.invalid_record),
    "no bytes": (lambda: b"", ErrorCode.invalid_record),
    "wrong CRC": (lambda: altered(layout.CRC_AT, ">I", 12345, seal=False), ErrorCode.corrupt_message),
    "a flipped bit": (lambda: plain()[:-1] + bytes([plain()[-1] ^ 1]), ErrorCode.corrupt_message),
    "magic 1": (lambda: altered(layout.MAGIC_AT, ">b", 1), ErrorCode.invalid_record),
    "magic 0": (lambda: altered(layout.MAGIC_AT, ">b", 0), ErrorCode.invalid_record),
    "magic 9": (lambda: altered(layout.MAGIC_AT, ">b", 9), ErrorCode.corrupt_message),
    "a length too long": (lambda: altered(8, ">i", 100_000), ErrorCode.corrupt_message),
    "a length too short": (lambda: altered(8, ">i", 10), ErrorCode.corrupt_message),
    "a negative length": (lambda: altered(8, ">i", -1), ErrorCode.corrupt_message),
    "a cut batch": (lambda: plain()[:-4], ErrorCode.corrupt_message),
    "less than a header": (lambda: plain()[:40], ErrorCode.corrupt_message),
    "more records than there are": (lambda: altered(57, ">i", 4), ErrorCode.invalid_record),
    "no record at all": (lambda: altered(57, ">i", 0), ErrorCode.invalid_record),
    "a negative count": (lambda: altered(57, ">i", -1), ErrorCode.invalid_record),
    "offsets that do not fit the count": (lambda: altered(23, ">i", 2**31 - 1), ErrorCode.invalid_record),
    "the control bit": (lambda: plain(control=True), ErrorCode.invalid_record),
    "transactional without producer": (lambda: plain(transactional=True), ErrorCode.invalid_record),
    "two batches": (lambda: plain() + plain(), ErrorCode.invalid_record),
    "an unknown codec": (lambda: altered(layout.ATTRIBUTES_AT, ">h", 6), ErrorCode.unsupported_compression_type),
    "a client's LogAppendTime": (lambda: altered(layout.ATTRIBUTES_AT, ">h", 8), ErrorCode.invalid_timestamp),
}


def around(payload: bytes, *, count: int = 3, codec: int = 0) -> bytes:
    """A batch of any bytes, whose header and checksum are right."""
    data = bytearray(
        layout.HEADER.pack(0, 49 + len(payload), -1, 2, 0, codec, count - 1, NOW_MS, NOW_MS, -1, -1, -1, count)
        + payload
    )
    struct.pack_into(">I", data, layout.CRC_AT, crc32c(bytes(data[layout.ATTRIBUTES_AT :])))
    return bytes(data)


def three(**options: Any) -> bytes:
    """The records of a batch."""
    return plain(**options)[layout.HEADER_BYTES :]


CODECS = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
for codec_name, codec in CODECS.items():
    BAD |= {
        f"garbage as {codec_name}": (
            lambda codec=codec: around(b"garbage" * 50, codec=codec),
            ErrorCode.corrupt_message,
        ),
        f"nothing as {codec_name}": (lambda codec=codec: around(b"", codec=codec), ErrorCode.corrupt_message),
        f"cut {codec_name}": (
            lambda codec=codec: around(compress(codec, three() * 9)[:-9], codec=codec, count=27),
            ErrorCode.corrupt_message,
        ),
        f"2^31-1 records in a few bytes of {codec_name}": (
            lambda codec=codec: around(compress(codec, three()), codec=codec, count=2**31 - 1),
            ErrorCode.invalid_record,
        ),
        f"one record fewer than there are, in {codec_name}": (
            lambda codec=codec: around(compress(codec, three()), codec=codec, count=2),
            ErrorCode.invalid_record,
        ),
        f"one record more than there are, in {codec_name}": (
            lambda codec=codec: around(compress(codec, three()), codec=codec, count=4),
            ErrorCode.invalid_record,
        ),
        f"zeros in {codec_name}": (
            lambda codec=codec: around(compress(codec, bytes(1000)), codec=codec),
            ErrorCode.invalid_record,
        ),
    }
BAD |= {  # snappy cannot do that in so few bytes
    f"a bomb of {codec_name}": (
        lambda codec=CODECS[codec_name]: around(compress(codec, bytes(65 << 20)), codec=codec),
        ErrorCode.corrupt_message,
    )
    for codec_name in ("gzip", "lz4", "zstd")
}
BAD |= {
    "one record fewer than there are": (lambda: around(three(), count=2), ErrorCode.invalid_record),
    "one record more than there are": (lambda: around(three() + bytes(7), count=4), ErrorCode.invalid_record),
    "bytes behind the last record": (lambda: around(three() + b"more"), ErrorCode.invalid_record),
    "records twice": (lambda: around(three() * 2, count=6), ErrorCode.invalid_record),
    "zeros": (lambda: around(bytes(1000)), ErrorCode.invalid_record),
    "a record with attributes": (lambda: around(three()[:1] + b"\x01" + three()[2:]), ErrorCode.invalid_record),
    "a first offset that is not 0": (lambda: around(three()[:3] + b"\x04" + three()[4:]), ErrorCode.invalid_record),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_batch_is_refused_and_leaves_no_trace(peer: Peer, topic: str, name: str):
    make, code = BAD[name]
    assert produce(peer, topic, make()).error_code == code
    assert end_of(peer, topic) == 0
    assert produce(peer, topic, plain()).error_code == ErrorCode.none
    assert end_of(peer, topic) == 3


def in_the_middle(change: Callable[[bytearray, int], None]) -> bytes:
    """Three records with the bytes of the second one changed; they are nine bytes long."""
    records = bytearray(three())
    assert len(records) == 27
    change(records, 9)
    return bytes(records)


def put(at: int, value: int) -> Callable[[bytearray, int], None]:
    def change(records: bytearray, start: int) -> None:
        records[start + at] = value

    return change


MIDDLE = {
    "attributes": in_the_middle(put(1, 1)),
    "an offset that was there before": in_the_middle(put(3, 0)),
    "a key that is too long": in_the_middle(put(4, 60)),
    "a negative length of a key": in_the_middle(put(4, 3)),
    "a value that is too short": in_the_middle(put(6, 0)),
    "headers that are not there": in_the_middle(put(8, 2)),
}


@pytest.mark.parametrize("codec", [0, *CODECS.values()])
@pytest.mark.parametrize("name", MIDDLE)
def test_full_validation_looks_at_every_record(peer: Peer, name: str, codec: int):
    topic = fresh_topic(peer, headrace_record_validation="full")
    row = produce(peer, topic, around(compress(codec, MIDDLE[name]), codec=codec))
    assert row.error_code == ErrorCode.invalid_record
    assert end_of(peer, topic) == 0
    assert produce(peer, topic, plain(codec=codec)).error_code == ErrorCode.none


def test_without_validation_the_header_is_believed(peer: Peer):
    topic = fresh_topic(peer, headrace_record_validation="header")
    assert produce(peer, topic, around(b"garbage" * 50, codec=3)).error_code == ErrorCode.none


def test_a_timestamp_from_the_far_future_is_refused(peer: Peer):
    topic = fresh_topic(peer, message_timestamp_after_max_ms="3600000")
    ahead = int(time.time() * 1000) + 86_400_000
    row = produce(peer, topic, build([(b"k", b"v")], timestamp_ms=ahead))
    assert row.error_code == ErrorCode.invalid_timestamp
    assert end_of(peer, topic) == 0


def test_an_oversized_batch_is_refused(peer: Peer):
    topic = fresh_topic(peer, max_message_bytes="1000")
    row = produce(peer, topic, build([(b"k", b"x" * 1000)], timestamp_ms=NOW_MS))
    assert row.error_code == ErrorCode.message_too_large
    assert end_of(peer, topic) == 0


def test_the_same_partition_twice_in_one_request_is_refused(peer: Peer, topic: str):
    rows = [{"index": 0, "records": plain()}, {"index": 0, "records": plain()}]
    request = {"acks": -1, "timeout": 5000, "topic_data": [{"name": topic, "partition_data": rows}]}
    codes = [row.error_code for row in peer.call(0, 9, request).responses[0].partition_responses]
    assert codes[1] == ErrorCode.invalid_request
    assert end_of(peer, topic) <= 3


@pytest.mark.parametrize("codec", [1, 2, 3, 4], ids=["gzip", "snappy", "lz4", "zstd"])
def test_a_compression_bomb_on_a_compacted_topic_is_refused(peer: Peer, memory: Any, codec: int):
    topic = fresh_topic(peer, cleanup_policy="compact", max_message_bytes="20000000")
    bomb = build([(b"k", bytes(200 << 20))], timestamp_ms=NOW_MS, codec=codec)
    assert len(bomb) < 12 << 20
    before = memory.growth_mib
    row = produce(peer, topic, bomb)
    assert row.error_code in (ErrorCode.corrupt_message, ErrorCode.invalid_record, ErrorCode.message_too_large)
    assert memory.growth_mib - before < 180  # it was not opened to its end
    assert end_of(peer, topic) == 0


def test_rubbish_behind_a_codec_bit_is_refused_where_records_are_opened(peer: Peer):
    topic = fresh_topic(peer, cleanup_policy="compact")
    for codec in (1, 2, 3, 4):
        row = produce(peer, topic, altered(layout.ATTRIBUTES_AT, ">h", codec))
        assert row.error_code in (ErrorCode.corrupt_message, ErrorCode.invalid_record)
    assert end_of(peer, topic) == 0


def test_records_without_a_key_are_named_one_by_one(peer: Peer):
    topic = fresh_topic(peer, cleanup_policy="compact")
    row = produce(peer, topic, build([(b"k", b"v"), (None, b"v"), (None, b"v")], timestamp_ms=NOW_MS))
    assert row.error_code == ErrorCode.invalid_record
    assert [error.batch_index for error in row.record_errors] == [1, 2]


@pytest.mark.parametrize("acks", [2, -2, 99])
def test_acks_that_do_not_exist_are_refused(peer: Peer, topic: str, acks: int):
    assert produce(peer, topic, plain(), acks=acks).error_code == ErrorCode.invalid_required_acks
    assert end_of(peer, topic) == 0


def test_an_error_without_an_answer_closes_the_connection(peer: Peer):
    rows = [{"index": 0, "records": plain()}]
    peer.send(0, 9, {"acks": 0, "timeout": 5000, "topic_data": [{"name": "not-there-at-all", "partition_data": rows}]})
    assert peer.is_closed()


def test_acks_0_gets_no_answer(peer: Peer, topic: str):
    rows = [{"index": 0, "records": plain()}]
    peer.send(0, 9, {"acks": 0, "timeout": 5000, "topic_data": [{"name": topic, "partition_data": rows}]})
    assert end_of(peer, topic) == 3  # the next answer on the connection is this one


def test_zstd_needs_produce_7(peer: Peer, topic: str):
    row = produce(peer, topic, plain(codec=4), version=5)
    assert row.error_code == ErrorCode.unsupported_compression_type


# -- idempotence


def new_producer(peer: Peer) -> tuple[int, int]:
    answer = peer.call(
        22, 4, {"transactional_id": None, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    )
    assert answer.error_code == ErrorCode.none
    return answer.producer_id, answer.producer_epoch


def test_producer_ids_are_never_given_twice(peer: Peer):
    given = [new_producer(peer) for _ in range(50)]
    assert len({producer_id for producer_id, _ in given}) == 50


def test_a_retried_batch_is_in_the_log_once(peer: Peer, topic: str):
    producer_id, epoch = new_producer(peer)
    batches = [plain(producer_id=producer_id, producer_epoch=epoch, base_sequence=3 * number) for number in range(6)]
    assert [produce(peer, topic, each).base_offset for each in batches] == [0, 3, 6, 9, 12, 15]
    for number in range(1, 6):  # the last five are remembered
        row = produce(peer, topic, batches[number])
        assert (row.error_code, row.base_offset) == (ErrorCode.none, 3 * number)
    assert end_of(peer, topic) == 18


def test_a_gap_in_the_sequence_is_refused(peer: Peer, topic: str):
    producer_id, epoch = new_producer(peer)
    assert (
        produce(peer, topic, plain(producer_id=producer_id, producer_epoch=epoch, base_sequence=0)).error_code
        == ErrorCode.none
    )
    row = produce(peer, topic, plain(producer_id=producer_id, producer_epoch=epoch, base_sequence=7))
    assert row.error_code == ErrorCode.out_of_order_sequence_number
    assert end_of(peer, topic) == 3


def test_what_came_behind_a_refused_first_batch_is_not_taken_before_it(peer: Peer):
    """Clients that trust the order of acknowledgements would take the first one for written."""
    producer_id, epoch = new_producer(peer)
    first, second = (plain(producer_id=producer_id, producer_epoch=epoch, base_sequence=number) for number in (0, 3))
    topic = f"batches-{next(NUMBERS)}"
    assert produce(peer, topic, first).error_code == ErrorCode.unknown_topic_or_partition
    create(peer, topic)
    assert produce(peer, topic, second).error_code == ErrorCode.unknown_topic_or_partition
    assert [produce(peer, topic, each).base_offset for each in (first, second)] == [0, 3]


def test_an_old_epoch_is_fenced(peer: Peer, topic: str):
    producer_id, epoch = new_producer(peer)
    assert (
        produce(peer, topic, plain(producer_id=producer_id, producer_epoch=epoch + 1, base_sequence=0)).error_code
        == ErrorCode.none
    )
    row = produce(peer, topic, plain(producer_id=producer_id, producer_epoch=epoch, base_sequence=3))
    assert row.error_code == ErrorCode.invalid_producer_epoch
    assert end_of(peer, topic) == 3
