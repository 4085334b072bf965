"""Messages written straight from plain mappings, compiled once per message class.

Rules:
- Fields missing in a mapping get the schema's default. A null where the schema has none is our bug: AssertionError.
- Names that this version does not have are dropped; names that no version has are our bug: AssertionError.
- Numbers may be ints, ErrorCodes, or (where kio says so) timedeltas and datetimes; times are milliseconds.
- A tagged field that equals its default is left out.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

from headrace.wire.guard import varint
from headrace.wire.schema import FIXED, Direction, WireField, names_at, plain, wire_fields

Write = Callable[[bytearray, Any], None]
Row = Mapping[str, Any]

_NO_UUID: Final = bytes(16)
_FEW: Final = 8  # arrays of numbers up to this length have their packers ready


class Joined(NamedTuple):
    """The elements of an array of structs that are encoded already, one behind the other."""

    number: int
    encoded: bytes


class StructEncoder:
    """Writes one struct of one version. `__call__` is the hot part."""

    __slots__ = ("_admit", "_flexible", "_groups", "_known", "_tagged", "_tagged_names", "arrays")

    def __init__(self, message: type[Any], api_key: int, direction: Direction, path: tuple[str, ...] = ()) -> None:
        self._flexible: bool = message.__flexible__
        described = wire_fields(message)
        self._known = {item.name for item in described}
        self._admit = _Admission(self._known, api_key, direction, path)
        self.arrays: dict[str, StructEncoder] = {}  # by the name of the array: what writes an element of it
        self._groups: list[_Group] = []
        self._tagged: list[tuple[int, Write, str, bytes]] = []
        run: list[WireField] = []
        rest: list[tuple[Write, str, Any]] = []
        for item in described:
            if item.tag is None and not item.array and item.kind in FIXED:
                if rest:
                    self._groups.append(_Group(run, rest))
                    run, rest = [], []
                run.append(item)
                continue
            inner = None
            if item.struct is not None:
                inner = StructEncoder(item.struct, api_key, direction, (*path, item.name))
                if item.array and item.tag is None:
                    self.arrays[item.name] = inner
            write = _writer(item, self._flexible, inner)
            if item.tag is None:
                rest.append((write, item.name, item.default))
            else:
                default = bytearray()
                write(default, item.default)
                self._tagged.append((item.tag, write, item.name, bytes(default)))
        self._groups.append(_Group(run, rest))
        self._tagged.sort(key=lambda entry: entry[0])
        self._tagged_names = frozenset(entry[2] for entry in self._tagged)

    def __call__(self, out: bytearray, row: Row) -> None:
        if not self._known.issuperset(row):
            self._admit(row)
        get = row.get
        for group in self._groups:
            if group.names:
                try:
                    out += group.pack(*map(get, group.names, group.defaults))
                except struct.error:
                    out += group.pack_slowly(row)
            for write, name, default in group.rest:
                write(out, get(name, default))
        if self._flexible:
            if self._tagged_names.isdisjoint(row):
                out.append(0)
            else:
                self._write_tagged(out, row)

    def steps(self, out: bytearray, row: Row) -> Iterator[None]:
        """The same in steps: one for each element of an array of structs, however deep it lies."""
        if not self._known.issuperset(row):
            self._admit(row)
        for group in self._groups:
            out += group.pack_slowly(row) if group.names else b""
            for write, name, default in group.rest:
                value, inner = row.get(name, default), self.arrays.get(name)
                if inner is None or value is None or type(value) is Joined:
                    write(out, value)
                    continue
                _write_count(out, len(value), self._flexible)
                for each in value:
                    if inner.arrays:
                        yield from inner.steps(out, each)
                    else:
                        inner(out, each)
                    yield
        if self._flexible:
            self._write_tagged(out, row)

    def _write_tagged(self, out: bytearray, row: Row) -> None:
        found: list[tuple[int, bytearray]] = []
        for tag, write, name, default in self._tagged:
            if name in row:
                value = bytearray()
                write(value, row[name])
                if value != default:
                    found.append((tag, value))
        _write_varint(out, len(found))
        for tag, value in found:
            _write_varint(out, tag)
            _write_varint(out, len(value))
            out += value


class _Group:
    """A run of numbers that are packed at once, and the fields of other kinds that follow it."""

    __slots__ = ("_run", "defaults", "names", "pack", "rest")

    def __init__(self, run: Sequence[WireField], rest: list[tuple[Write, str, Any]]) -> None:
        self._run = run
        self.names = tuple(item.name for item in run)
        self.defaults = tuple(_number(item, item.default) for item in run)
        self.pack = struct.Struct(">" + "".join(FIXED[item.kind] for item in run)).pack
        self.rest = rest

    def pack_slowly(self, row: Row) -> bytes:
        """For values that `struct` does not take as they are: durations, times, null times."""
        numbers = [_number(item, row.get(item.name, item.default)) for item in self._run]
        try:
            return self.pack(*numbers)
        except struct.error as error:
            raise AssertionError(f"{dict(zip(self.names, numbers, strict=True))} does not fit: {error}") from None


class _Admission:
    """Decides about names that this version of a struct does not have."""

    __slots__ = ("_api_key", "_direction", "_known", "_path")

    def __init__(self, known: set[str], api_key: int, direction: Direction, path: tuple[str, ...]) -> None:
        self._known = known
        self._api_key = api_key
        self._direction: Direction = direction
        self._path = path

    def __call__(self, row: Row) -> None:
        strange = set(row) - self._known
        # Newest first: it has nearly every name, and each version costs an import.
        for names in names_at(self._api_key, self._direction, self._path):
            self._known |= strange & names
            strange -= names
            if not strange:
                return
        where = ".".join(self._path) or "the message"
        raise AssertionError(f"no version of API {self._api_key}'s {self._direction} has {sorted(strange)} in {where}")


def _number(item: WireField, value: Any) -> Any:
    if isinstance(value, timedelta | datetime):
        return plain(value)
    if value is None and item.kind == "datetime_i64" and item.nullable:
        return -1
    return value


def _write_varint(out: bytearray, value: int) -> None:
    if value < 0x80:
        out.append(value)
    else:
        out += varint(value)


def _write_count(out: bytearray, count: int, flexible: bool) -> None:
    if not flexible:
        out += count.to_bytes(4, "big")
    elif count < 0x7F:
        out.append(count + 1)
    else:
        out += varint(count + 1)


def _writer(item: WireField, flexible: bool, inner: StructEncoder | None) -> Write:
    if item.array:
        return _array_writer(item, flexible, inner)
    if inner is not None:
        return _nullable_struct_writer(inner) if item.nullable else inner
    return _scalar_writer(item, flexible)


def _scalar_writer(item: WireField, flexible: bool, *, element: bool = False) -> Write:
    if item.kind in FIXED:
        return _number_writer(item)
    if item.kind == "uuid":
        return _write_uuid
    nullable = item.nullable and not element
    if item.kind == "string":
        return _compact_string_writer(item, nullable) if flexible else _string_writer(item, nullable)
    return _compact_bytes_writer(item, nullable) if flexible else _bytes_writer(item, nullable)


def _number_writer(item: WireField) -> Write:
    pack = struct.Struct(">" + FIXED[item.kind]).pack

    def write_number(out: bytearray, value: Any) -> None:
        out += pack(_number(item, value))

    return write_number


def _write_uuid(out: bytearray, value: UUID | None) -> None:
    out += _NO_UUID if value is None else value.bytes


def _refuse_null(item: WireField, nullable: bool) -> None:
    if not nullable:
        raise AssertionError(f"{item.name} must not be null in this version")


def _compact_string_writer(item: WireField, nullable: bool) -> Write:
    def write_compact_string(out: bytearray, value: str | None) -> None:
        if value is None:
            _refuse_null(item, nullable)
            out.append(0)
            return
        encoded = value.encode()
        length = len(encoded) + 1
        if length < 0x80:
            out.append(length)
        else:
            out += varint(length)
        out += encoded

    return write_compact_string


def _string_writer(item: WireField, nullable: bool) -> Write:
    def write_string(out: bytearray, value: str | None) -> None:
        if value is None:
            _refuse_null(item, nullable)
            out += b"\xff\xff"
            return
        encoded = value.encode()
        if len(encoded) > 0x7FFF:
            raise AssertionError(f"{item.name} of {len(encoded)} bytes is too long for this version")
        out += len(encoded).to_bytes(2, "big")
        out += encoded

    return write_string


def _compact_bytes_writer(item: WireField, nullable: bool) -> Write:
    def write_compact_bytes(out: bytearray, value: bytes | None) -> None:
        if value is None:
            _refuse_null(item, nullable)
            out.append(0)
            return
        _write_varint(out, len(value) + 1)
        out += value

    return write_compact_bytes


def _bytes_writer(item: WireField, nullable: bool) -> Write:
    def write_bytes(out: bytearray, value: bytes | None) -> None:
        if value is None:
            _refuse_null(item, nullable)
            out += b"\xff\xff\xff\xff"
            return
        out += len(value).to_bytes(4, "big")
        out += value

    return write_bytes


def _nullable_struct_writer(inner: StructEncoder) -> Write:
    def write_nullable_struct(out: bytearray, value: Row | None) -> None:
        if value is None:
            out.append(0xFF)
        else:
            out.append(1)
            inner(out, value)

    return write_nullable_struct


def _array_writer(item: WireField, flexible: bool, inner: StructEncoder | None) -> Write:
    nullable = item.nullable
    write_numbers = _numbers_writer(FIXED[item.kind]) if item.kind in FIXED else None
    write_item: Write = _scalar_writer(item, flexible, element=True) if inner is None else inner

    def write_array(out: bytearray, items: Sequence[Any] | None) -> None:
        if items is None:
            _refuse_null(item, nullable)
            out += b"\x00" if flexible else b"\xff\xff\xff\xff"
            return
        if type(items) is Joined:
            _write_count(out, items.number, flexible)
            out += items.encoded
            return
        _write_count(out, len(items), flexible)
        if write_numbers is not None:
            write_numbers(out, items)
        else:
            for each in items:
                write_item(out, each)

    return write_array


def _numbers_writer(letter: str) -> Write:
    packs = [struct.Struct(f">{count}{letter}").pack for count in range(_FEW + 1)]

    def write_numbers(out: bytearray, items: Sequence[Any]) -> None:
        count = len(items)
        out += packs[count](*items) if count <= _FEW else struct.pack(f">{count}{letter}", *items)

    return write_numbers
