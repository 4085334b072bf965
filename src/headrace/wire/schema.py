"""kio's message classes, read as plain descriptions of what lies on the wire.

Rules:
- The only module that looks into kio's dataclasses; `guard` and `encoder` compile from what it returns.
- A field without a default in kio's class has none in Kafka's schema either; then Kafka's own rule holds: zero, "",
  empty bytes, an empty array (also where null would be allowed), a struct of defaults, null records.
- Classes are imported when they are first needed: each costs milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import datetime, timedelta
from pkgutil import resolve_name
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

from headrace.core.errors import ProtocolError  # first: it hides Hypothesis from kio

# isort: split
from kio.schema.index import api_key_map, schema_name_map
from kio.static.constants import EntityType

Direction = Literal["request", "response"]

# What a kafka_type of fixed size is in `struct`'s letters.
FIXED: Final[dict[str, str]] = {
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float64": "d",
    "bool": "?",
    "error_code": "h",
    "timedelta_i32": "i",
    "timedelta_i64": "q",
    "datetime_i64": "q",
}
_EMPTY: Final[dict[str, Any]] = {"string": "", "bytes": b"", "uuid": None, "struct": {}}
_MILLISECOND: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class WireField:
    """One field of a struct."""

    name: str
    kind: str  # kio's kafka_type, or "struct"
    struct: type[Any] | None
    array: bool
    nullable: bool
    tag: int | None
    default: Any  # in the plain form that answers have: ints, str, bytes, tuples, mappings


def plain(value: Any) -> Any:
    """A kio value in the plain form of answers."""
    if isinstance(value, timedelta):
        return round(value / _MILLISECOND)
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return value


def wire_fields(struct: type[Any]) -> list[WireField]:
    """The fields of a kio class, in wire order."""
    return [_wire_field(field) for field in fields(struct)]


def _wire_field(field: Any) -> WireField:
    inner, nullable = _without_none(field.type)
    array = get_origin(inner) is tuple
    if array:
        inner, _ = _without_none(get_args(inner)[0])
    struct = inner if is_dataclass(inner) else None
    kind = "struct" if struct is not None else field.metadata["kafka_type"]
    if field.default is not MISSING:
        default = plain(field.default)
    elif array:
        default = ()
    elif kind == "records":
        default = None if nullable else b""
    else:
        default = _EMPTY.get(kind, 0)
    return WireField(field.name, kind, struct, array, nullable, field.metadata.get("tag"), default)  # type: ignore[arg-type]


def _without_none(kind: Any) -> tuple[Any, bool]:
    if get_origin(kind) in (UnionType, Union):
        arguments = [argument for argument in get_args(kind) if argument is not NoneType]
        assert len(arguments) == 1, f"kio grew a union: {kind}"
        return arguments[0], True
    return kind, False


def message_class(api_key: int, version: int, direction: Direction) -> type[Any]:
    """kio's class of a message. Raises ProtocolError if there is no such API or version."""
    try:
        entry = schema_name_map[api_key_map[api_key]][version]
    except KeyError:
        raise ProtocolError(f"API {api_key} has no version {version}") from None
    found: type[Any] = resolve_name(entry[EntityType.request if direction == "request" else EntityType.response])
    return found


def versions_of(api_key: int) -> list[int]:
    """All versions that kio knows of an API, newest first."""
    return sorted(schema_name_map[api_key_map[api_key]], reverse=True)


def names_at(api_key: int, direction: Direction, path: tuple[str, ...]) -> Iterator[frozenset[str]]:
    """The field names of the struct at `path` (field names from the message down) per version, newest first."""
    for version in versions_of(api_key):
        struct: type[Any] | None = message_class(api_key, version, direction)
        for step in path:
            assert struct is not None
            struct = next((field.struct for field in wire_fields(struct) if field.name == step), None)
            if struct is None:
                break
        if struct is not None:
            yield frozenset(field.name for field in fields(struct))
