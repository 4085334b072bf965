"""Whether the records of a batch are what its header says, as Kafka's LogValidator has it.

Rules:
- A record is right if its length, varints, key, value and headers fit into each other without a byte left over, its
  offset delta is its place in the batch, and its attributes are zero. A batch is right if its `count` records are and
  nothing is left over behind them.
- What is wrong is ApiError(invalid_record). Nothing is built: records are passed over, about 0.5 us for each.
- A `Scan` goes over all records, some at a time, and finds the oldest and the newest timestamp, and which records have
  no key.
- `ends_are_right` looks at the first and at the last record only, whatever their number. The last one is found from its
  end: its offset delta is known, and its length must fit. True proves these two and that they lie where they must;
  False proves nothing, and a `Scan` has to tell.

Differs from Kafka, which is lenient here: it takes any negative length for null, any attributes in a record, and
renumbers the offsets of compressed records that are out of place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

from headrace.core.errors import ApiError, ErrorCode
from headrace.wire.codecs import Room, open_into_room
from headrace.wire.layout import CODEC_MASK, HEADER_BYTES, NONE, RECORD_BYTES_MIN

if TYPE_CHECKING:
    from mmap import mmap

    from headrace.wire.batch import BatchHeader

_TRIES: Final = 48  # places that may be the last record's offset delta
_SEARCHED_BYTES: Final = 128 * 1024  # from the end on
_NO_TIME: Final = 1 << 63


class Opened:
    """The records of one batch, decompressed: `room[start:end]`."""

    __slots__ = ("end", "room", "start")

    def __init__(self, data: bytes, header: BatchHeader, max_bytes: int, room: mmap | None = None) -> None:
        """Raises ApiError: corrupt_message (TooLargeToOpenError if there are more than `max_bytes`), invalid_record."""
        self.start, self.end = header.position + HEADER_BYTES, header.position + header.size
        self.room: Room = data
        if header.attributes & CODEC_MASK != NONE:
            with memoryview(data) as view:
                self.room, self.end = open_into_room(
                    header.attributes & CODEC_MASK, view[self.start : self.end], max_bytes, room
                )
            self.start = 0
        if header.count * RECORD_BYTES_MIN > self.end - self.start:
            _invalid(f"{header.count} records do not fit into {self.end - self.start} bytes")


class Scan:
    """A pass over all records of a batch."""

    __slots__ = ("_count", "_delta", "_end", "_position", "_room", "_wants_keys", "keyless", "newest", "oldest")

    def __init__(self, opened: Opened, header: BatchHeader, *, wants_keys: bool = False) -> None:
        self._room = opened.room
        self._position = opened.start
        self._end = opened.end
        self._count = header.count
        self._delta = 0
        self.oldest = _NO_TIME  # deltas of timestamps
        self.newest = -_NO_TIME
        self._wants_keys = wants_keys
        self.keyless: list[int] = []  # places of records without a key, if keys are wanted

    def step(self, records: int) -> bool:
        """Go over at most so many; True when all are done. Raises ApiError(invalid_record)."""
        stop = min(self._count, self._delta + records)
        try:
            keyless = self.keyless if self._wants_keys else None
            self._position, oldest, newest = _pass_over(
                self._room, self._position, self._end, self._delta, stop, keyless
            )
        except IndexError:
            _invalid("a record is cut off")
        self.oldest = min(oldest, self.oldest)
        self.newest = max(newest, self.newest)
        self._delta = stop
        if stop < self._count:
            return False
        if self._position != self._end:
            _invalid("bytes are left over after the last record")
        return True


def ends_are_right(room: Room, start: int, end: int, count: int) -> bool:
    """See the module; the records are `room[start:end]`. Raises ApiError(invalid_record) if the first is not right."""
    try:
        position = _pass_over(room, start, end, 0, 1)[0]
    except IndexError:
        _invalid("a record is cut off")
    if count > 1:
        return _ends_with_record(room, position, end, count - 1)
    if position != end:
        _invalid("bytes are left over after the last record")
    return True


def _ends_with_record(room: Room, start: int, end: int, delta: int) -> bool:
    mark = _varint(delta << 1)
    at = end
    start = max(start, end - _SEARCHED_BYTES)
    for _ in range(_TRIES):
        at = room.rfind(mark, start, at)
        if at < start + 3:
            return False
        for body in (at - 2, at - 3, at - 4, at - 5):  # where the attributes lie, before a timestamp of 1 to 4 bytes
            length = end - body
            if length < 64:
                begin = body - 1
                fits = room[begin] == length << 1
            elif length < 8192:
                begin = body - 2
                fits = room[begin + 1] == length >> 6 and room[begin] == (length << 1) & 0x7F | 0x80
            else:
                begin = body - len(_varint(length << 1))
                fits = room[begin:body] == _varint(length << 1)
            if fits and begin >= start:
                try:
                    if _pass_over(room, begin, end, delta, delta + 1)[0] == end:
                        return True
                except (ApiError, IndexError):
                    pass
        at += len(mark) - 1
    return False


def _pass_over(
    room: Room, position: int, size: int, first: int, stop: int, keyless: list[int] | None = None
) -> tuple[int, int, int]:
    """Records `first` to `stop`, of which the first begins at `position`: where they end, oldest and newest time.

    Raises ApiError(invalid_record), and IndexError where the room ends. Short varints are read on the spot.
    """
    oldest, newest = _NO_TIME, -_NO_TIME
    seen = -1  # the last timestamp: most are the same
    for delta in range(first, stop):
        value = room[position]
        if value < 0x80:
            position += 1
        elif (byte := room[position + 1]) < 0x80:
            value += (byte << 7) - 0x80
            position += 2
        else:
            value, position = _long(room, position, 5)
        end = position + (value >> 1)
        if value & 1 or end > size:
            _invalid("a record is longer than its batch")
        if room[position]:
            _invalid("a record has attributes")
        value = room[position + 1]
        if value < 0x80:
            position += 2
        else:
            value, position = _long(room, position + 1, 10)
        if value != seen:
            seen = value
            timestamp = (value >> 1) ^ -(value & 1)
            oldest, newest = min(oldest, timestamp), max(newest, timestamp)
        value = room[position]
        if value < 0x80:
            position += 1
        elif (byte := room[position + 1]) < 0x80:
            value += (byte << 7) - 0x80
            position += 2
        else:
            value, position = _long(room, position, 5)
        if value != delta << 1:
            _invalid(f"record {delta} has another offset delta")
        value = room[position]
        position += 1
        if value != 1:
            position = _behind(room, value, position)
        elif keyless is not None:
            keyless.append(delta)
        value = room[position]
        position += 1
        if value != 1:
            position = _behind(room, value, position)
        if position >= end:
            _invalid("a record's fields do not fit into it")
        position = _behind_headers(room, position, end) if room[position] else position + 1
        if position != end:
            _invalid("a record's length does not match its content")
    return position, oldest, newest


def _behind(room: Room, value: int, position: int) -> int:
    """The position after a field, the first byte of whose length is `value` and lies before `position`."""
    if value > 0x7F:
        byte = room[position]
        if byte < 0x80:
            value += (byte << 7) - 0x80
            position += 1
        else:
            value, position = _long(room, position - 1, 5)
    if value & 1:
        _invalid("a length is negative")
    return position + (value >> 1)


def _behind_headers(room: Room, position: int, end: int) -> int:
    count, position = _long(room, position, 5)
    if count & 1 or count >> 1 > end - position:
        _invalid("a record's header count is wrong")
    for _ in range(count >> 1):
        name_at = position + 1
        position = _behind(room, room[position], name_at)
        if position >= end:
            _invalid("a record's headers do not fit into it")
        _check_name(room, name_at, position)
        value = room[position]
        position += 1
        if value != 1:
            position = _behind(room, value, position)
    return position


def _check_name(room: Room, position: int, stop: int) -> None:
    """Clients decode the names of headers."""
    while room[position - 1] > 0x7F:
        position += 1
    try:
        str(room[position:stop], "utf-8")
    except UnicodeDecodeError:
        _invalid("a header's name is not UTF-8")


def _long(room: Room, position: int, max_bytes: int) -> tuple[int, int]:
    """A varint as it stands, before its sign is taken out of it, and the position after it."""
    value = shift = 0
    for at in range(position, position + max_bytes):
        byte = room[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> (32 if max_bytes == 5 else 64):
                break
            return value, at + 1
        shift += 7
    raise ApiError(ErrorCode.invalid_record, "a varint is too long")


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _invalid(reason: str) -> NoReturn:
    raise ApiError(ErrorCode.invalid_record, reason)
