"""Exactly once, published by the driver: one transaction per micro-batch, which also carries the batch's marker.

Rules:
- Tasks only send rows to the driver; Spark passes on those of the attempts that won, whatever was retried or copied.
- Initialise, then read the marker, then write: whoever initialises later fences us, so that between our look at the
  marker and our commit nobody else can commit. After any failure that may pass, all three are done again; an unknown
  outcome is thus found out, and a batch that is replayed after a restart is skipped.
- While our producer is not fenced, nobody has written: what we committed last is the marker.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from headrace.spark.cluster import PassingError
from headrace.spark.sink_marker import Markers, ReplayError, places
from headrace.spark.sink_options import SinkOptions
from headrace.spark.sink_producer import Outlet
from headrace.spark.sink_rows import Record, records
from headrace.spark.staging import Part, Staging

_PAUSE_SECONDS: Final = 0.2


class Publisher:
    """Writes the batches of one query, one after another."""

    def __init__(self, options: SinkOptions, name: str, group: str = "") -> None:
        self._options = options
        self._id = name
        self._group = group or name
        self._markers = Markers(options)
        self._group_metadata = b""
        self._outlet: Outlet | None = None
        self._next_batch = 0

    def publish(self, batch_id: int, parts: Sequence[Part], staging: Staging) -> bool:
        """Write a batch; False if it was written before. Raises HeadraceError."""
        deadline = time.monotonic() + self._options.patience_ms / 1000
        while True:
            try:
                return self._publish(batch_id, parts, staging)
            except PassingError:
                self.close()
                if time.monotonic() > deadline:
                    raise
            except BaseException:
                self.close()
                raise
            time.sleep(_PAUSE_SECONDS)

    def close(self) -> None:
        outlet, self._outlet = self._outlet, None
        if outlet is not None:
            outlet.abandon()

    def _publish(self, batch_id: int, parts: Sequence[Part], staging: Staging) -> bool:
        outlet = self._open()
        if self._next_batch > batch_id:
            refuse_older(self._id, self._next_batch, batch_id)
            return False
        topics: set[str] = set()
        outlet.begin()
        for part in parts:
            for batch in staging.unpack(part):
                outlet.send(_noting(records(batch, self._options.topic), topics))
        outlet.commit(places(topics, batch_id + 1), self._group_metadata)
        self._next_batch = batch_id + 1
        return True

    def _open(self) -> Outlet:
        if self._outlet is None:
            self._group_metadata = self._group_metadata or self._markers.group(self._group)
            self._outlet = Outlet(self._options, self._id)
            self._outlet.initialise()
            self._next_batch = self._markers.read(self._group).next_batch
        return self._outlet


def refuse_older(name: str, next_batch: int, batch_id: int) -> None:
    """Spark replays its last batch, never one before it: then the checkpoint is older than what was written."""
    if next_batch > batch_id + 1:
        raise ReplayError(
            f"batch {batch_id} is to be written, but {name} has written all before {next_batch}: the checkpoint is an "
            "older copy, or another query has the same one; start with a new checkpoint to write again"
        )


def _noting(rows: Iterable[Record], topics: set[str]) -> Iterator[Record]:
    for record in rows:
        topics.add(record[0])
        yield record
