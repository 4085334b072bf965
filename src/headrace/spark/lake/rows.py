"""An archive's rows: record batches of a topic become rows of its table, split by date.

The columns are those of the source in another order, so that live and archived records can be put together; then
`data` and `data_error`, if values are decoded; then `date`, the UTC day of the record's timestamp, which partitions the
table.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.spark.lake.files import PartFile, PartWriter, Values
from headrace.spark.lake.ledger import ArchivedRange
from headrace.spark.lake.place import Place
from headrace.spark.lake.typed import DATA, ERROR, Reading, read_objects

DATE: Final = "date"
_DAY_US: Final = 86_400_000_000
_FIRST_DAY: Final = np.datetime64("0001-01-01", "D")
_LAST_DAY: Final = np.datetime64("9999-12-31", "D")

RECORD: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field(
            "headers",
            pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))),
        ),
    ]
)
# Offsets and times nearly count up; the rest of the plain columns hardly changes.
_PARQUET: Final = {
    "use_dictionary": ["topic", "partition", "timestampType"],
    "column_encoding": {"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"},
    "write_statistics": ["topic", "partition", "offset", "timestamp"],
}


def stored_schema(record: pa.Schema, data: pa.StructType | None) -> pa.Schema:
    """The columns in the files."""
    if data is None:
        return record
    return record.append(pa.field(DATA, data)).append(pa.field(ERROR, pa.string()))


def table_schema(record: pa.Schema, data: pa.StructType | None) -> pa.Schema:
    """The columns of the table."""
    return stored_schema(record, data).append(pa.field(DATE, pa.date32()))


def write_range(
    place: Place,
    batches: Iterable[pa.RecordBatch],
    span: tuple[str, int, int, int],
    record: pa.Schema,
    data: pa.StructType | None,
    read: Reading = read_objects,
) -> str:
    """Write the records of one range (topic, partition, start, end); a task's report, as JSON."""
    topic, partition, start, end = span
    schema = stored_schema(record, data)
    writer = PartWriter(place, schema, stem=f"{topic}-{partition}-{start:020d}", **_PARQUET)
    rows = 0
    for batch in batches:
        rows += batch.num_rows
        for values, piece in by_date(batch):
            writer.add(values, piece if data is None else _with_data(piece, data, schema, read))
    files = writer.close()
    return json.dumps(
        {
            "range": ArchivedRange(topic, partition, start, end, rows),
            "files": [each.document() for each in files],
        }
    )


def read_report(text: str) -> tuple[ArchivedRange, list[PartFile]]:
    found: dict[str, Any] = json.loads(text)
    return ArchivedRange(*found["range"]), [PartFile(**each) for each in found["files"]]


def by_date(batch: pa.RecordBatch) -> Iterator[tuple[Values, pa.RecordBatch]]:
    """A batch in pieces, each of one day. Mostly it is one already."""
    times = batch.column("timestamp").view(pa.int64()).to_numpy(zero_copy_only=False)
    if not len(times):
        return
    days = times // _DAY_US
    first = int(days[0])
    if (days == first).all():
        yield ((DATE, _day(first)),), batch
        return
    for day in np.unique(days).tolist():
        yield ((DATE, _day(day)),), batch.filter(pa.array(days == day))


def _day(number: int) -> str:
    return str(min(max(np.datetime64(number, "D"), _FIRST_DAY), _LAST_DAY))


def _with_data(batch: pa.RecordBatch, data: pa.StructType, schema: pa.Schema, read: Reading) -> pa.RecordBatch:
    found, reasons = read(batch.column("value"), data)
    return pa.RecordBatch.from_arrays([*batch.columns, found, reasons], schema=schema)
