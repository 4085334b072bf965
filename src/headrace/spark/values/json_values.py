"""JSON objects to structs. (The way back is Spark's own `to_json`.)

Arrow's parser reads a whole column at once; where it refuses, the column is halved until what it refuses is small, and
that is read record by record, with reasons. To Arrow every record is wrapped as `{"v":RECORD}`: however broken a record
is, its wrapping cannot reach into the next one, so that as many results as records means one result per record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from headrace.spark.values.codec import MisfitError, Reasons, arrow_type, decode_each
from headrace.spark.values.fit import compile_fit

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

SMALL: Final = 32  # records that are not worth another try at once


class JsonDecoder:
    """See the module."""

    def __init__(self, schema: StructType) -> None:
        compile_fit(schema)  # raises ConfigError for types that JSON cannot have
        self._schema = schema
        self._compiled: Any = None

    @property
    def schema(self) -> StructType:
        return self._schema

    def __getstate__(self) -> StructType:
        return self._schema

    def __setstate__(self, schema: StructType) -> None:
        self._schema = schema
        self._compiled = None

    def decode(self, values: pa.Array) -> tuple[pa.Array, Reasons]:
        if self._compiled is None:
            kind = arrow_type(self._schema)
            self._compiled = kind, compile_fit(self._schema), _plain(kind) and not _requires(self._schema)
        kind, fit, fast = self._compiled
        if not fast or len(values) <= SMALL:
            return decode_each(values.to_pylist(), lambda value: fit(_parse(value)), kind)
        found = _at_once(values, kind)
        if found is not None:
            return found, [None] * len(values)
        half = len(values) // 2
        first, reasons = self.decode(values[:half])
        second, more = self.decode(values[half:])
        return pa.concat_arrays([first, second]), reasons + more


def _parse(value: bytes) -> Any:
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MisfitError(f"not JSON: {error}") from None
    except RecursionError:
        raise MisfitError("not JSON: nested too deeply") from None


def _at_once(values: pa.Array, kind: pa.StructType) -> pa.Array | None:
    """All records, or None if any of them needs a closer look."""
    whole = msgspec.json.Decoder(msgspec.Raw)  # Arrow takes NaN, and what follows an object; JSON does not
    try:
        for value in values.to_pylist():
            whole.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    lines = pc.binary_join_element_wise(
        pa.scalar(b'{"v":', pa.binary()), values, pa.scalar(b"}\n", pa.binary()), pa.scalar(b"", pa.binary())
    )
    content = pa.BufferReader(_content(lines))
    try:
        table = pyarrow.json.read_json(
            content,
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=max(1, content.size())),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=pa.schema([("v", kind)]),
                newlines_in_values=True,
                unexpected_field_behavior="ignore",
            ),
        )
        if table.num_rows != len(values) or table.column_names != ["v"]:
            return None
        column = table.column(0).combine_chunks()
        found = column if isinstance(column, pa.Array) else pa.concat_arrays(column.chunks)
        found.validate(full=True)  # UTF-8 above all
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return None
    return None if found.null_count else found


def _content(lines: pa.Array) -> pa.Buffer:
    _, offsets, content = lines.buffers()
    start = int.from_bytes(offsets[lines.offset * 4 : lines.offset * 4 + 4].to_pybytes(), "little")
    end_at = (lines.offset + len(lines)) * 4
    end = int.from_bytes(offsets[end_at : end_at + 4].to_pybytes(), "little")
    return content.slice(start, end - start)


def _plain(kind: pa.DataType) -> bool:
    """Types for which Arrow's parser means what `fit` means."""
    if pa.types.is_struct(kind):
        return all(_plain(kind.field(index).type) for index in range(kind.num_fields))
    if pa.types.is_list(kind):
        return _plain(kind.value_type)
    return bool(
        pa.types.is_string(kind) or pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)
    )


def _requires(kind: Any) -> bool:
    from pyspark.sql.types import ArrayType, StructType

    if isinstance(kind, StructType):
        return any(not each.nullable or _requires(each.dataType) for each in kind.fields)
    if isinstance(kind, ArrayType):
        return not kind.containsNull or _requires(kind.elementType)
    return False
