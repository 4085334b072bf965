"""The shape of JSON values, from a sample. Pure.

Rules: whole numbers are long, numbers with a point double (and long with double is double); null says nothing. Where
values disagree, the field is string, which holds them all; or, for who asks for that, what most of them are, and the
others will be null. Names that differ only in case are one field: Spark would not tell them apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

Shape = Any  # "null", "boolean", "long", "double", "string", ("array", Shape) or a dict of fields
ARRAY, OBJECT = "array", "object"


@dataclass(slots=True)
class _Seen:
    """What was seen in one place of the documents: how often each kind, and what is inside."""

    kinds: Counter[str] = field(default_factory=Counter)
    elements: _Seen | None = None
    fields: dict[str, tuple[str, _Seen]] = field(default_factory=dict)  # by name in lower case

    def add(self, value: Any) -> None:
        kind = _kind_of(value)
        if kind is None:
            return
        self.kinds[kind] += 1
        if kind == ARRAY:
            self.elements = self.elements or _Seen()
            for each in value:
                self.elements.add(each)
        elif kind == OBJECT:
            for name, each in value.items():
                self.fields.setdefault(name.lower(), (name, _Seen()))[1].add(each)

    def shape(self, most: bool) -> Shape:
        kinds = Counter(self.kinds)
        if "long" in kinds and "double" in kinds:
            kinds["double"] += kinds.pop("long")
        if not kinds:
            return "null"
        (kind, count), *others = kinds.most_common()
        if others and (not most or others[0][1] == count):
            return "string"
        if kind == ARRAY:
            assert self.elements is not None
            return (ARRAY, self.elements.shape(most))
        return self.object_shape(most) if kind == OBJECT else kind

    def object_shape(self, most: bool) -> dict[str, Shape]:
        return {name: seen.shape(most) for name, seen in self.fields.values()}


def shape_of(values: Iterable[bytes | None], *, mostly: bool = True, most: bool = False) -> dict[str, Shape] | None:
    """The fields of JSON objects; None if there are none, or (`mostly`) if as many values are something else.

    `most`: a field whose values disagree is what most of them are.
    """
    seen = _Seen()
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
            seen.add(document)
        else:
            others += 1
    return seen.object_shape(most) if objects > (others if mostly else 0) else None


def ddl_of(shape: dict[str, Shape]) -> str:
    """A shape as Spark's DDL."""
    return ", ".join(f"`{name.replace('`', '``')}` {_kind(kind)}" for name, kind in shape.items())


def _kind_of(value: Any) -> str | None:
    """The kind of one value; None for null."""
    match value:
        case None:
            return None
        case bool():
            return "boolean"
        case int():
            return "long" if -(1 << 63) <= value < 1 << 63 else "double"
        case float():
            return "double"
        case str():
            return "string"
        case list():
            return ARRAY
    return OBJECT


def _kind(shape: Shape) -> str:
    if isinstance(shape, tuple):
        return f"array<{_kind(shape[1])}>"
    if isinstance(shape, dict):
        inner = ", ".join(f"`{name.replace('`', '``')}`: {_kind(kind)}" for name, kind in shape.items())
        return f"struct<{inner}>" if inner else "string"
    return "string" if shape == "null" else str(shape)
