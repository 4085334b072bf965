"""The Avro schema of a table, for those who have none."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import types as t

from headrace.core.errors import ConfigError

_SIMPLE: Final[dict[type, Any]] = {
    t.BooleanType: "boolean",
    t.ByteType: "int",
    t.ShortType: "int",
    t.IntegerType: "int",
    t.LongType: "long",
    t.FloatType: "float",
    t.DoubleType: "double",
    t.BinaryType: "bytes",
    t.StringType: "string",
    t.DateType: {"type": "int", "logicalType": "date"},
    t.TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
    t.TimestampNTZType: {"type": "long", "logicalType": "local-timestamp-micros"},
}


def avro_of(schema: t.StructType, name: str = "value") -> dict[str, Any]:
    """Nested records are named after their path. Raises ConfigError for what Avro cannot hold."""
    return {
        "type": "record",
        "name": name,
        "fields": [_field(each, f"{name}_{each.name}") for each in schema.fields],
    }


def _field(field: t.StructField, name: str) -> dict[str, Any]:
    kind = _type(field.dataType, name)
    return {"name": field.name, "type": ["null", kind] if field.nullable else kind}


def _type(kind: t.DataType, name: str) -> Any:
    if isinstance(kind, t.StructType):
        return avro_of(kind, name)
    if isinstance(kind, t.ArrayType):
        inner = _type(kind.elementType, name)
        return {"type": "array", "items": ["null", inner] if kind.containsNull else inner}
    if isinstance(kind, t.MapType) and isinstance(kind.keyType, t.StringType):
        inner = _type(kind.valueType, name)
        return {"type": "map", "values": ["null", inner] if kind.valueContainsNull else inner}
    if isinstance(kind, t.DecimalType):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if type(kind) in _SIMPLE:
        return _SIMPLE[type(kind)]
    raise ConfigError(f"column {name}: Avro has no type for {kind.simpleString()}")
