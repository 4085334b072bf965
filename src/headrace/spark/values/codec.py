"""What a value format is: columns of bytes to columns of structs, and back. Arrow in, Arrow out; no Spark session.

Rules:
- A decoder never raises for a record: what does not fit is null, with a reason beside it.
- A reason is one sentence for people; it names the field where it can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Reasons = list[str | None]


class MisfitError(ValueError):
    """A record that does not fit the schema."""


class Decoder(Protocol):
    """Bytes to structs of one type. Travels to tasks by pickle."""

    @property
    def schema(self) -> StructType: ...

    def decode(self, values: pa.Array) -> tuple[pa.Array, Reasons]:
        """Structs (null where there is a reason) and reasons (None where there is a struct). Values are not null."""
        ...


class Encoder(Protocol):
    """Rows to bytes. Travels to tasks by pickle."""

    def encode(self, rows: pa.RecordBatch) -> pa.Array: ...


def arrow_type(schema: StructType) -> pa.StructType:
    """The type that Spark expects for a struct. Nothing is required: a reason stands beside what is missing."""
    from pyspark.sql.pandas.types import to_arrow_type

    return to_arrow_type(nullable(schema), timezone="UTC")


def nullable(kind: Any) -> Any:
    """The same type with nothing required, at any depth."""
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    if isinstance(kind, StructType):
        return StructType([StructField(each.name, nullable(each.dataType), True) for each in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(nullable(kind.elementType), True)
    if isinstance(kind, MapType):
        return MapType(nullable(kind.keyType), nullable(kind.valueType), True)
    return kind


def decode_each(values: Sequence[bytes], one: Callable[[bytes], Any], kind: pa.DataType) -> tuple[pa.Array, Reasons]:
    """Record by record, with a function that raises MisfitError (or ValueError and such) for what does not fit."""
    found: list[Any] = []
    reasons: Reasons = []
    for value in values:
        try:
            found.append(one(value))
            reasons.append(None)
        except Exception as error:
            found.append(None)
            reasons.append(reason_of(error))
    try:
        return pa.array(found, kind), reasons
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, ValueError, TypeError):
        return _one_by_one(found, reasons, kind)


def _one_by_one(found: list[Any], reasons: Reasons, kind: pa.DataType) -> tuple[pa.Array, Reasons]:
    pieces = []
    for index, each in enumerate(found):
        try:
            pieces.append(pa.array([each], kind))
        except Exception as error:
            pieces.append(pa.nulls(1, kind))
            reasons[index] = reason_of(error)
    return (pa.concat_arrays(pieces) if pieces else pa.nulls(0, kind)), reasons


def reason_of(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, MisfitError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class DecodeColumn:
    """For `mapInArrow`: adds the columns `decoded` and `error` to every row."""

    def __init__(self, decoder: Decoder, column: str, decoded: str, error: str) -> None:
        self._decoder = decoder
        self._column = column
        self._decoded = decoded
        self._error = error

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        kind = arrow_type(self._decoder.schema)
        for batch in batches:
            values = as_binary(batch.column(self._column))
            there = values.is_valid()
            if values.null_count:
                structs, found = self._decoder.decode(values.filter(there))
                places = pa.compute.cumulative_sum(there.cast(pa.int64()))
                index = pa.compute.if_else(there, pa.compute.subtract(places, 1), pa.scalar(None, pa.int64()))
                structs = structs.take(index)
                reasons = pa.array(found, pa.string()).take(index)
            else:
                structs, found = self._decoder.decode(values)
                reasons = pa.array(found, pa.string())
            yield pa.record_batch(
                [*batch.columns, structs if structs.type == kind else structs.cast(kind), reasons],
                names=[*batch.schema.names, self._decoded, self._error],
            )


class EncodeRows:
    """For `mapInArrow`: keeps some columns and turns the others into the column `value`."""

    def __init__(self, encoder: Encoder, keep: Sequence[str], columns: Sequence[str]) -> None:
        self._encoder = encoder
        self._keep = list(keep)
        self._columns = list(columns)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            value = self._encoder.encode(batch.select(self._columns))
            kept = [batch.column(name) for name in self._keep]
            yield pa.record_batch([*kept, value], names=[*self._keep, "value"])


def as_binary(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column if pa.types.is_binary(column.type) else column.cast(pa.binary())
