"""Codecs without a session: what fits, what does not, and why."""

from __future__ import annotations

import datetime
import decimal
import io
import json
import pickle
import uuid
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t

from headrace.core.errors import ConfigError
from headrace.spark.values.avro_of_spark import avro_of
from headrace.spark.values.avro_values import HEADER, AvroDecoder, AvroEncoder, avro_schema
from headrace.spark.values.codec import DecodeColumn
from headrace.spark.values.json_values import JsonDecoder
from headrace.spark.values.protobuf_values import ProtobufDecoder, ProtobufEncoder
from headrace.spark.values.schemas import struct_of

UTC = datetime.UTC


def struct(**fields: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in fields.items()])


ORDER = struct(
    id=t.LongType(),
    name=t.StringType(),
    amount=t.DoubleType(),
    paid=t.BooleanType(),
    lines=t.ArrayType(struct(sku=t.StringType(), count=t.IntegerType())),
)


def decoded(decoder: Any, *values: bytes) -> list[Any]:
    """Rows, or reasons."""
    decoder = pickle.loads(pickle.dumps(decoder))  # as it travels to a task
    rows, reasons = decoder.decode(pa.array(values, pa.binary()))
    assert len(rows) == len(reasons) == len(values)
    assert [row is None for row in rows.to_pylist()] == [reason is not None for reason in reasons]
    return [reason or row for row, reason in zip(rows.to_pylist(maps_as_pydicts="strict"), reasons, strict=True)]


# ---------------------------------------------------------------------------------------------- JSON


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"id":"x"}', "id must be a whole number of 64 bits, not text"),
        (b'{"id":1.5}', "id must be a whole number of 64 bits, not 1.5"),
        (b'{"id":9223372036854775808}', "id must be a whole number of 64 bits, not 9223372036854775808"),
        (b'{"lines":[{"count":1},{"count":2147483648}]}', "lines[1].count must be a whole number of 32 bits"),
        (b'{"name":1}', "name must be text, not 1"),
        (b'{"paid":"yes"}', "paid must be true or false, not text"),
        (b'{"lines":{}}', "lines must be an array, not an object"),
        (b"[]", "the record must be an object, not an array"),
        (b"null", "the record must be an object, not null"),
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'{"id":1}{"id":2}', "not JSON"),
        (b'{"id":1},"v":{"id":2}', "not JSON"),
        (b'{"id":1} x', "not JSON"),
        (b'{"amount":NaN}', "not JSON"),
        (b'{"name":"\xff"}', "not JSON"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_json_that_does_not_fit_has_a_reason_among_many_and_alone(value: bytes, reason: str) -> None:
    good = b'{"id":1,"other":[{}]}'
    expected = {"id": 1, "name": None, "amount": None, "paid": None, "lines": None}
    alone = decoded(JsonDecoder(ORDER), value)
    assert alone[0].startswith(reason)
    found = decoded(JsonDecoder(ORDER), *[good] * 50, value, *[good] * 50)
    assert found == [expected] * 50 + alone + [expected] * 50


BROKEN = st.sampled_from(
    [b"", b"{", b"}", b"x", b'{"id":', b"1}", b'"', b"{}{}", b"},{", b'{"id":1}\n{"id":2}', b" \n "]
)
WHOLE = st.fixed_dictionaries(
    {},
    optional={
        "id": st.integers(-(2**63), 2**63 - 1) | st.none(),
        "name": st.text() | st.none(),
        "amount": st.floats(allow_nan=False, allow_infinity=False) | st.none(),
        "paid": st.booleans() | st.none(),
        "lines": st.lists(
            st.fixed_dictionaries({"sku": st.text(), "count": st.integers(-(2**31), 2**31 - 1)}), max_size=3
        ),
        "extra": st.lists(st.integers()) | st.text(),
    },
)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(WHOLE.map(lambda found: json.dumps(found, ensure_ascii=False).encode()) | BROKEN, min_size=33, max_size=60)
)
def test_json_gives_the_same_at_once_and_one_by_one(values: list[bytes]) -> None:
    values = [value for value in values if b"\\ud" not in value]
    together = decoded(JsonDecoder(ORDER), *values)
    assert together == [decoded(JsonDecoder(ORDER), value)[0] for value in values]


def test_json_of_every_type() -> None:
    schema = struct(
        day=t.DateType(),
        at=t.TimestampType(),
        local=t.TimestampNTZType(),
        price=t.DecimalType(10, 2),
        raw=t.BinaryType(),
        tags=t.MapType(t.StringType(), t.IntegerType()),
        small=t.ByteType(),
    )
    good = b"""{"day":"2025-01-31","at":"2025-01-31T12:00:00+02:00","local":"2025-01-31T12:00:00","price":12.5,
        "raw":"aGk=","tags":{"a":1,"b":null},"small":-128}"""
    assert decoded(JsonDecoder(schema), good) == [
        {
            "day": datetime.date(2025, 1, 31),
            "at": datetime.datetime(2025, 1, 31, 10, tzinfo=UTC),
            "local": datetime.datetime(2025, 1, 31, 12),
            "price": decimal.Decimal("12.50"),
            "raw": b"hi",
            "tags": {"a": 1, "b": None},
            "small": -128,
        }
    ]
    bad = [
        b'{"day":"31.1.2025"}',
        b'{"at":5}',
        b'{"price":"1.005"}',
        b'{"price":1e20}',
        b'{"raw":"?"}',
        b'{"small":128}',
    ]
    assert [reason.split(" must")[0] for reason in decoded(JsonDecoder(schema), *bad)] == [
        "day", "at", "price", "price", "raw", "small",
    ]  # fmt: skip


def test_a_required_field_that_is_missing_does_not_fit() -> None:
    schema = t.StructType([t.StructField("id", t.LongType(), False), t.StructField("name", t.StringType())])
    assert decoded(JsonDecoder(schema), b'{"id":1}', b'{"name":"x"}', b'{"id":null}') == [
        {"id": 1, "name": None},
        "id is missing",
        "id is missing",
    ]


def test_a_type_that_json_cannot_have_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="field a.b: values of type"):
        JsonDecoder(struct(a=struct(b=t.DayTimeIntervalType())))


# ---------------------------------------------------------------------------------------------- schemas


def test_a_json_schema_becomes_columns(tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "required": ["id", "note"],
        "properties": {
            "id": {"type": "integer"},
            "note": {"type": ["string", "null"]},
            "at": {"type": "string", "format": "date-time"},
            "lines": {"type": "array", "items": {"type": "object", "properties": {"price": {"type": "number"}}}},
            "labels": {"type": "object", "additionalProperties": {"type": "boolean"}},
        },
    }
    path = tmp_path / "order.json"
    path.write_text(json.dumps(schema))
    found = struct_of(path)
    assert found == struct_of(schema) == struct_of(json.dumps(schema)) == struct_of(str(path))
    assert found.simpleString() == (
        "struct<id:bigint,note:string,at:timestamp,lines:array<struct<price:double>>,labels:map<string,boolean>>"
    )
    assert [field.nullable for field in found.fields] == [False, True, True, True, True]
    path.write_text(ORDER.json())
    assert struct_of(path) == ORDER


def test_a_bad_schema_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read schema .*nowhere.json"):
        struct_of(tmp_path / "nowhere.json")
    with pytest.raises(ConfigError, match=r"the schema.a: one type is needed"):
        struct_of({"properties": {"a": {"type": ["string", "integer"]}}})


# ---------------------------------------------------------------------------------------------- Avro

AVRO = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "before", "type": ["null", "State"]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "clock", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "ref", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
        {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [
            {"name": "sku", "type": "string"}]}}},
        {"name": "either", "type": ["null", "long", "string"]},
    ],
}  # fmt: skip
AVRO_ROW = {
    "id": 7,
    "name": None,
    "state": "PAID",
    "before": "NEW",
    "price": decimal.Decimal("12.50"),
    "at": datetime.datetime(2025, 1, 31, 12, tzinfo=UTC),
    "clock": datetime.time(0, 0, 1),
    "ref": uuid.UUID(int=5),
    "tags": {"a": 1},
    "lines": [{"sku": "s"}],
    "either": "text",
}
AVRO_FOUND = {
    **AVRO_ROW,
    "clock": 1_000_000,
    "ref": str(uuid.UUID(int=5)),
    "either": {"member0": None, "member1": "text"},
}


def avro(row: dict[str, Any], schema: Any = AVRO) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), row)
    return stream.getvalue()


def test_avro_is_read_with_and_without_confluents_header() -> None:
    plain = avro(AVRO_ROW)
    headed = HEADER.pack(0, 1234) + plain
    assert decoded(AvroDecoder(avro_schema(AVRO)), plain, headed) == [AVRO_FOUND, AVRO_FOUND]
    plainly = decoded(AvroDecoder(avro_schema(AVRO), "plain"), plain, headed)
    assert plainly[0] == AVRO_FOUND
    assert isinstance(plainly[1], str)
    strictly = decoded(AvroDecoder(avro_schema(AVRO), "confluent"), plain, headed)
    assert strictly == ["the value does not begin with a schema id", AVRO_FOUND]


def test_avro_that_does_not_fit_has_a_reason() -> None:
    plain = avro(AVRO_ROW)
    short, long, empty, garbage = decoded(AvroDecoder(avro_schema(AVRO)), plain[:-3], plain + b"!", b"", b"\xff" * 20)
    assert "ends in the middle" in short
    assert long == "1 bytes are left over after the record"
    assert "ends in the middle" in empty
    assert isinstance(garbage, str)


@pytest.mark.parametrize("cut", range(0, 40, 3))
def test_avro_that_is_cut_anywhere_never_raises(cut: int) -> None:
    assert isinstance(decoded(AvroDecoder(avro_schema(AVRO)), avro(AVRO_ROW)[:cut])[0], str)


def test_avro_is_written_as_it_is_read() -> None:
    schema = struct(id=t.LongType(), tags=t.MapType(t.StringType(), t.LongType()), inner=struct(at=t.TimestampType()))
    rows = [
        {"id": 1, "tags": {"a": 2}, "inner": {"at": datetime.datetime(2025, 1, 1, tzinfo=UTC)}},
        dict.fromkeys(("id", "tags", "inner")),
    ]
    kind = pa.schema(
        [
            ("id", pa.int64()),
            ("tags", pa.map_(pa.string(), pa.int64())),
            ("inner", pa.struct([("at", pa.timestamp("us", "UTC"))])),
        ]
    )
    table = pa.RecordBatch.from_pylist([{**rows[0], "tags": [("a", 2)]}, rows[1]], kind)
    written = AvroEncoder(avro_of(schema), schema_id=9).encode(table).to_pylist()
    assert written[0].startswith(b"\x00\x00\x00\x00\x09")
    assert decoded(AvroDecoder(avro_schema(avro_of(schema)), "confluent"), *written) == rows


def test_avro_that_contains_itself_is_refused() -> None:
    tree = {"type": "record", "name": "Tree", "fields": [{"name": "left", "type": ["null", "Tree"]}]}
    with pytest.raises(ConfigError, match="Tree contains itself"):
        AvroDecoder(avro_schema(tree))
    with pytest.raises(ConfigError, match="not an Avro schema"):
        avro_schema('{"type": "record"}')


# ---------------------------------------------------------------------------------------------- Protobuf


def descriptors() -> bytes:
    """What protoc would write for a small file; there is no protoc here."""
    from google.protobuf import timestamp_pb2

    file = descriptor_pb2.FileDescriptorProto(
        name="order.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    one, many = 1, 3
    line = file.message_type.add(name="Line")
    line.field.add(name="sku", number=1, type=9, label=one)
    order = file.message_type.add(name="Order")
    entry = order.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=9, label=one)
    entry.field.add(name="value", number=2, type=5, label=one)
    state = file.enum_type.add(name="State")
    state.value.add(name="NEW", number=0)
    state.value.add(name="PAID", number=1)
    order.oneof_decl.add(name="_note")
    order.field.add(name="id", number=1, type=3, label=one)
    order.field.add(name="note", number=2, type=9, label=one, oneof_index=0, proto3_optional=True)
    order.field.add(name="state", number=3, type=14, type_name=".shop.State", label=one)
    order.field.add(name="lines", number=4, type=11, type_name=".shop.Line", label=many)
    order.field.add(name="tags", number=5, type=11, type_name=".shop.Order.TagsEntry", label=many)
    order.field.add(name="at", number=6, type=11, type_name=".google.protobuf.Timestamp", label=one)
    order.field.add(name="big", number=7, type=4, label=one)
    order.field.add(name="raw", number=8, type=12, label=one)
    tree = file.message_type.add(name="Tree")
    tree.field.add(name="left", number=1, type=11, type_name=".shop.Tree", label=one)
    timestamp = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(timestamp)
    return descriptor_pb2.FileDescriptorSet(file=[timestamp, file]).SerializeToString()


PROTO_ROW = {
    "id": 7,
    "note": None,
    "state": "PAID",
    "lines": [{"sku": "s"}, {"sku": ""}],
    "tags": {"a": 1},
    "at": datetime.datetime(2025, 1, 31, 12, 0, 0, 5, tzinfo=UTC),
    "big": decimal.Decimal(2**64 - 1),
    "raw": b"\x00",
}


def proto_rows() -> pa.RecordBatch:
    schema = pa.schema(
        [
            ("id", pa.int64()), ("note", pa.string()), ("state", pa.string()),
            ("lines", pa.list_(pa.struct([("sku", pa.string())]))), ("tags", pa.map_(pa.string(), pa.int32())),
            ("at", pa.timestamp("us", "UTC")), ("big", pa.decimal128(20, 0)), ("raw", pa.binary()),
        ]
    )  # fmt: skip
    return pa.RecordBatch.from_pylist([{**PROTO_ROW, "tags": [("a", 1)]}], schema)


def test_protobuf_is_written_as_it_is_read() -> None:
    plain = ProtobufEncoder(descriptors(), "shop.Order").encode(proto_rows()).to_pylist()[0]
    headed = (
        pickle.loads(pickle.dumps(ProtobufEncoder(descriptors(), "shop.Order", 5))).encode(proto_rows()).to_pylist()[0]
    )
    assert headed == b"\x00\x00\x00\x00\x05\x00" + plain
    assert decoded(ProtobufDecoder(descriptors(), "shop.Order"), plain, headed) == [PROTO_ROW, PROTO_ROW]
    indexed = headed[:5] + b"\x02\x00" + plain  # one index, 0, written out
    assert decoded(ProtobufDecoder(descriptors(), "shop.Order", "confluent"), indexed) == [PROTO_ROW]
    assert decoded(ProtobufDecoder(descriptors(), "shop.Order"), b"")[0]["id"] == 0


def test_protobuf_that_does_not_fit_has_a_reason() -> None:
    assert decoded(ProtobufDecoder(descriptors(), "shop.Order"), b"\xff\xff", b"\x0a\x05ab") == [
        "not a shop.Order message",
        "not a shop.Order message",
    ]
    with pytest.raises(ConfigError, match=r"no message 'shop.Nothing'"):
        ProtobufDecoder(descriptors(), "shop.Nothing")
    with pytest.raises(ConfigError, match="contains itself"):
        ProtobufDecoder(descriptors(), "shop.Tree")
    with pytest.raises(ConfigError, match="not a set of Protobuf descriptors"):
        ProtobufDecoder(b"\xff", "shop.Order")


# ---------------------------------------------------------------------------------------------- columns


def test_nulls_and_misfits_keep_their_places() -> None:
    values = [None, b'{"id":1}', b"x", None, b'{"id":2}']
    batch = pa.record_batch([pa.array(range(5)), pa.array(values, pa.binary())], names=["n", "value"])
    add = DecodeColumn(JsonDecoder(struct(id=t.LongType())), "value", "_decoded", "_error")
    [found] = list(add(iter([batch])))
    assert found.column("_decoded").to_pylist() == [None, {"id": 1}, None, None, {"id": 2}]
    assert [reason is None for reason in found.column("_error").to_pylist()] == [True, True, False, True, True]
    assert found.column("n").to_pylist() == [0, 1, 2, 3, 4]
