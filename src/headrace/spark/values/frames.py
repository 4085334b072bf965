"""Values as typed columns, and back, on DataFrames; batch and streaming, classic and Connect.

    good, bad = decode(frame, "json", "id bigint, amount double", on_error="dlq")
    dead_letters(bad, "orders-dlq").writeStream.format("headrace")...

Rules:
- No record is lost in silence: what does not fit is in `bad`, with where it came from, its bytes, and the reason. With
  on_error="fail" the query fails with that reason; with "skip" `good` goes on without it, and `bad` is there to count.
- A null value (a tombstone) does not fit unless `nulls` is "keep" (a row of nulls) or "skip".
- Typed columns come first; what is kept of the record (key, topic, partition, offset, timestamp) follows, and is called
  record_<name> where a typed column has its name already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from headrace.core.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from headrace.spark.values.codec import Decoder

Format = Literal["json", "avro", "protobuf", "text", "binary", "variant"]
OnError = Literal["fail", "skip", "dlq"]
Nulls = Literal["error", "keep", "skip"]
FORMATS: Final = ("json", "avro", "protobuf", "text", "binary", "variant")

DECODED: Final = "_decoded"
ERROR: Final = "_error"
OF_RECORD: Final = ("key", "topic", "partition", "offset", "timestamp")
OF_SINK: Final = ("key", "headers", "topic", "partition")
_NULL: Final = "the value is null"


@dataclass(frozen=True)
class Decoded:
    """Unpacks into `good, bad`. `marked` has all rows, with columns `_decoded` and `_error`: one query for both."""

    good: DataFrame
    bad: DataFrame
    marked: DataFrame
    schema: StructType

    def __iter__(self) -> Iterator[DataFrame]:
        return iter((self.good, self.bad))


def decode(
    frame: DataFrame,
    format: Format = "json",
    schema: Any = None,
    *,
    message: str = "",
    column: str = "value",
    on_error: OnError = "fail",
    nulls: Nulls = "error",
    keep: Sequence[str] = OF_RECORD,
    wire: Literal["auto", "plain", "confluent"] = "auto",
) -> Decoded:
    """Turn a column of bytes into typed columns. See the module; raises ConfigError.

    `schema` is what `schemas.struct_of` takes for JSON, an Avro schema (file, text, mapping), or a set of Protobuf
    descriptors (file or bytes), of which `message` names one. Text, binary and variant need none.
    """
    _one_of("format", format, FORMATS)
    _one_of("on_error", on_error, ("fail", "skip", "dlq"))
    _one_of("nulls", nulls, ("error", "keep", "skip"))
    if column not in frame.columns:
        raise ConfigError(f"there is no column {column!r} to decode; there are {', '.join(frame.columns)}")
    if format in ("text", "binary", "variant"):
        marked, kind = _marked_by_spark(frame, format, column)
    else:
        marked, kind = _marked_by_python(frame, decoder_of(format, schema, message, wire), column)
    return _split(marked, kind, column, on_error, nulls, [name for name in keep if name in frame.columns])


def decoder_of(format: Format, schema: Any, message: str = "", wire: Any = "auto") -> Decoder:
    """The decoder of a format that Python decodes."""
    if schema is None:
        raise ConfigError(f"format {format} needs a schema" + ("; infer_schema finds one" if format == "json" else ""))
    if format == "json":
        from headrace.spark.values.json_values import JsonDecoder
        from headrace.spark.values.schemas import struct_of

        return JsonDecoder(struct_of(schema))
    if format == "avro":
        from headrace.spark.values.avro_values import AvroDecoder, avro_schema

        return AvroDecoder(avro_schema(schema), wire)
    if format == "protobuf":
        from headrace.spark.values.protobuf_values import ProtobufDecoder, descriptors_of

        if not message:
            raise ConfigError("format protobuf needs the name of a message")
        return ProtobufDecoder(descriptors_of(schema), message, wire)
    raise ConfigError(f"format {format} has no decoder")


def encode(
    frame: DataFrame,
    format: Format = "json",
    schema: Any = None,
    *,
    message: str = "",
    columns: Sequence[str] = (),
    keep: Sequence[str] = OF_SINK,
    schema_id: int | None = None,
) -> DataFrame:
    """Turn columns (all that are not kept, or those named) into `value`, beside those that the sink knows.

    Avro takes its schema from the table if none is given. `schema_id` puts Confluent's header before Avro or Protobuf.
    """
    from pyspark.sql import functions as f

    _one_of("format", format, FORMATS)
    kept = [name for name in keep if name in frame.columns and name not in columns]
    chosen = list(columns) or [name for name in frame.columns if name not in kept]
    if format in ("text", "binary", "variant"):
        if len(chosen) != 1:
            raise ConfigError(f"format {format} writes one column, not {', '.join(chosen) or 'none'}")
        value = f.to_json(chosen[0]) if format == "variant" else f.col(chosen[0])
        return frame.select(*kept, value.cast("binary").alias("value"))
    if format == "json":
        return frame.select(*kept, f.to_json(f.struct(*chosen)).cast("binary").alias("value"))
    from headrace.spark.values.codec import Encoder, EncodeRows

    encoder: Encoder
    if format == "avro":
        from headrace.spark.values.avro_of_spark import avro_of
        from headrace.spark.values.avro_values import AvroEncoder, avro_schema

        encoder = AvroEncoder(
            avro_schema(avro_of(frame.select(*chosen).schema) if schema is None else schema), schema_id
        )
    else:
        from headrace.spark.values.protobuf_values import ProtobufEncoder, descriptors_of

        if schema is None or not message:
            raise ConfigError("format protobuf needs a schema and the name of a message")
        encoder = ProtobufEncoder(descriptors_of(schema), message, schema_id)
    shape = frame.select(*kept).schema.add("value", "binary")
    return frame.select(*kept, *chosen).mapInArrow(EncodeRows(encoder, kept, chosen), shape)


def dead_letters(bad: DataFrame, topic: str = "") -> DataFrame:
    """Misfits as records for the sink: key, bytes and headers as they came; headrace.* say where from, and why."""
    from pyspark.sql import functions as f

    def header(name: str, column: Column) -> Column:
        return f.struct(f.lit(f"headrace.{name}").alias("key"), column.cast("string").cast("binary").alias("value"))

    context = [
        header(name, f.col(name)) for name in ("topic", "partition", "offset", "timestamp") if name in bad.columns
    ]
    said = f.array(*context, header("error", f.col("error")))
    if "headers" in bad.columns:
        own = f.col("headers")
        said = f.when(own.isNull(), said).otherwise(f.concat(own, said))
    columns = [f.col("key")] if "key" in bad.columns else []
    columns += [f.col("value"), said.alias("headers")]
    if topic:
        columns.append(f.lit(topic).alias("topic"))
    return bad.select(*columns)


def infer_schema(frame: DataFrame, *, column: str = "value", sample: int = 1000) -> StructType:
    """The schema of JSON values, from the first records of a batch that are JSON objects. Raises ConfigError."""
    from pyspark.sql import functions as f

    from headrace.spark.values.schemas import struct_of
    from headrace.spark.values.shapes import ddl_of, shape_of

    if frame.isStreaming:
        raise ConfigError("a schema is inferred from a batch: read some of the topic with spark.read")
    rows = frame.select(f.col(column).cast("binary")).limit(sample).collect()
    shape = shape_of((None if row[0] is None else bytes(row[0]) for row in rows), mostly=False)
    if not shape:
        raise ConfigError(f"no schema can be inferred: none of {sample} records is a JSON object with fields")
    return struct_of(ddl_of(shape))


def _one_of(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} must be {' or '.join(allowed)}, not {value!r}")


def _marked_by_python(frame: DataFrame, decoder: Decoder, column: str) -> tuple[DataFrame, StructType]:
    from pyspark.sql.types import StringType, StructType

    from headrace.spark.values.codec import DecodeColumn, nullable

    kind = nullable(decoder.schema)
    shape = StructType(list(frame.schema.fields)).add(DECODED, kind).add(ERROR, StringType())
    return frame.mapInArrow(DecodeColumn(decoder, column, DECODED, ERROR), shape), kind


def _marked_by_spark(frame: DataFrame, format: str, column: str) -> tuple[DataFrame, StructType]:
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    value = f.col(column)
    if format == "binary":
        decoded, reason, kind = value.cast("binary"), f.lit(None).cast("string"), "binary"
    elif format == "text":
        decoded, kind = value.cast("string"), "string"
        reason = f.when(~f.is_valid_utf8(decoded), f.lit("not UTF-8"))
    else:
        decoded, kind = f.try_parse_json(value.cast("string")), "variant"
        reason = f.when(value.isNotNull() & decoded.isNull(), f.lit("not JSON"))
    marked = frame.withColumn(DECODED, f.struct(decoded.alias(column))).withColumn(ERROR, reason)
    return marked, StructType().add(column, kind)


def _split(
    marked: DataFrame, kind: StructType, column: str, on_error: OnError, nulls: Nulls, keep: Sequence[str]
) -> Decoded:
    from pyspark.sql import functions as f

    value, error = f.col(column), f.col(ERROR)
    if nulls == "skip":
        marked = marked.where(value.isNotNull())
    elif nulls == "error":
        marked = marked.withColumn(ERROR, f.when(value.isNull(), f.lit(_NULL)).otherwise(error))
    names = {each.name.lower() for each in kind.fields}
    record = [f.col(name).alias(f"record_{name}" if name.lower() in names else name) for name in keep]
    typed = [f.col(f"{DECODED}.`{each.name}`").alias(each.name) for each in kind.fields]
    fits = error.isNull()
    if on_error == "fail":
        place = [name for name in ("topic", "partition", "offset") if name in marked.columns]
        where = f.concat_ws("-", *[f.col(name).cast("string") for name in place])
        sentence = f.concat(f.lit("record "), where, f.lit(" does not fit: "), error)
        fits = f.when(fits, f.lit(True)).otherwise(f.raise_error(sentence).cast("boolean"))
    context = [name for name in (*OF_RECORD, "headers") if name in marked.columns and name != column]
    bad = marked.where(error.isNotNull()).select(*context, value.alias("value"), error.alias("error"))
    return Decoded(marked.where(fits).select(*typed, *record), bad, marked, kind)
