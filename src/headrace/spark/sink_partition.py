"""Exactly once, written by tasks: one transaction per task and micro-batch, which also carries the task's marker.

Rules:
- All attempts at one partition share a transactional id: a new one fences the older, whose open transaction is aborted.
- A task whose marker says "written" writes nothing; it compares the rows that it was given with the digest in the
  marker, and fails if they differ: then a replay does not repeat what was, and going on would lose or double rows.
- A fenced attempt waits for its rival's marker instead of failing, or attempts would fence each other for ever.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from headrace.spark.sink_driver import refuse_older
from headrace.spark.sink_marker import Marker, Markers, ReplayError, places
from headrace.spark.sink_options import SinkOptions
from headrace.spark.sink_producer import FencedError, Outlet
from headrace.spark.sink_rows import Digest, Record, records

if TYPE_CHECKING:
    import pyarrow as pa

RIVAL_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 0.2
_TRANSACTION_TIMEOUT_MS: Final = 300_000  # rows come as Spark computes them: the transaction is open meanwhile


class TaskWriter:
    """One attempt."""

    def __init__(self, options: SinkOptions, name: str, group: str = "") -> None:
        self._options = options
        self._id = name
        self._group = group or name
        self._markers = Markers(options)
        self._digest = Digest()
        self._topics: set[str] = set()

    def write(self, batch_id: int, batches: Iterable[pa.RecordBatch]) -> int:
        """Write the task's rows, unless they are written; how many there are. Raises HeadraceError."""
        rows = self._noted(batches)
        first = next(rows, None)
        if first is None:
            self._was_empty(batch_id)
            return 0  # nothing to do, so nothing to remember
        outlet = Outlet(self._options, self._id, _TRANSACTION_TIMEOUT_MS)
        outlet.initialise()
        marker = self._markers.read(self._group)
        if marker.next_batch > batch_id:
            refuse_older(self._id, marker.next_batch, batch_id)
            self._compare(marker, rows, batch_id)
            return self._digest.rows
        try:
            outlet.begin()
            outlet.send(_chain(first, rows))
            note = str(self._digest)
            outlet.commit(places(self._topics, batch_id + 1, note), self._markers.group(self._group))
        except FencedError:
            self._compare(self._rivals_marker(batch_id), rows, batch_id)
        except BaseException:
            outlet.abandon()
            raise
        return self._digest.rows

    def _was_empty(self, batch_id: int) -> None:
        """Rows that this task wrote before may be another task's now: that would double them."""
        marker = self._markers.read(self._group)
        if marker.next_batch > batch_id:
            refuse_older(self._id, marker.next_batch, batch_id)
            self._compare(marker, iter(()), batch_id)

    def _noted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Record]:
        for batch in batches:
            for record in records(batch, self._options.topic):
                self._digest.add(record)
                self._topics.add(record[0])
                yield record

    def _rivals_marker(self, batch_id: int) -> Marker:
        deadline = time.monotonic() + RIVAL_SECONDS
        while True:
            marker = self._markers.read(self._group)
            if marker.next_batch > batch_id:
                return marker
            if time.monotonic() > deadline:
                raise FencedError(
                    f"another attempt has fenced {self._id} and has not written batch {batch_id}, or its rows took "
                    "longer than kafka.transaction.timeout.ms"
                )
            time.sleep(_PAUSE_SECONDS)

    def _compare(self, marker: Marker, rows: Iterator[Record], batch_id: int) -> None:
        for _ in rows:
            pass
        if str(self._digest) != marker.note:
            raise ReplayError(
                f"batch {batch_id} of {self._id} was written as {marker.note} but is {self._digest} (rows:digest) when "
                "repeated: this query does not repeat itself; use delivery=exactly_once"
            )


def _chain(first: Record, rest: Iterator[Record]) -> Iterator[Record]:
    yield first
    yield from rest
