"""Avro records to structs and back, by fastavro, with a schema that is given.

Rules:
- Values are single records without a file's header. Confluent's five bytes (0, schema id) before them may be there:
  `wire` says "plain", "confluent" or "auto", which tries both and takes the one that leaves no byte over.
- Types become those of Spark's own Avro reader: unions with null are nullable, int and long become long, other unions
  become structs member0, member1, ...; enums and UUIDs are text; times of day are microseconds.
"""

from __future__ import annotations

import datetime
import io
import json
import struct
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import fastavro
import pyarrow as pa
from fastavro.schema import SchemaParseException
from pyspark.sql import types as t

from headrace.core.errors import ConfigError
from headrace.spark.values.codec import MisfitError, Reasons, arrow_type, decode_each
from headrace.spark.values.schemas import read_text

Wire = Literal["auto", "plain", "confluent"]
HEADER: Final = struct.Struct(">bI")

_SIMPLE: Final[dict[str, t.DataType]] = {
    "null": t.NullType(),
    "boolean": t.BooleanType(),
    "int": t.IntegerType(),
    "long": t.LongType(),
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "bytes": t.BinaryType(),
    "string": t.StringType(),
    "enum": t.StringType(),
    "fixed": t.BinaryType(),
}
_LOGICAL: Final[dict[str, t.DataType]] = {
    "date": t.DateType(),
    "timestamp-millis": t.TimestampType(),
    "timestamp-micros": t.TimestampType(),
    "local-timestamp-millis": t.TimestampNTZType(),
    "local-timestamp-micros": t.TimestampNTZType(),
    "time-millis": t.LongType(),
    "time-micros": t.LongType(),
    "uuid": t.StringType(),
}
Shape = Callable[[Any], Any] | None  # None: as it is


def avro_schema(source: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    """From a file (.avsc), text or a mapping. Raises ConfigError."""
    found: Any = source
    if isinstance(source, Path) or (isinstance(source, str) and not source.lstrip().startswith("{")):
        found = read_text(Path(source))
    try:
        parsed = fastavro.parse_schema(json.loads(found) if isinstance(found, str) else dict(found), _write_hint=False)
    except (ValueError, SchemaParseException, KeyError) as error:
        raise ConfigError(f"this is not an Avro schema: {error}") from None
    if not isinstance(parsed, dict) or parsed.get("type") not in ("record", "error"):
        raise ConfigError("an Avro schema of a record is needed")
    return parsed


class AvroDecoder:
    """See the module."""

    def __init__(self, schema: Mapping[str, Any], wire: Wire = "auto") -> None:
        self._avro = dict(schema)
        self._wire = wire
        self._schema, self._shape = _record(self._avro, {}, ())
        self._parsed: Any = None  # fastavro knows named types per process

    @property
    def schema(self) -> t.StructType:
        return self._schema

    def __getstate__(self) -> tuple[dict[str, Any], Wire]:
        return self._avro, self._wire

    def __setstate__(self, state: tuple[dict[str, Any], Wire]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def decode(self, values: pa.Array) -> tuple[pa.Array, Reasons]:
        if self._parsed is None:
            self._parsed = fastavro.parse_schema(self._avro)
        return decode_each(values.to_pylist(), self._one, arrow_type(self._schema))

    def _one(self, value: bytes) -> Any:
        headed = len(value) >= HEADER.size and value[0] == 0
        if self._wire == "confluent" and not headed:
            raise MisfitError("the value does not begin with a schema id")
        if self._wire == "confluent" or (self._wire == "auto" and headed):
            try:
                return self._read(value, HEADER.size)
            except Exception:
                if self._wire == "confluent":
                    raise
        return self._read(value, 0)

    def _read(self, value: bytes, start: int) -> Any:
        stream = io.BytesIO(value)
        stream.seek(start)
        try:
            found = fastavro.schemaless_reader(stream, self._parsed, None)
        except (EOFError, IndexError):
            raise MisfitError("the value ends in the middle of the record") from None
        if stream.tell() != len(value):
            raise MisfitError(f"{len(value) - stream.tell()} bytes are left over after the record")
        return found if self._shape is None else self._shape(found)


class AvroEncoder:
    """Structs to records; with `schema_id` after Confluent's header."""

    def __init__(self, schema: Mapping[str, Any], schema_id: int | None = None) -> None:
        self._avro = dict(schema)
        self._head = b"" if schema_id is None else HEADER.pack(0, schema_id)

    def encode(self, rows: pa.RecordBatch) -> pa.Array:
        schema = fastavro.parse_schema(self._avro)
        found = []
        for row in rows.to_pylist(maps_as_pydicts="strict"):
            stream = io.BytesIO()
            stream.write(self._head)
            fastavro.schemaless_writer(stream, schema, row)
            found.append(stream.getvalue())
        return pa.array(found, pa.binary())


def _record(schema: Mapping[str, Any], named: dict[str, Any], path: tuple[str, ...]) -> tuple[t.StructType, Shape]:
    name = schema["name"]
    if name in path:
        raise ConfigError(f"Avro type {name} contains itself; a table cannot")
    fields, shapes = [], {}
    for each in schema["fields"]:
        kind, shape, can_be_null = _type(each["type"], named, (*path, name))
        fields.append(t.StructField(each["name"], kind, can_be_null))
        if shape is not None:
            shapes[each["name"]] = shape
    if not shapes:
        return t.StructType(fields), None

    def reshape(found: Any) -> Any:
        for each, shape in shapes.items():
            if found[each] is not None:
                found[each] = shape(found[each])
        return found

    return t.StructType(fields), reshape


def _type(schema: Any, named: dict[str, Any], path: tuple[str, ...]) -> tuple[t.DataType, Shape, bool]:
    """Spark's type, how to reshape what fastavro gives, and whether it can be null."""
    if isinstance(schema, list):
        return _union(schema, named, path)
    if isinstance(schema, str):
        if schema in named:
            return _type(named[schema], named, path)
        if schema in path:
            raise ConfigError(f"Avro type {schema} contains itself; a table cannot")
        if schema not in _SIMPLE:
            raise ConfigError(f"Avro type {schema!r} is not known")
        return _SIMPLE[schema], None, schema == "null"
    if "name" in schema:
        named[schema["name"]] = schema
    kind = schema["type"]
    if not isinstance(kind, str):
        return _type(kind, named, path)
    logical = schema.get("logicalType")
    if logical == "decimal":
        return t.DecimalType(schema["precision"], schema.get("scale", 0)), None, False
    if logical in _LOGICAL:
        return _LOGICAL[logical], _LOGICAL_SHAPES.get(logical), False
    if kind in ("record", "error"):
        return *_record(schema, named, path), False
    if kind == "array":
        inner, shape, can_be_null = _type(schema["items"], named, path)
        return t.ArrayType(inner, can_be_null), _each(shape), False
    if kind == "map":
        inner, shape, can_be_null = _type(schema["values"], named, path)
        return t.MapType(t.StringType(), inner, can_be_null), _pairs(shape), False
    return _type(kind, {}, path) if kind in _SIMPLE else _type(kind, named, path)


def _union(schema: list[Any], named: dict[str, Any], path: tuple[str, ...]) -> tuple[t.DataType, Shape, bool]:
    members = [each for each in schema if each != "null"]
    if not members:
        return t.NullType(), None, True
    found = [_type(each, named, path) for each in members]
    has_null = len(members) < len(schema)
    if len(found) == 1:
        return found[0][0], found[0][1], has_null
    if set(members[0:2]) == {"int", "long"} and len(members) == 2:
        return t.LongType(), None, has_null
    if set(members[0:2]) == {"float", "double"} and len(members) == 2:
        return t.DoubleType(), None, has_null
    kinds = [kind for kind, _, _ in found]
    fields = [t.StructField(f"member{index}", kind, True) for index, kind in enumerate(kinds)]
    return t.StructType(fields), _member(kinds, [shape for _, shape, _ in found]), has_null


def _member(kinds: list[t.DataType], shapes: list[Shape]) -> Shape:
    """fastavro does not say which member it read: the first whose Python type is right."""
    wanted = [_PYTHON.get(type(kind), (dict,)) for kind in kinds]

    def choose(found: Any) -> Any:
        for index, (types, shape) in enumerate(zip(wanted, shapes, strict=True)):
            if type(found) in types:
                return {f"member{index}": found if shape is None else shape(found)}
        raise MisfitError(f"no member of the union takes a {type(found).__name__}")

    return choose


_PYTHON: Final[dict[type, tuple[type, ...]]] = {
    t.BooleanType: (bool,),
    t.IntegerType: (int,),
    t.LongType: (int, datetime.time),
    t.FloatType: (float,),
    t.DoubleType: (float,),
    t.BinaryType: (bytes,),
    t.StringType: (str, uuid.UUID),
    t.ArrayType: (list,),
    t.DateType: (datetime.date,),
    t.TimestampType: (datetime.datetime,),
    t.TimestampNTZType: (datetime.datetime,),
}


def _each(shape: Shape) -> Shape:
    if shape is None:
        return None
    return lambda found: [None if each is None else shape(each) for each in found]


def _pairs(shape: Shape) -> Shape:
    """Arrow takes maps as pairs."""
    if shape is None:
        return lambda found: list(found.items())
    return lambda found: [(key, None if each is None else shape(each)) for key, each in found.items()]


def _microseconds(found: datetime.time) -> int:
    return ((found.hour * 60 + found.minute) * 60 + found.second) * 1_000_000 + found.microsecond


_LOGICAL_SHAPES: Final[dict[str, Shape]] = {"time-millis": _microseconds, "time-micros": _microseconds, "uuid": str}
