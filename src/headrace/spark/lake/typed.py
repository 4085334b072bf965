"""Values as typed Arrow columns beside the raw bytes: JSON objects here, other formats by their decoders.

Rules:
- Every value gives one row: an object that fits the schema gives its fields; anything else gives null and a reason.
  Nothing is lost, since the raw value stays in its own column.
- Fields that the schema does not name are left out; fields that a value lacks are null. No value at all (a
  tombstone) is null without a reason.
- Whole batches are parsed at once by pyarrow. A batch that does not parse is halved until the bad values stand alone.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

if TYPE_CHECKING:
    from headrace.spark.values.codec import Decoder

DATA: Final = "data"
ERROR: Final = "data_error"
_REASON_LETTERS: Final = 200

Reading = Callable[[pa.Array, pa.StructType], tuple[pa.Array, pa.Array]]


def read_by(decoder: Decoder) -> Reading:
    """`read_objects` for what a decoder decodes."""

    def read(values: pa.Array, kind: pa.StructType) -> tuple[pa.Array, pa.Array]:
        there = values.is_valid()
        structs, reasons = decoder.decode(values.filter(there))
        place = pc.if_else(there, pc.subtract(pc.cumulative_sum(there.cast(pa.int64())), 1), None)
        short = [None if each is None else each[:_REASON_LETTERS] for each in reasons]
        return structs.cast(kind).take(place), pa.array(short, pa.string()).take(place)

    return read


def read_objects(values: pa.Array, kind: pa.StructType) -> tuple[pa.Array, pa.Array]:
    """The column `data` and the column of reasons for `values` (binary)."""
    values = pc.ascii_trim_whitespace(values.view(pa.string())).view(pa.binary())
    candidate = pc.and_(pc.starts_with(values, b"{"), pc.ends_with(values, b"}"))
    candidate = pc.fill_null(candidate, False)
    if pc.all(candidate).as_py():
        pieces, reasons = _parse(values, kind)
        return _joined(pieces, kind), pa.array(reasons, pa.string())
    indices = pc.indices_nonzero(candidate)
    pieces, reasons = _parse(values.take(indices), kind)
    spread = pc.if_else(candidate, pc.subtract(pc.cumulative_sum(candidate.cast(pa.int64())), 1), None)
    data = _joined(pieces, kind).take(spread)
    told = pa.array(reasons, pa.string()).take(spread)
    strange = pc.and_not(pc.is_valid(values), candidate)
    return data, pc.if_else(strange, "not a JSON object", told)


def _joined(pieces: list[pa.Array], kind: pa.StructType) -> pa.Array:
    return pa.concat_arrays(pieces) if pieces else pa.array([], kind)


def _parse(values: pa.Array, kind: pa.StructType) -> tuple[list[pa.Array], list[str | None]]:
    count = len(values)
    if not count:
        return [], []
    try:
        return [_objects(values, kind)], [None] * count
    except pa.ArrowException as error:
        if count == 1:
            return [pa.nulls(1, kind)], [" ".join(str(error).split())[:_REASON_LETTERS]]
    half = count // 2
    left, left_reasons = _parse(values.slice(0, half), kind)
    right, right_reasons = _parse(values.slice(half), kind)
    return left + right, left_reasons + right_reasons


def _objects(values: pa.Array, kind: pa.StructType) -> pa.Array:
    """All of them, or ArrowInvalid.

    Each value begins with a brace and ends with one, so that none can go on in the next: as many objects as values
    means one from each.
    """
    lines = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    text = pc.binary_join(lines, b"\n")[0].as_buffer()
    table = pj.read_json(
        io.BytesIO(text),
        read_options=pj.ReadOptions(use_threads=False, block_size=max(len(text) + 1, 1 << 16)),
        parse_options=pj.ParseOptions(
            explicit_schema=pa.schema(list(kind)), unexpected_field_behavior="ignore", newlines_in_values=True
        ),
    )
    if table.num_rows != len(values):
        raise pa.ArrowInvalid("more or less than one JSON object")
    columns = [table.column(each.name).combine_chunks().cast(each.type) for each in kind]
    return pa.StructArray.from_arrays(columns, fields=list(kind))
