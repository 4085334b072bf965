"""The two loops over bytes, compiled by numba: over the batches of an answer, and over the records of batches.

Rules:
- No Python objects: arrays and integers in, integers out. They run without the interpreter's lock.
- Bounds are checked by hand before every read; a fault is a number (`FAULTS` has the words).
- Small functions take addresses, not arrays: numba counts references to arrays at every call, which costs more than
  the work itself.
- Compiled when first called, for one set of types, and kept on disk by numba where it can.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numba
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

# Columns of the table of batches.
POSITION: Final = 0  # of the batch in the answer
SIZE: Final = 1
BASE_OFFSET: Final = 2
LAST_OFFSET: Final = 3
ATTRIBUTES: Final = 4
BASE_TIMESTAMP: Final = 5
MAX_TIMESTAMP: Final = 6
PRODUCER: Final = 7
COUNT: Final = 8
PAYLOAD: Final = 9  # where the records start in their buffer
PAYLOAD_END: Final = 10
CHECKSUM: Final = 11
COLUMNS: Final = 12

# What `fill` keeps from call to call.
ROWS: Final = 0
KEY_NULLS: Final = 1
VALUE_NULLS: Final = 2
HEADER_NULLS: Final = 3
ENTRIES: Final = 4
CONTENT_NULLS: Final = 5
KEY_END: Final = 6
VALUE_END: Final = 7
STATES: Final = 8

FAULTS: Final = (
    "",
    "a record is cut off",
    "a record is longer than its batch",
    "a record's length does not match its content",
    "a record's offset lies outside its batch",
    "a record's header count is wrong",
    "a header has no name",
    "bytes are left over after the last record",
)
_CUT_OFF: Final = 1
_TOO_LONG: Final = 2
_MISMATCH: Final = 3
_OUTSIDE: Final = 4
_HEADER_COUNT: Final = 5
_NO_NAME: Final = 6
_LEFT_OVER: Final = 7

_HEADER_BYTES: Final = 61
_APPEND_TIME: Final = 0x08
_MICROSECONDS: Final = 1000


# numba's decorators change what a function is; to the type checker they are just functions.
_intrinsic: Any = intrinsic
_inlined: Any = numba.njit(nogil=True)
_cgutils: Any = cgutils


def _compiled(function: Callable[..., Any]) -> Any:
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # numba finds no directory that it may write to
        return _inlined(function)


@_intrinsic
def _byte(typing, address):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """The byte at an address."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        pointer = builder.inttoptr(arguments[0], _cgutils.voidptr_t)
        return builder.zext(builder.load(pointer), _cgutils.ir.IntType(64))

    return types.uint64(types.int64), generate


@_intrinsic
def _set_byte(typing, address, value):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        pointer = builder.inttoptr(arguments[0], _cgutils.voidptr_t)
        builder.store(builder.trunc(arguments[1], _cgutils.ir.IntType(8)), pointer)
        return context.get_dummy_value()

    return types.void(types.int64, types.uint64), generate


@_intrinsic
def _copy(typing, target, source, size):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """memcpy from address to address: a loop in numba is ten times slower."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        into = builder.inttoptr(arguments[0], _cgutils.voidptr_t)
        out = builder.inttoptr(arguments[1], _cgutils.voidptr_t)
        _cgutils.raw_memcpy(builder, into, out, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@_inlined
def _big_endian(address, size):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    value = numba.uint64(0)
    for index in range(size):
        value = (value << numba.uint64(8)) | _byte(address + index)
    return numba.int64(value)


@_inlined
def _varint(address, end):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """A zigzag varint of up to 64 bits and the address after it; -1 for an address if it is cut off or too long."""
    if address >= end:
        return numba.int64(0), numba.int64(-1)
    byte = _byte(address)
    address += 1
    value = byte & numba.uint64(0x7F)
    shift = numba.uint64(7)
    while byte >= numba.uint64(0x80):
        if address >= end or shift >= numba.uint64(70):
            return numba.int64(0), numba.int64(-1)
        byte = _byte(address)
        address += 1
        value |= (byte & numba.uint64(0x7F)) << shift
        shift += numba.uint64(7)
    return numba.int64(value >> numba.uint64(1)) ^ -numba.int64(value & numba.uint64(1)), address


@_inlined
def _mark(valid, row, there):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Set the bit of a row in the bitmap at address `valid`, whose rows come in order."""
    bit = numba.uint64(row & 7)
    before = numba.uint64(0) if bit == 0 else _byte(valid + (row >> 3))
    _set_byte(valid + (row >> 3), before | (numba.uint64(there) << bit))


@_inlined
def _append(valid, row, target, source, length):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Copy a value to `target`, or mark it as null if its length is negative; how many bytes it took."""
    _mark(valid, row, length >= 0)
    if length < 0:
        return numba.int64(0)
    _copy(target, source, length)
    return length


def _walk(data, table):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Fill `table` with the whole batches of `data`; how many there are, or -1 if one is older than format v2."""
    start = numba.int64(data.ctypes.data)
    end = start + len(data)
    at = start
    found = 0
    while end - at >= _HEADER_BYTES:
        size = _big_endian(at + 8, 4) + 12
        if _byte(at + 16) != 2:
            return -1
        if size < _HEADER_BYTES or size > end - at:
            break
        base_offset = _big_endian(at, 8)
        table[found, POSITION] = at - start
        table[found, SIZE] = size
        table[found, BASE_OFFSET] = base_offset
        table[found, LAST_OFFSET] = base_offset + _big_endian(at + 23, 4)
        table[found, ATTRIBUTES] = _big_endian(at + 21, 2)
        table[found, BASE_TIMESTAMP] = _big_endian(at + 27, 8)
        table[found, MAX_TIMESTAMP] = _big_endian(at + 35, 8)
        table[found, PRODUCER] = _big_endian(at + 43, 8)
        table[found, COUNT] = _big_endian(at + 57, 4)
        table[found, PAYLOAD] = at - start + _HEADER_BYTES
        table[found, PAYLOAD_END] = at - start + size
        table[found, CHECKSUM] = _big_endian(at + 17, 4)
        found += 1
        at += size
    return found


@_inlined
def _fields(at, end):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """A record without its length: a fault or 0, deltas of timestamp and offset, key and value (address, length)."""
    timestamp_delta, at = _varint(at + 1, end)  # the attributes byte is unused
    if at < 0:
        return _CUT_OFF, 0, 0, 0, 0, 0, 0
    offset_delta, at = _varint(at, end)
    if at < 0:
        return _CUT_OFF, 0, 0, 0, 0, 0, 0
    key_length, key_at = _varint(at, end)
    if key_at < 0:
        return _CUT_OFF, 0, 0, 0, 0, 0, 0
    if key_length > end - key_at:
        return _TOO_LONG, 0, 0, 0, 0, 0, 0
    value_length, value_at = _varint(key_at + max(key_length, 0), end)
    if value_at < 0:
        return _CUT_OFF, 0, 0, 0, 0, 0, 0
    if value_length > end - value_at:
        return _TOO_LONG, 0, 0, 0, 0, 0, 0
    return 0, timestamp_delta, offset_delta, key_at, key_length, value_at, value_length


def _fill(source, table, start, end, wanted, numbers, key, value, headers, contents, state):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Append the records of all batches in `table` whose offsets lie in [start, end); a fault or 0."""
    with_key, with_value, with_headers = wanted
    offsets, timestamps, timestamp_types = numbers
    key_ends, key_valid, key_content = key[0], key[1].ctypes.data, key[2].ctypes.data
    value_ends, value_valid, value_content = value[0], value[1].ctypes.data, value[2].ctypes.data
    origin = numba.int64(source.ctypes.data)
    row = state[ROWS]
    key_end, value_end = state[KEY_END], state[VALUE_END]
    for batch in range(len(table)):
        at = origin + table[batch, PAYLOAD]
        stop = origin + table[batch, PAYLOAD_END]
        base_offset = table[batch, BASE_OFFSET]
        last_delta = table[batch, LAST_OFFSET] - base_offset
        append_time = (table[batch, ATTRIBUTES] & _APPEND_TIME) != 0
        timestamp = table[batch, MAX_TIMESTAMP] if append_time else table[batch, BASE_TIMESTAMP]
        for _ in range(table[batch, COUNT]):
            length, at = _varint(at, stop)
            if at < 0:
                return _CUT_OFF
            if length < 0 or length > stop - at:
                return _TOO_LONG
            record_end = at + length
            fault, timestamp_delta, offset_delta, key_at, key_length, value_at, value_length = _fields(at, record_end)
            if fault:
                return fault
            if offset_delta < 0 or offset_delta > last_delta:
                return _OUTSIDE
            offset = base_offset + offset_delta
            at = record_end
            if offset < start or offset >= end:
                continue
            offsets[row] = offset
            timestamps[row] = (timestamp if append_time else timestamp + timestamp_delta) * _MICROSECONDS
            timestamp_types[row] = append_time
            if with_key:
                key_end += _append(key_valid, row, key_content + key_end, key_at, key_length)
                key_ends[row + 1] = key_end
                state[KEY_NULLS] += key_length < 0
            if with_value:
                value_end += _append(value_valid, row, value_content + value_end, value_at, value_length)
                value_ends[row + 1] = value_end
                state[VALUE_NULLS] += value_length < 0
            if with_headers:
                fault = _fill_headers(value_at + max(value_length, 0), record_end, row, headers, contents, state)
                if fault:
                    return fault
            row += 1
        if at != stop:
            return _LEFT_OVER
    state[ROWS] = row
    state[KEY_END], state[VALUE_END] = key_end, value_end
    return 0


@_inlined
def _fill_headers(at, record_end, row, headers, contents, state):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Append a record's headers; a fault or 0."""
    ends, valid, name_ends, names = headers
    content_ends, content_valid, content = contents
    count, at = _varint(at, record_end)
    if at < 0 or count < 0 or count > record_end - at:
        return _HEADER_COUNT
    entry = state[ENTRIES]
    for _ in range(count):
        length, at = _varint(at, record_end)
        if at < 0:
            return _CUT_OFF
        if length < 0:
            return _NO_NAME
        if length > record_end - at:
            return _TOO_LONG
        name_end = numba.int64(name_ends[entry])
        _copy(names.ctypes.data + name_end, at, length)
        name_ends[entry + 1] = name_end + length
        at += length
        length, at = _varint(at, record_end)
        if at < 0:
            return _CUT_OFF
        if length > record_end - at:
            return _TOO_LONG
        content_end = numba.int64(content_ends[entry])
        size = _append(content_valid.ctypes.data, entry, content.ctypes.data + content_end, at, length)
        content_ends[entry + 1] = content_end + size
        state[CONTENT_NULLS] += length < 0
        at += size
        entry += 1
    if at != record_end:
        return _MISMATCH
    _mark(valid.ctypes.data, row, count > 0)
    if not count:  # as Spark's own connector has it: no headers, null
        state[HEADER_NULLS] += 1
    ends[row + 1] = entry
    state[ENTRIES] = entry
    return 0


walk = _compiled(_walk)
fill = _compiled(_fill)


def load() -> None:
    """Have both compiled, or fetched from disk, for the types that `decode` uses: once for all forks of a process."""
    import numpy as np

    source: Any = np.frombuffer(bytes(_HEADER_BYTES), np.uint8)
    table: Any = np.empty((1, COLUMNS), np.int64)
    walk(source, table)
    numbers = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int32))
    ends, content = np.zeros(1, np.int32), np.empty(0, np.uint8)
    text = (ends, content, content)
    more = (ends, content, ends, content)
    fill(source, table[:0], 0, 0, (True, True, True), numbers, text, text, more, text, np.zeros(STATES, np.int64))
