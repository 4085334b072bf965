"""The shape of JSON values, from a sample. Pure.

Rules: whole numbers are long, numbers with a point double (and long with double is double); what disagrees is string;
null says nothing. Names that differ only in case are one field: Spark would not tell them apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

Shape = Any  # "null", "boolean", "long", "double", "string", ("array", Shape) or a dict of fields


def shape_of(values: Iterable[bytes | None], *, mostly: bool = True) -> dict[str, Shape] | None:
    """The fields of JSON objects; None if there are none, or (`mostly`) if as many values are something else."""
    found: dict[str, Shape] = {}
    objects = others = 0
    for value in values:
        if value is None:
            continue
        try:
            document = msgspec.json.decode(value)
        except msgspec.DecodeError:
            document = None
        if isinstance(document, dict):
            objects += 1
            found = _merged(found, _shape(document))
        else:
            others += 1
    return found if objects > (others if mostly else 0) else None


def ddl_of(shape: dict[str, Shape]) -> str:
    """A shape as Spark's DDL."""
    return ", ".join(f"`{name.replace('`', '``')}` {_kind(kind)}" for name, kind in shape.items())


def _shape(value: Any) -> Shape:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "long" if -(1 << 63) <= value < 1 << 63 else "double"
    if isinstance(value, float):
        return "double"
    if isinstance(value, str):
        return "string"
    if isinstance(value, list):
        inner: Shape = "null"
        for each in value:
            inner = _merged(inner, _shape(each))
        return ("array", inner)
    fields: dict[str, Shape] = {}
    for name, each in value.items():
        fields = _merged(fields, {name: _shape(each)})
    return fields


def _merged(one: Shape, two: Shape) -> Shape:
    if one == two or two == "null":
        return one
    if one == "null":
        return two
    if isinstance(one, dict) and isinstance(two, dict):
        names = {name.lower(): name for name in one}
        found = dict(one)
        for name, kind in two.items():
            known = names.setdefault(name.lower(), name)
            found[known] = _merged(found.get(known, "null"), kind)
        return found
    if isinstance(one, tuple) and isinstance(two, tuple):
        return ("array", _merged(one[1], two[1]))
    if {str(one), str(two)} == {"long", "double"}:
        return "double"
    return "string"


def _kind(shape: Shape) -> str:
    if isinstance(shape, tuple):
        return f"array<{_kind(shape[1])}>"
    if isinstance(shape, dict):
        inner = ", ".join(f"`{name.replace('`', '``')}`: {_kind(kind)}" for name, kind in shape.items())
        return f"struct<{inner}>" if inner else "string"
    return "string" if shape == "null" else str(shape)
