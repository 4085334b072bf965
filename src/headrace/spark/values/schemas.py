"""Schemas from wherever people keep them: Spark's own, DDL, a JSON Schema, a file.

A file is known by its ending: .ddl, .sql or .txt hold DDL; .json holds Spark's schema as JSON or a JSON Schema;
.avsc holds Avro; Protobuf's sets of descriptors may be called as one likes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pyspark.sql import types as t

from headrace.core.errors import ConfigError

Source = t.StructType | str | Path | Mapping[str, Any]

_DDL_ENDINGS: Final = (".ddl", ".sql", ".txt")
_SCALARS: Final[dict[str, t.DataType]] = {
    "string": t.StringType(),
    "integer": t.LongType(),
    "number": t.DoubleType(),
    "boolean": t.BooleanType(),
}
_FORMATS: Final[dict[str, t.DataType]] = {"date-time": t.TimestampType(), "date": t.DateType()}


def struct_of(source: Source) -> t.StructType:
    """The schema of JSON values. Raises ConfigError."""
    if isinstance(source, t.StructType):
        return source
    if isinstance(source, Mapping):
        return _from_mapping(source)
    path = Path(source)
    if isinstance(source, Path) or path.suffix.lower() in (*_DDL_ENDINGS, ".json"):
        text = read_text(path)
        return _from_ddl(text) if path.suffix.lower() in _DDL_ENDINGS else _from_mapping(_loads(text, str(path)))
    text = str(source).strip()
    return _from_mapping(_loads(text, "the schema")) if text.startswith("{") else _from_ddl(text)


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read schema {path}: {error}") from None


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read schema {path}: {error}") from None


def _loads(text: str, where: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{where} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{where} must be a JSON object")
    return found


def _from_ddl(text: str) -> t.StructType:
    from pyspark.errors import PySparkException

    try:
        found = t.DataType.fromDDL(" ".join(text.split()))
    except PySparkException as error:
        raise ConfigError(f"schema {text!r} is not DDL such as 'id bigint, name string': {error}") from None
    if not isinstance(found, t.StructType):
        raise ConfigError(f"schema {text!r} must have named fields")
    return found


def _from_mapping(found: Mapping[str, Any]) -> t.StructType:
    if found.get("type") == "struct":
        return t.StructType.fromJson(dict(found))
    kind = _of_json_schema(found, "the schema")
    if not isinstance(kind, t.StructType):
        raise ConfigError("the schema must describe an object with properties")
    return kind


def _of_json_schema(found: Any, path: str) -> t.DataType:
    """The part of JSON Schema that says what columns are. Raises ConfigError for the rest."""
    if not isinstance(found, Mapping):
        raise ConfigError(f"{path}: a JSON Schema is needed, not {found!r}")
    kinds = found.get("type", "object" if "properties" in found else None)
    names = [name for name in (kinds if isinstance(kinds, list) else [kinds]) if name != "null"]
    if len(names) != 1:
        raise ConfigError(f"{path}: one type is needed, not {kinds!r}")
    name = names[0]
    if name == "object" and "properties" in found:
        required = set(found.get("required", ()))
        return t.StructType(
            [
                t.StructField(each, _of_json_schema(inner, f"{path}.{each}"), each not in required or _is_null(inner))
                for each, inner in found["properties"].items()
            ]
        )
    if name == "object":
        inner = found.get("additionalProperties")
        return t.MapType(t.StringType(), _of_json_schema(inner, path) if isinstance(inner, Mapping) else t.StringType())
    if name == "array":
        return t.ArrayType(_of_json_schema(found.get("items"), f"{path}[]"))
    if name == "string" and found.get("format") in _FORMATS:
        return _FORMATS[found["format"]]
    if name in _SCALARS:
        return _SCALARS[name]
    raise ConfigError(f"{path}: type {name!r} is not known")


def _is_null(found: Mapping[str, Any]) -> bool:
    kinds = found.get("type")
    return isinstance(kinds, list) and "null" in kinds
