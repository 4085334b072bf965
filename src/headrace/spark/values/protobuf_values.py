"""Protobuf messages to structs and back, with a set of descriptors and a message's name.

Rules:
- The set is what `protoc --include_imports --descriptor_set_out` writes.
- Types become those of Spark's own reader: uint32 is long, uint64 decimal(20,0), enums are text (an unknown one its
  number), Timestamp is timestamp. A field that knows presence is null when absent; others have their default.
- Confluent's header (0, schema id, message indexes) may be there: `wire` is as for Avro. Any bytes may parse as a
  message of some kind, so "auto" takes a header only if what follows parses without unknown fields.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, unknown_fields
from google.protobuf.message import DecodeError
from pyspark.sql import types as t

from headrace.core.errors import ConfigError
from headrace.spark.values.avro_values import HEADER, Wire
from headrace.spark.values.codec import MisfitError, Reasons, arrow_type, decode_each
from headrace.spark.values.schemas import read_bytes

_TIMESTAMP: Final = "google.protobuf.Timestamp"
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_F: Final = descriptor_pb2.FieldDescriptorProto
_SIMPLE: Final[dict[int, t.DataType]] = {
    _F.TYPE_DOUBLE: t.DoubleType(),
    _F.TYPE_FLOAT: t.FloatType(),
    _F.TYPE_INT64: t.LongType(),
    _F.TYPE_SINT64: t.LongType(),
    _F.TYPE_SFIXED64: t.LongType(),
    _F.TYPE_UINT64: t.DecimalType(20, 0),
    _F.TYPE_FIXED64: t.DecimalType(20, 0),
    _F.TYPE_INT32: t.IntegerType(),
    _F.TYPE_SINT32: t.IntegerType(),
    _F.TYPE_SFIXED32: t.IntegerType(),
    _F.TYPE_UINT32: t.LongType(),
    _F.TYPE_FIXED32: t.LongType(),
    _F.TYPE_BOOL: t.BooleanType(),
    _F.TYPE_STRING: t.StringType(),
    _F.TYPE_BYTES: t.BinaryType(),
    _F.TYPE_ENUM: t.StringType(),
}


@cache
def message_class(descriptors: bytes, name: str) -> Any:
    """Raises ConfigError."""
    pool = descriptor_pool.DescriptorPool()
    try:
        for each in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
            pool.Add(each)
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except DecodeError:
        raise ConfigError("the schema is not a set of Protobuf descriptors") from None
    except (KeyError, TypeError) as error:
        raise ConfigError(f"the set of descriptors has no message {name!r}: {error}") from None


def descriptors_of(source: str | Path | bytes) -> bytes:
    return source if isinstance(source, bytes) else read_bytes(Path(source))


class ProtobufDecoder:
    """See the module."""

    def __init__(self, descriptors: bytes, name: str, wire: Wire = "auto") -> None:
        self._state = descriptors, name, wire
        self._class = message_class(descriptors, name)
        self._schema = _struct(self._class.DESCRIPTOR, ())
        self._to_row = _reader(self._class.DESCRIPTOR)

    @property
    def schema(self) -> t.StructType:
        return self._schema

    def __reduce__(self) -> Any:
        return ProtobufDecoder, self._state

    def decode(self, values: pa.Array) -> tuple[pa.Array, Reasons]:
        return decode_each(values.to_pylist(), self._one, arrow_type(self._schema))

    def _one(self, value: bytes) -> Any:
        wire = self._state[2]
        if wire != "plain":
            start = _after_header(value)
            if start is None and wire == "confluent":
                raise MisfitError("the value does not begin with a schema id and message indexes")
            if start is not None:
                try:
                    message = self._parse(value[start:])
                    if wire == "confluent" or not len(unknown_fields.UnknownFieldSet(message)):
                        return self._to_row(message)
                except MisfitError:
                    if wire == "confluent":
                        raise
        return self._to_row(self._parse(value))

    def _parse(self, value: bytes) -> Any:
        try:
            message = self._class.FromString(value)
        except DecodeError:
            raise MisfitError(f"not a {self._state[1]} message") from None
        if not message.IsInitialized():
            raise MisfitError(f"required fields are missing: {', '.join(message.FindInitializationErrors())}")
        return message


class ProtobufEncoder:
    """Structs to messages. A null leaves its field out."""

    def __init__(self, descriptors: bytes, name: str, schema_id: int | None = None) -> None:
        self._state = descriptors, name, schema_id
        self._class = message_class(descriptors, name)
        # One zero byte: the first message of its file, as Confluent abbreviates it.
        self._head = b"" if schema_id is None else HEADER.pack(0, schema_id) + b"\x00"

    def __reduce__(self) -> Any:
        return ProtobufEncoder, self._state

    def encode(self, rows: pa.RecordBatch) -> pa.Array:
        found = []
        for row in rows.to_pylist(maps_as_pydicts="strict"):
            message = self._class()
            _fill(message, row, self._state[1])
            found.append(self._head + message.SerializeToString(deterministic=True))
        return pa.array(found, pa.binary())


def _after_header(value: bytes) -> int | None:
    """Where the message begins behind Confluent's header; None if there is none."""
    if len(value) <= HEADER.size or value[0] != 0:
        return None
    at = HEADER.size
    count, at = _varint(value, at)
    for _ in range(count):
        if at < 0:
            return None
        _, at = _varint(value, at)
    return None if at < 0 or not 0 <= count <= 32 else at


def _varint(value: bytes, at: int) -> tuple[int, int]:
    """A zigzag varint and the place behind it; -1 for the place if it is cut off."""
    found = shift = 0
    while at < len(value) and shift < 35:
        byte = value[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1), at
        shift += 7
    return 0, -1


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _struct(descriptor: Any, path: tuple[str, ...]) -> t.StructType:
    if descriptor.full_name in path:
        raise ConfigError(f"Protobuf message {descriptor.full_name} contains itself; a table cannot")
    below = (*path, descriptor.full_name)
    return t.StructType([t.StructField(each.name, _type(each, below), True) for each in descriptor.fields])


def _type(field: Any, path: tuple[str, ...]) -> t.DataType:
    if _is_map(field):
        key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        return t.MapType(_SIMPLE[key.type], _single(value, path), True)
    kind = _single(field, path)
    return t.ArrayType(kind, False) if field.is_repeated else kind


def _single(field: Any, path: tuple[str, ...]) -> t.DataType:
    if field.message_type is None:
        return _SIMPLE[field.type]
    if field.message_type.full_name == _TIMESTAMP:
        return t.TimestampType()
    return _struct(field.message_type, path)


def _reader(descriptor: Any) -> Callable[[Any], dict[str, Any]]:
    """A function from a message to what Arrow takes for its struct."""
    fields = [(each.name, each.has_presence and not each.is_repeated, _value_of(each)) for each in descriptor.fields]

    def read(message: Any) -> dict[str, Any]:
        return {
            name: None if optional and not message.HasField(name) else convert(getattr(message, name))
            for name, optional, convert in fields
        }

    return read


def _value_of(field: Any) -> Callable[[Any], Any]:
    if _is_map(field):
        one = _one_of(field.message_type.fields_by_name["value"])
        return lambda found: [(key, one(found[key])) for key in found]
    one = _one_of(field)
    return (lambda found: [one(each) for each in found]) if field.is_repeated else one


def _one_of(field: Any) -> Callable[[Any], Any]:
    if field.enum_type is not None:
        names = {each.number: each.name for each in field.enum_type.values}
        return lambda number: names.get(number, str(number))
    if field.message_type is None:
        return lambda found: found
    if field.message_type.full_name == _TIMESTAMP:
        return lambda found: _EPOCH + datetime.timedelta(seconds=found.seconds, microseconds=found.nanos // 1000)
    return _reader(field.message_type)


def _fill(message: Any, row: dict[str, Any], path: str) -> None:
    fields = message.DESCRIPTOR.fields_by_name
    for name, value in row.items():
        field = fields.get(name)
        if field is None:
            raise MisfitError(f"message {path} has no field {name!r}")
        if value is None:
            continue
        try:
            _set(message, field, value)
        except (TypeError, ValueError) as error:
            raise MisfitError(f"{path}.{name} cannot be {value!r}: {error}") from None


def _set(message: Any, field: Any, value: Any) -> None:
    place = getattr(message, field.name)
    if _is_map(field):
        inner = field.message_type.fields_by_name["value"]
        for key, each in value.items():
            if inner.message_type is None:
                place[key] = _scalar(inner, each)
            else:
                _fill_message(place[key], each)
    elif field.message_type is None:
        if field.is_repeated:
            place.extend(_scalar(field, each) for each in value)
        else:
            setattr(message, field.name, _scalar(field, value))
    elif field.is_repeated:
        for each in value:
            _fill_message(place.add(), each)
    else:
        place.SetInParent()
        _fill_message(place, value)


def _fill_message(message: Any, value: Any) -> None:
    if message.DESCRIPTOR.full_name == _TIMESTAMP:
        moment = value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
        message.FromDatetime(moment)
    else:
        _fill(message, value, message.DESCRIPTOR.name)


def _scalar(field: Any, value: Any) -> Any:
    if field.enum_type is not None and isinstance(value, str):
        found = field.enum_type.values_by_name.get(value)
        if found is not None:
            return found.number
    if field.type in (_F.TYPE_UINT64, _F.TYPE_FIXED64) or field.enum_type is not None:
        return int(value)
    return value
